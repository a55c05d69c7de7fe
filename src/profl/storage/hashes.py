"""Hashes of arrays and of texts, and arrays in words."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

SMALL = 8  # numbers of an array that are shown
_WORDS: dict[int, tuple[weakref.ref[Any], str]] = {}  # id of an array of JAX -> the array, its words


def short_hash(text: str | bytes) -> str:
    """Twelve digits that stand for a text."""
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def digest(tree: Any) -> str:
    """The first 16 digits of the sha256 of a tree's arrays and of where they stand in it.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros(2)}), digest(np.zeros(2)) == digest(np.zeros((2, 1)))
    (True, False)
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return sha256((jax.tree_util.keystr(path), leaf) for path, leaf in leaves)[:16]


def sha256(named: Iterable[tuple[str, Any]]) -> str:
    """Over the names, types, shapes and numbers of named arrays, in the order given."""
    total = hashlib.sha256()
    for name, leaf in named:
        array = np.asarray(leaf)
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def array_words(value: Any) -> str:
    """An array in words: its dtype, its shape, and its numbers or a hash of them.

    Arrays of JAX never change: each is read once.
    """
    if not isinstance(value, jax.Array):
        return _words(np.asarray(value))
    reference, words = _WORDS.get(id(value), (None, ""))
    if reference is not None and reference() is value:
        return words
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = f"{value.dtype} {_words(np.asarray(jax.random.key_data(value)))}"
    else:
        words = _words(np.asarray(value))
    _WORDS[id(value)] = (weakref.ref(value, functools.partial(_forget, id(value))), words)
    return words


def _words(array: np.ndarray) -> str:
    if array.dtype == object:
        return f"objects{array.shape} {short_hash(repr(array.tolist()))}"
    content = array.tolist() if array.size <= SMALL and array.dtype.kind in "biufc" else digest(array)
    return f"{array.dtype}{array.shape} {content}"


def _forget(key: int, _: Any) -> None:
    _WORDS.pop(key, None)
