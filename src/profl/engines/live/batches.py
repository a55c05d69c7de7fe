"""What a live client sends in, turned into a batch of fixed shape: checked, cast, padded.

A batch may be a numpy array, a pandas frame or a pytree of arrays, and it may hold fewer or more rows than were asked
for. It is padded to one of a few sizes with copies of its first row that carry no weight, so that compiled code is
found again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from profl.checks import InputError
from profl.typing import Batch, Theta


class Delayed(NamedTuple):
    """A batch that an earlier deployment brought in: return it from ``deploy`` in place of the bare batch."""

    batch: Batch
    deployed: Theta  # the model that was deployed when the data came about


def read(batch: Any, like: Batch) -> Batch:
    """``batch`` as a pytree of numpy arrays with the structure, shapes and dtypes of ``like``; its rows are checked.

    >>> read([[1, 2], [3, 4]], np.zeros((1, 2))).dtype
    dtype('float64')
    >>> read(np.ones((3, 4)), np.zeros((1, 2)))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: a sample must have shape (2,), got (4,)
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    arrays = [
        _leaf(found, path, leaf) for found, (path, leaf) in zip(_leaves(batch, like, structure), expected, strict=True)
    ]
    rows = sorted({len(array) for array in arrays})
    if len(rows) > 1:
        raise InputError(f"every entry of a batch must have the same number of rows, got {rows}")
    return jax.tree.unflatten(structure, arrays)


def rows(batch: Batch) -> int:
    return len(jax.tree.leaves(batch)[0])


def pad(batch: Batch, n: int) -> Batch:
    """The batch with copies of its first row up to n rows, or up to n 2^k where it has more."""
    have = rows(batch)
    while n < have:
        n *= 2
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], n - have, axis=0)]), batch)


def _leaves(batch: Any, like: Batch, structure: Any) -> list[Any]:
    """The entries of a batch in the order of ``like``."""
    if hasattr(batch, "columns") and hasattr(batch, "to_numpy"):
        return _frame_leaves(batch, like, structure)
    if structure == jax.tree.structure(0):  # a sample is one array: nested lists are an array, too
        return [batch]
    found = jax.tree.structure(batch, is_leaf=_is_column)
    if found != structure:
        raise InputError(f"a batch must have the structure {structure}, got {found}")
    return jax.tree.leaves(batch, is_leaf=_is_column)


def _frame_leaves(frame: Any, like: Batch, structure: Any) -> list[Any]:
    """A pandas frame: entries that are numbers are columns of that name, the one that is a vector is what is left."""
    if structure == jax.tree.structure(0):
        return [frame.to_numpy()]
    if not isinstance(like, dict):
        raise InputError("a pandas frame can stand for a sample that is a vector or a dict; return a pytree of arrays")
    numbers = [name for name, leaf in like.items() if np.ndim(leaf) == 1]
    vectors = [name for name, leaf in like.items() if np.ndim(leaf) == 2]
    missing = [name for name in numbers if name not in frame.columns]
    if missing or len(vectors) + len(numbers) != len(like) or len(vectors) > 1:
        raise InputError(
            f"a pandas frame needs columns {numbers} and, for {vectors or 'nothing'}, the columns that are left; "
            f"it has {list(frame.columns)}"
        )
    left = frame.drop(columns=numbers).to_numpy() if vectors else None
    return jax.tree.leaves({name: frame[name].to_numpy() if name in numbers else left for name in like})


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy")


def _leaf(found: Any, path: Any, like: Any) -> np.ndarray:
    name = "a sample" + jax.tree_util.keystr(path)
    array = np.asarray(found.to_numpy() if _is_column(found) else found)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.ndim == 0 or array.shape[1:] != like.shape[1:]:
        raise InputError(f"{name} must have shape {tuple(like.shape[1:])}, got {array.shape[1:]}")
    bad = int(np.sum(~np.isfinite(array).reshape(len(array), -1).all(axis=1))) if array.size else 0
    if bad:
        raise InputError(f"{name} is NaN or Inf in {bad} of {len(array)} rows")
    whole = np.issubdtype(like.dtype, np.integer)
    if whole and array.dtype.kind == "f" and np.any(array != np.floor(array)):
        raise InputError(f"{name} must be a whole number, got dtype {array.dtype}")
    return array.astype(like.dtype)
