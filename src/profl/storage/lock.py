"""A folder that one run has to itself: a file in it that the system locks for this process, and frees when it dies.

Of two in one process a table tells. Where the system knows no such locks (Windows, some network file systems) only the
table does.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from profl.checks import InputError, words

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NAME = "lock"
_HELD: dict[str, int] = {}  # the file -> its handle


class Lock:
    """Held from here to ``release``; raises ``InputError`` that names who holds it where somebody does."""

    def __init__(self, folder: Path) -> None:
        self.path = ""  # until it is held
        path = os.path.realpath(folder / NAME)
        if path in _HELD:
            raise InputError(_taken(folder, f"process {os.getpid()}, this one"))
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # lockf rather than flock: a child that was forked does not hold it on when this process dies
            if fcntl is not None:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(handle, 200).decode("utf-8", "replace")
                os.close(handle)
                raise InputError(_taken(folder, words(holder) or "process unknown")) from error
        self.path = path
        _HELD[path] = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        handle = _HELD.pop(self.path, None)
        if handle is not None:
            os.close(handle)


def _taken(folder: Path, holder: str) -> str:
    return f"another run works in {folder} ({holder}): wait for its end, or choose another folder"
