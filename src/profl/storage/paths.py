"""Paths: where caches lie, and whether a file or a folder can be written to, tried before any work is done."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from profl.checks import InputError
from profl.storage.atomic import is_stream

PROBE = 4096  # bytes: a full disk may still make empty files


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/profl on every platform, or the platform's own place for caches."""
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root) / "profl"
    import platformdirs

    return platformdirs.user_cache_path("profl", appauthor=False)


def check_file(name: str, path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written; ``name`` is the argument that holds it."""
    place = Path(path)
    if os.path.isdir(place):
        raise InputError(f"{name} must name a file, got the folder {place}")
    try:
        stream, exists = is_stream(place), place.exists()
        target = Path(os.path.realpath(place))
        if target.is_symlink():
            raise OSError("its links lead in a circle")
        _check_name(target)
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a zero byte
        raise InputError(f"{name}: {place} cannot be a file: {_reason(error)}") from error
    if exists and not os.access(place, os.W_OK):
        raise InputError(f"{name}: {place} cannot be written to: permission denied or read-only")
    if not stream:
        check_folder(name, target.parent)


def check_folder(name: str, folder: Path | None) -> None:
    """Refuse a folder that is not one, or could not be made or written to."""
    if folder is None:
        return
    try:
        _check_name(folder)
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: {folder} cannot be a folder: {_reason(error)}") from error
    if not there.is_dir():
        raise InputError(f"{name}: {there} is {'a file' if there.exists() else 'a link to nothing'}, not a folder")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{name}: the folder {there} cannot be written to: {_reason(error)}") from error


def _check_name(place: Path) -> None:
    """Raises OSError or ValueError where nothing could have this name."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(place)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
