"""A live client's answer as a batch of fixed shape: checked, cast, padded; or a ``Failure`` that says what is wrong.

A batch may be a numpy array, a data frame or a pytree of arrays, with fewer or more rows than were asked for. Rows with
a missing cell (masked in a masked array, NA or None among pandas' objects) are left out and counted; NaN and Inf are
refused. The batch is a copy, so a client may change its array afterwards. It is padded to one of a few sizes with
copies of its first row that carry no weight, so that compiled code is found again.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks, trees
from profl.checks import InputError
from profl.problem.families import Family
from profl.problem.validation.samples import check_labels
from profl.typing import Batch, Theta

MAX_EXCESS = 64  # a client may send this many times the rows that were asked for
SQUARES = 1e6  # the sum of so many squares of the largest cell must be finite


class Failure(InputError):
    """Why a client takes no part in a round, in one line that can be shown and stored."""


class Overdue(Exception):
    """Raised inside a job whose result nobody waits for any more."""


def as_failure(error: BaseException) -> Failure:
    """A client's exception as a ``Failure``; the code that makes its text is the client's, and may itself raise."""
    if isinstance(error, Failure):
        return error
    try:
        if isinstance(error, InputError):
            return Failure(checks.words(f"sent a batch that cannot be used: {checks.words(error)}"))
        return Failure(checks.words(f"raised {type(error).__name__}: {checks.words(error)}"))
    except BaseException:
        return Failure("raised an error that cannot be shown")


class Delayed(NamedTuple):
    """A batch that an earlier deployment brought in: return it from ``deploy`` in place of the bare batch."""

    batch: Batch
    deployed: Theta  # the model that was deployed when the data came about


def deploy_at(client: Any, theta: Any, samples: int, **offered: Any) -> Any:
    """The client's answer to a deployment; to be run inside a time limit, the look-up of ``deploy`` included."""
    deploy = getattr(client, "deploy", None)
    if not callable(deploy):
        raise Failure("has no method deploy(theta, samples)")
    return deploy(theta, samples, **accepted_arguments(deploy, **offered))


def collect_at(client: Any, id: Any, theta: Any, samples: int) -> Any:
    """What deployment ``id``, which may have been made before a crash, has brought in; None if it was never made.

    Only a client with a method ``collect(id, theta, samples)`` knows; for any other one it counts as not made.
    """
    collect = getattr(client, "collect", None)
    return collect(id, theta, samples) if callable(collect) else None


def accepted_arguments(deploy: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Those of the ``offered`` arguments that a client's ``deploy`` names; ``**kwargs`` gets nothing.

    They are ``step``, the number of the deployment, and ``world``, the state of its simulated people.

    >>> accepted_arguments(lambda theta, samples, step: None, step=3, world=())
    {'step': 3}
    """
    try:
        parameters = inspect.signature(deploy).parameters
    except (TypeError, ValueError):  # a builtin has no signature
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: value for name, value in offered.items() if name in parameters and parameters[name].kind in by_name}


class Answer(NamedTuple):
    """What a deployment brought in."""

    batch: Batch
    deployed: Theta  # the model that brought it in
    missing: int  # rows with missing cells, which were left out


def read_answer(answer: Any, like: Batch, deployed: Theta, family: Family, requested: int) -> Answer:
    """The batch and the model that brought it in; raises ``InputError``, or ``Failure`` where there is no batch."""
    if isinstance(answer, Delayed):
        answer, earlier = answer
        checks.same_structure("the model of a Delayed batch", earlier, deployed)
        checks.finite_tree("the model of a Delayed batch", earlier)
        deployed = trees.cast(jax.tree.map(np.array, earlier))
    if answer is None:
        raise Failure("sent nothing")
    batch, missing = read(answer, like, requested)
    if rows(batch) == 0:
        raise Failure(f"sent nothing: all {missing} rows have missing values" if missing else "sent an empty batch")
    check_labels(family, family.labels(batch))
    return Answer(batch, deployed, missing)


def read(batch: Any, like: Batch, requested: int) -> tuple[Batch, int]:
    """(numpy arrays with the structure, shapes and dtypes of ``like``; the number of rows left out as incomplete).

    ``requested`` is the number of rows that the client was asked for.

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
    for entry, (path, leaf) in zip(_leaves(batch, like, structure), expected, strict=True):
        name = "a sample" + jax.tree_util.keystr(path)
        _check_size(entry, requested)
        cells.append((name, leaf, *_rows(entry, name, leaf.shape[1:], requested)))
    counts = sorted({len(array) for *_, array, _ in cells})
    if len(counts) > 1:
        raise InputError(f"every entry of a batch must have the same number of rows, got {counts}")
    complete = ~np.any([missing for *_, missing in cells], axis=0)
    arrays = [_cast(array[complete], name, leaf.dtype) for name, leaf, array, _ in cells]
    return jax.tree.unflatten(structure, arrays), int(np.sum(~complete))


def rows(batch: Batch) -> int:
    """The number of samples in a batch."""
    return len(jax.tree.leaves(batch)[0])


def pad(batch: Batch, n: int) -> Batch:
    """The batch with copies of its first row up to n rows, or up to n 2^k where it has more."""
    have = rows(batch)
    while n < have:
        n *= 2
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], n - have, axis=0)]), batch)


# -- the entries of a batch --------------------------------------------------------------------------------------------


def _leaves(batch: Any, like: Batch, structure: Any) -> list[Any]:
    """The entries of a batch in the order of ``like``."""
    if hasattr(batch, "columns") and hasattr(batch, "to_numpy"):
        return _frame_leaves(batch, like, structure)
    if structure == jax.tree.structure(0):  # a sample is one array: nested lists are an array, too
        return [batch]
    batch_structure = jax.tree.structure(batch, is_leaf=_is_column)
    if batch_structure != structure:
        raise InputError(f"a batch must have the structure {structure}, got {batch_structure}")
    return jax.tree.leaves(batch, is_leaf=_is_column)


def _frame_leaves(frame: Any, like: Batch, structure: Any) -> list[Any]:
    """The entries of a data frame: numbers are columns of that name, a vector is the columns that are left."""
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
    remaining = frame[[name for name in names if name not in scalars]] if vectors else None
    return jax.tree.leaves({name: frame[name] if name in scalars else remaining for name in like}, is_leaf=_is_column)


def _is_column(value: Any) -> bool:
    """Whether a value is a pandas column or frame."""
    return hasattr(value, "to_numpy")


# -- the cells of an entry ---------------------------------------------------------------------------------------------


def _check_size(entry: Any, requested: int) -> None:
    """Refuse too many rows before they are copied, where their number is known."""
    shape = getattr(entry, "shape", None)
    if not isinstance(shape, tuple):
        shape = (len(entry),) if hasattr(entry, "__len__") else ()
    count = shape[0] if shape else 0
    if count > MAX_EXCESS * requested:
        raise InputError(
            f"{count} rows are too many: {requested} were asked for, at most {MAX_EXCESS} times as many are taken"
        )


def _rows(entry: Any, name: str, shape: tuple[int, ...], requested: int) -> tuple[np.ndarray, np.ndarray]:
    """(the cells, one row per sample; which rows have a missing cell)."""
    array, none = _array(entry, name), _is_missing(entry)
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
    _check_size(array, requested)
    return array, np.any(missing.reshape(len(array), -1), axis=1)


def _array(entry: Any, name: str) -> Any:
    """The entry as a numpy array, which may be masked."""
    if isinstance(entry, np.ma.MaskedArray):
        return entry
    if hasattr(entry, "toarray"):  # a sparse matrix
        entry = entry.toarray()
    elif _is_column(entry):
        entry = entry.to_numpy()
    try:
        return np.ma.asarray(entry) if isinstance(entry, np.ma.MaskedArray) else np.asarray(entry)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name} must have rows of one shape: {error}") from None


def _is_missing(entry: Any) -> Any:
    """The cells of a pandas column or frame that are NA, which may come as NaN; where a dtype knows no NA, none is."""
    if not (_is_column(entry) and hasattr(entry, "isna")):
        return False
    missing = np.asarray(entry.isna())
    dtypes = entry.dtypes if missing.ndim == 2 else [entry.dtype]  # of every column
    return missing & np.squeeze([hasattr(dtype, "na_value") for dtype in dtypes])


def _numbers(array: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(objects as numbers, which of them are missing); refuses what is no number."""
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
            examples = ", ".join(map(str, np.unique(array[other])[:6]))
            raise InputError(f"{name} must be a whole number of {np.dtype(dtype)}, got {examples}, dtype {array.dtype}")
        return cast
    largest = np.sqrt(np.finfo(dtype).max / SQUARES)
    if bad := _bad_rows(~(np.abs(cast) <= largest)):
        raise InputError(
            f"{name} is as large as {float(np.abs(array).max()):.3g}, in {bad} of {len(array)} rows above "
            f"{largest:.2g}: sums of squares would overflow in {np.dtype(dtype)}; give it in larger units"
        )
    return cast


def _bad_rows(bad: np.ndarray) -> int:
    """The number of rows with at least one bad cell."""
    return int(np.sum(bad.reshape(len(bad), -1).any(axis=1))) if bad.size else 0
