"""Whether something can be written to a place, found out before any work is done, by trying it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from profl.checks import InputError
from profl.storage.atomic import written_through

PROBE = 4096  # bytes: a full disk may still make empty files


def check_file(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written; ``name`` is what the person who gave it calls it."""
    place = Path(path)
    if os.path.isdir(place):
        raise InputError(f"{name} must name a file, got the folder {place}")
    try:
        through, there = written_through(place), place.exists()
        target = Path(os.path.realpath(place))
        if target.is_symlink():
            raise OSError("its links lead in a circle")
        _look(target)
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a zero byte
        raise InputError(f"{name}: {place} cannot be a file: {_why(error)}") from error
    if there and not os.access(place, os.W_OK):
        raise InputError(f"{name}: {place} cannot be written to: permission denied or read-only")
    if not through:
        check_folder(name, target.parent)


def check_folder(name: str, folder: Path | None) -> None:
    """Refuse a folder that is none, or could not be made or written to."""
    if folder is None:
        return
    try:
        _look(folder)
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {folder} cannot be a folder: {_why(error)}") from error
    if not there.is_dir():
        raise InputError(f"{name}: {there} is {'a file' if there.exists() else 'a link to nothing'}, not a folder")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{name}: the folder {there} cannot be written to: {_why(error)}") from error


def _look(place: Path) -> None:
    """Raises OSError or ValueError where nothing could have this name."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(place)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
