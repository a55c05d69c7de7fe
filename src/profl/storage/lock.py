"""A lock on a folder: a file in it that the system locks, and frees when its process dies.

The lock belongs to the open file and not to the process: a process that opens and closes the file once more, as one
does that copies the folder, keeps it. A child that is forked lets go of its copy at once, so that it does not hold the
folder when its parent has died. Two runs in one process are told apart by a table; where the system has no such locks
(Windows, some network file systems), that table is all there is.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from profl.checks import InputError, words
from profl.storage.atomic import check_plain

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
        check_plain(Path(path))
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(handle)
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


def _lock(handle: int) -> None:
    """Lock an open file for as long as it is open; raises ``OSError`` where somebody else has."""
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    elif fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _let_go() -> None:
    """In a child that was forked: the locks are its parent's."""
    for handle in _HANDLES.values():
        with suppress(OSError):
            os.close(handle)
    _HANDLES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _message(folder: Path, holder: str) -> str:
    return f"another run works in {folder} ({holder}): wait for its end, or choose another folder"
