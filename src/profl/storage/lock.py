"""A lock on a folder: a file in it that the system locks for this process and frees when it dies.

Two runs in one process are told apart by a table; where the system has no such locks (Windows, some network file
systems), that table is all there is.
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
_HANDLES: dict[str, int] = {}  # the file -> its handle


class Lock:
    """Locked from construction to ``release``; raises ``InputError`` with the holder where it is locked already."""

    def __init__(self, folder: Path) -> None:
        self.path = ""  # until it is held
        path = os.path.realpath(folder / NAME)
        if path in _HANDLES:
            raise InputError(_message(folder, f"process {os.getpid()}, this one"))
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # lockf rather than flock: a child that was forked does not hold it on when this process dies
            if fcntl is not None:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(handle, 200).decode("utf-8", "replace")
                os.close(handle)
                raise InputError(_message(folder, words(holder) or "process unknown")) from error
        self.path = path
        _HANDLES[path] = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        handle = _HANDLES.pop(self.path, None)
        if handle is not None:
            os.close(handle)


def _message(folder: Path, holder: str) -> str:
    return f"another run works in {folder} ({holder}): wait for its end, or choose another folder"
