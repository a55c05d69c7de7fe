"""Arrays and a JSON text in one ``.npz`` file; a file that cannot be read raises ``DamagedFile``.

The sha256 in the text is over the arrays and the rest of the text. Sizes are checked before anything is read: a file
cannot make its reader reserve more memory than its content fills.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from profl.checks import words
from profl.storage.hashes import sha256

META = "meta"
RATIO = 1100  # deflate packs at most 1,032 bytes into one


class DamagedFile(Exception):
    """A file that cannot be read; the message says why in one line."""


def write(path: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any], compressed: bool = False) -> None:
    """Write to ``path``, which should be that of ``atomic``."""
    with open(path, "wb") as file:
        _save(file, arrays, meta, compressed)


def to_bytes(arrays: dict[str, np.ndarray], meta: dict[str, Any], compressed: bool = False) -> bytes:
    """The content of such a file."""
    file = io.BytesIO()
    _save(file, arrays, meta, compressed)
    return file.getvalue()


def _save(file: BinaryIO, arrays: dict[str, np.ndarray], meta: dict[str, Any], compressed: bool) -> None:
    signed = {**meta, "sha256": checksum(arrays, meta)}
    save = np.savez_compressed if compressed else np.savez
    save(file, allow_pickle=False, **arrays, **{META: np.array(json.dumps(signed))})


def from_bytes(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text without its sha256) of such a content; raises ``DamagedFile`` where the sha256 is wrong."""
    arrays, meta = _open(io.BytesIO(content), len(content))
    verify(arrays, meta)
    return arrays, meta


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text without its sha256); raises ``DamagedFile`` where the sha256 is wrong."""
    arrays, meta = read_unchecked(path)
    verify(arrays, meta)
    return arrays, meta


def verify(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Remove the sha256 from the text; raises ``DamagedFile`` where it is not that of the rest."""
    expected = meta.pop("sha256", None)
    if (actual := checksum(arrays, meta)) != expected:
        raise DamagedFile(f"its sha256 is {actual}, the file says {words(expected)}")


def read_unchecked(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text) as they stand in the file."""
    if not Path(path).is_file():
        raise DamagedFile("no such file")
    return _open(path, os.path.getsize(path))


def _open(file: Any, size: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, the text) of a path or a binary file of ``size`` bytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check_sizes(archive, size)
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info) for info in archive.infolist()}
        meta = json.loads(str(arrays.pop(META)))
        if not isinstance(meta, dict):
            raise DamagedFile("its text is no table")
    except DamagedFile:
        raise
    except Exception as error:  # of zipfile, zlib, struct, json, numpy: whatever a broken file may bring about
        raise DamagedFile(
            f"it is cut short, damaged or none of profl's ({type(error).__name__}: {words(error)})"
        ) from error
    return arrays, meta


def named_arrays(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their place in it, with a prefix."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def restore_tree(prefix: str, arrays: dict[str, np.ndarray], like: Any, same_shape: bool) -> Any:
    """The pytree of ``named_arrays`` in the structure of ``like``; raises ``DamagedFile`` where it has another."""
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [prefix + jax.tree_util.keystr(place) for place, _ in wanted]
    if set(names) != set(arrays):
        raise DamagedFile(f"the {prefix or 'history'} in it has other entries than this run's")
    for name, (_, leaf) in zip(names, wanted, strict=True):
        if same_shape and arrays[name].shape != np.shape(leaf):
            raise DamagedFile(f"{name} has shape {arrays[name].shape}, this run's {np.shape(leaf)}")
        if same_shape and arrays[name].dtype != getattr(leaf, "dtype", arrays[name].dtype):
            raise DamagedFile(f"{name} has dtype {arrays[name].dtype}, this run's {leaf.dtype}")
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def checksum(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> str:
    """The sha256 of arrays and text; keys of a text that is not JSON's are made so."""
    text = json.dumps(json.loads(json.dumps(meta)), sort_keys=True)
    return hashlib.sha256(f"{sha256(sorted(arrays.items()))} {text}".encode()).hexdigest()


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    if sum(info.file_size for info in archive.infolist()) > RATIO * size:
        raise DamagedFile("it claims to hold more than it can")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > info.file_size:
            raise DamagedFile(f"an array of {dtype} {words(shape)} cannot be in {info.file_size} bytes")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
