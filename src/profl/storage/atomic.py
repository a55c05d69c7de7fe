"""Files that are written whole or not at all.

A new content is written beside the file and then takes its name. A link stays a link, and the file that it names gets
the content; a file keeps its mode and its owner. What is no plain file (a device, a pipe, a terminal) is never
replaced: the content is written into it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from profl.checks import InputError


class atomic:
    """``with atomic(path) as temporary``: what is written to ``temporary`` becomes ``path`` only if nothing failed.

    ``private``: for nobody else to read.
    """

    def __init__(self, path: str | os.PathLike[str], private: bool = False) -> None:
        self.path, self.private = Path(path), private
        self.stream = is_stream(self.path)
        self.target = self.path if self.stream else Path(os.path.realpath(self.path))

    def __enter__(self) -> Path:
        folder = Path(tempfile.gettempdir()) if self.stream else self.target.parent
        make_folder(folder, self.private)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name[:50]}.", suffix=self.path.suffix, dir=folder)
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self.temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self.stream:
            self._copy()
            return
        with open(self.temporary, "rb+") as file:
            os.fsync(file.fileno())
        self._copy_mode()
        try:
            os.replace(self.temporary, self.target)
        except OSError as error:  # a file that is mounted by itself, as into a container, cannot be replaced
            if error.errno != errno.EBUSY:
                raise
            self._copy(os.O_TRUNC)

    def _copy(self, how: int = os.O_APPEND) -> None:
        with open(self.temporary, "rb") as source, os.fdopen(os.open(self.path, os.O_WRONLY | how), "wb") as target:
            shutil.copyfileobj(source, target)

    def _copy_mode(self) -> None:
        """Give the temporary file the mode and owner of the old one; a new one has what the umask leaves."""
        try:
            old = os.stat(self.target)
        except FileNotFoundError:
            os.chmod(self.temporary, 0o600 if self.private else 0o666 & ~_umask())
            return
        os.chmod(self.temporary, 0o600 if self.private else stat.S_IMODE(old.st_mode))
        now = os.stat(self.temporary)
        if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid):
            with contextlib.suppress(OSError):
                os.chown(self.temporary, old.st_uid, old.st_gid)


_STREAMS = re.compile(r"/dev|/proc/.*/fd")  # what lies there names an open file, such as /dev/stdout


def is_stream(path: Path) -> bool:
    """Whether a path must be written into and not replaced: a device, a pipe, or an open file such as /dev/stdout."""
    try:
        info = os.stat(path)
    except OSError:
        return False
    plain = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
    return not plain or bool(_STREAMS.fullmatch(os.path.realpath(path.parent)))


def check_plain(path: Path) -> None:
    """Refuse what is there under this name and no plain file: to open a pipe would wait for ever."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise InputError(
            f"{path} must be a plain file, it is {kinds.get(stat.S_IFMT(mode), 'a device')}: remove it, or choose "
            "another folder"
        )


def sync_folder(folder: Path) -> None:
    """Make sure that a new name in a folder survives a power cut, where the system can say so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path, private: bool = False) -> None:
    """Make a folder and those above it; a private one for nobody else, where it is new."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700 if private else 0o777, exist_ok=True)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """``content`` as JSON for people to read, and a line end; arrays and their numbers become lists and numbers."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, default=_plain) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Lists and numbers in place of arrays and their scalars, which JSON does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
