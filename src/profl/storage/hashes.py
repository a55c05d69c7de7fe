"""Hashes of arrays and of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


def short(text: str | bytes) -> str:
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
