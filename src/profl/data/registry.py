"""The data sets profl knows, and where a copy of one may lie on this machine.

Looked at in this order: the path a caller gives, the path in the environment variable ``PROFL_DATA``, the cache. Each
may be a directory that holds the csv (plain or packed with gzip) or the file itself. ``profl.data.fetch`` has the
sources beyond this machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from profl import checks
from profl.data.adult import ADULT
from profl.data.credit import CREDIT
from profl.data.dataset import Dataset, MissingDataError
from profl.storage.paths import cache_directory

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in (ADULT, CREDIT)}


def dataset(name: str) -> Dataset:
    """The data set called ``name``.

    >>> dataset("adlt")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown data set 'adlt'; did you mean 'adult'? There are: adult, credit
    """
    return DATASETS[checks.one_of("data set", name, DATASETS)]


def cache_path(name: str) -> Path:
    """The file in the cache that holds the data set, or will."""
    return cache_directory() / dataset(name).files[0]


def locate(name: str, path: str | os.PathLike[str] | None = None) -> Path | None:
    """The file that holds the data set, or None; its content is not looked at."""
    known = dataset(name)
    if path is not None:
        return _file_at(known, Path(checks.path("path", path)))
    if (directory := os.environ.get("PROFL_DATA")) and (file := _named(known, Path(directory))):
        return file
    return _named(known, cache_directory())


def find(name: str, path: str | os.PathLike[str] | None = None) -> Path:
    """The file that holds the data set, checked; an error with the command that gets it where there is none."""
    file = _require(name, path)
    dataset(name).read(file)
    return file


def load(name: str, path: str | os.PathLike[str] | None = None) -> bytes:
    """The csv of a data set that is on this machine, checked."""
    return dataset(name).read(_require(name, path))


def _require(name: str, path: str | os.PathLike[str] | None) -> Path:
    """The file that holds the data set; an error where there is none."""
    file = locate(name, path)
    if file is None:
        raise MissingDataError(
            f"the {name} data are not on this machine; get them with: profl data get {name} "
            f"(or set PROFL_DATA to a directory that holds {dataset(name).files[0]})"
        )
    return file


def _file_at(known: Dataset, path: Path) -> Path:
    """The file at a path that a caller states: a file of any name, or a directory that holds one of the known names."""
    if path.is_file():
        return path
    if file := _named(known, path):
        return file
    expected = " or ".join(known.files[:2])
    raise MissingDataError(
        f"no {known.name} data at {path}: expected the csv itself or a directory with {expected}; "
        f"or get the data with: profl data get {known.name}"
    )


def _named(known: Dataset, path: Path) -> Path | None:
    """``path`` or a file in it, if it has one of the data set's names."""
    candidates = [path / name for name in known.files] if path.is_dir() else [path]
    return next((file for file in candidates if file.name in known.files and file.is_file()), None)
