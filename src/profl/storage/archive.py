"""Arrays and a JSON text in one ``.npz`` file, and back; whatever is wrong with a file is one ``Damaged``.

The sha256 in the text is over the arrays and the rest of the text. Sizes are looked at before anything is read: a
file cannot ask for more memory than what is in it can fill.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from profl.checks import words
from profl.storage.hashes import sha256

META = "meta"
RATIO = 1100  # deflate packs at most 1,032 bytes into one


class Damaged(Exception):
    """A file that cannot be read; in one line, why."""


def write(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any], compressed: bool = False) -> None:
    """Write to ``path``, which should be that of ``atomic``."""
    sealed = {**meta, "sha256": seal(arrays, meta)}
    with open(path, "wb") as file:
        save = np.savez_compressed if compressed else np.savez
        save(file, allow_pickle=False, **arrays, **{META: np.array(json.dumps(sealed))})


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text without its sha256, which is right); raises ``Damaged``."""
    arrays, meta = unsealed(path)
    check(arrays, meta)
    return arrays, meta


def check(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Take the sha256 out of the text; raises ``Damaged`` where it is not that of the rest."""
    said = meta.pop("sha256", None)
    if (found := seal(arrays, meta)) != said:
        raise Damaged(f"its sha256 is {found}, the file says {words(said)}")


def unsealed(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text) as they stand in the file."""
    try:
        if not Path(path).is_file():
            raise Damaged("no such file")
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, os.path.getsize(path))
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
        meta = json.loads(str(arrays.pop(META)))
        if not isinstance(meta, dict):
            raise Damaged("its text is no table")
    except Damaged:
        raise
    except Exception as error:  # of zipfile, zlib, struct, json, numpy: whatever a broken file may bring about
        raise Damaged(
            f"it is cut short, damaged or none of profl's ({type(error).__name__}: {words(error)})"
        ) from error
    return arrays, meta


def seal(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> str:
    """The sha256 of arrays and text; keys of a text that is not JSON's are made so."""
    text = json.dumps(json.loads(json.dumps(meta)), sort_keys=True)
    return hashlib.sha256(f"{sha256(sorted(arrays.items()))} {text}".encode()).hexdigest()


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    if sum(info.file_size for info in archive.infolist()) > RATIO * size:
        raise Damaged("it claims to hold more than it can")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > info.file_size:
            raise Damaged(f"an array of {dtype} {words(shape)} cannot be in {info.file_size} bytes")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
