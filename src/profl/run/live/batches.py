"""What a live client sends in, turned into a batch of fixed shape: checked, cast, padded.

A batch may be a numpy array, a data frame or a pytree of arrays, and it may hold fewer or more rows than were asked
for. Rows with a missing cell (masked in a masked array, NA or None among pandas' objects) are left out and counted;
NaN and Inf are no missing values but wrong ones, and refused. What is left is a copy: a client that changes its array
afterwards changes nothing. It is padded to one of a few sizes with copies of its first row that carry no weight, so
that compiled code is found again.
"""

from __future__ import annotations

import numbers
from decimal import Decimal
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.checks import InputError
from profl.typing import Batch, Theta

MOST = 64  # times the rows that were asked for: what a client may send
SQUARES = 1e6  # squares of the largest cell that must have a finite sum


class Delayed(NamedTuple):
    """A batch that an earlier deployment brought in: return it from ``deploy`` in place of the bare batch."""

    batch: Batch
    deployed: Theta  # the model that was deployed when the data came about


def read(batch: Any, like: Batch, asked: int) -> tuple[Batch, int]:
    """``batch`` as a pytree of numpy arrays with the structure, shapes and dtypes of ``like``, and how many rows
    with missing cells were left out of it; ``asked`` rows were asked for.

    >>> read([[1, 2], [3, 4]], np.zeros((1, 2)), 2)[0].dtype
    dtype('float64')
    >>> read(np.ma.masked_less([[1.0, 2.0], [-9.0, 4.0]], 0.0), np.zeros((1, 2)), 2)
    (array([[1., 2.]]), 1)
    >>> read(np.ones((3, 4)), np.zeros((1, 2)), 2)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: a sample must have shape (2,), got (4,)
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(like)
    cells = []
    for found, (path, leaf) in zip(_leaves(batch, like, structure), expected, strict=True):
        name = "a sample" + jax.tree_util.keystr(path)
        _bounded(found, asked)
        cells.append((name, leaf, *_rows(found, name, leaf.shape[1:], asked)))
    counts = sorted({len(array) for *_, array, _ in cells})
    if len(counts) > 1:
        raise InputError(f"every entry of a batch must have the same number of rows, got {counts}")
    there = ~np.any([missing for *_, missing in cells], axis=0)
    arrays = [_cast(array[there], name, leaf.dtype) for name, leaf, array, _ in cells]
    return jax.tree.unflatten(structure, arrays), int(np.sum(~there))


def rows(batch: Batch) -> int:
    return len(jax.tree.leaves(batch)[0])


def pad(batch: Batch, n: int) -> Batch:
    """The batch with copies of its first row up to n rows, or up to n 2^k where it has more."""
    have = rows(batch)
    while n < have:
        n *= 2
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], n - have, axis=0)]), batch)


# -- which entries there are -------------------------------------------------------------------------------------------


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
    """A data frame: entries that are numbers are columns of that name, the one that is a vector is what is left."""
    if structure == jax.tree.structure(0):
        return [frame]
    if not isinstance(like, dict):
        raise InputError("a data frame can stand for a sample that is a vector or a dict; return a pytree of arrays")
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise InputError(f"the columns of a data frame must have different names, it has {names}")
    scalars = [name for name, leaf in like.items() if np.ndim(leaf) == 1]
    vectors = [name for name, leaf in like.items() if np.ndim(leaf) == 2]
    missing = [name for name in scalars if name not in names]
    if missing or len(vectors) + len(scalars) != len(like) or len(vectors) > 1:
        raise InputError(
            f"a data frame needs columns {scalars} and, for {vectors or 'nothing'}, the columns that are left; "
            f"it has {names}"
        )
    left = frame[[name for name in names if name not in scalars]] if vectors else None
    return jax.tree.leaves({name: frame[name] if name in scalars else left for name in like}, is_leaf=_is_column)


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy")


# -- what is in them ---------------------------------------------------------------------------------------------------


def _bounded(found: Any, asked: int) -> None:
    """Refuse too many rows before they are copied, where it can be seen."""
    shape = getattr(found, "shape", None)
    if not isinstance(shape, tuple):
        shape = (len(found),) if hasattr(found, "__len__") else ()
    count = shape[0] if shape else 0
    if count > MOST * asked:
        raise InputError(f"{count} rows are too many: {asked} were asked for, at most {MOST} times as many are taken")


def _rows(found: Any, name: str, shape: tuple[int, ...], asked: int) -> tuple[np.ndarray, np.ndarray]:
    """(the cells as they came, one row per sample; which rows have a missing one)."""
    array, none = _array(found, name), _absent(found)
    if array.ndim and len(array) == 0:
        return np.zeros((0, *shape)), np.zeros(0, bool)
    missing: np.ndarray = np.ma.getmaskarray(array) | none
    array = np.ma.getdata(array)
    if array.dtype == object:
        array, none = _numbers(array, name)
        missing = missing | none
    if array.dtype.kind not in "fiub":
        hint = ": convert text with astype(float)" if array.dtype.kind in "US" else ""
        raise InputError(f"{name} must hold numbers, got dtype {array.dtype}{hint}")
    if array.ndim == 0 or array.shape[1:] != shape:
        hint = ": one number per sample is batch[:, None]" if array.ndim == 1 and shape == (1,) else ""
        raise InputError(f"{name} must have shape {tuple(shape)}, got {array.shape[1:]}{hint}")
    _bounded(array, asked)
    return array, np.any(missing.reshape(len(array), -1), axis=1)


def _array(found: Any, name: str) -> Any:
    """What came, as a numpy array that may be masked."""
    if isinstance(found, np.ma.MaskedArray):
        return found
    if hasattr(found, "toarray"):  # a sparse matrix
        found = found.toarray()
    elif _is_column(found):
        found = found.to_numpy()
    try:
        return np.ma.asarray(found) if isinstance(found, np.ma.MaskedArray) else np.asarray(found)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name} must have rows of one shape: {error}") from None


def _absent(found: Any) -> Any:
    """The cells of a pandas column or frame that are NA, which may come as NaN; where a dtype knows no NA, none is."""
    if not (_is_column(found) and hasattr(found, "isna")):
        return False
    missing = np.asarray(found.isna())
    dtypes = found.dtypes if missing.ndim == 2 else [found.dtype]  # of every column
    return missing & np.squeeze([hasattr(dtype, "na_value") for dtype in dtypes])


def _numbers(array: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(objects as numbers, which of them are no value at all); refuses what is no number."""
    if array.ndim == 0:
        raise InputError(f"{name} must be an array with one row per sample, got a {type(array.item()).__name__}")
    values, none = np.zeros(array.shape), np.zeros(array.shape, bool)
    for place, value in np.ndenumerate(array):
        if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
            none[place] = True
        elif isinstance(value, (numbers.Real, Decimal, np.bool_)):
            values[place] = float(value)
        else:
            raise InputError(f"{name} must hold numbers, got {value!r:.80}, a {type(value).__name__}")
    return values, none


def _cast(array: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    """A copy in the dtype that is computed with; refuses what it cannot hold, or what would not stay finite in it."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
        finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, bool)
    if bad := _bad_rows(~finite):
        raise InputError(f"{name} is NaN or Inf in {bad} of {len(array)} rows")
    if not np.issubdtype(dtype, np.floating):
        if np.any(other := cast != array):
            shown = ", ".join(map(str, np.unique(array[other])[:6]))
            raise InputError(f"{name} must be a whole number of {np.dtype(dtype)}, got {shown}, dtype {array.dtype}")
        return cast
    largest = np.sqrt(np.finfo(dtype).max / SQUARES)
    if bad := _bad_rows(~(np.abs(cast) <= largest)):
        raise InputError(
            f"{name} is as large as {float(np.abs(array).max()):.3g}, in {bad} of {len(array)} rows above "
            f"{largest:.2g}: sums of squares would overflow in {np.dtype(dtype)}; give it in larger units"
        )
    return cast


def _bad_rows(bad: np.ndarray) -> int:
    return int(np.sum(bad.reshape(len(bad), -1).any(axis=1))) if bad.size else 0
