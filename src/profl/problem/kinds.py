"""What people pass as the parts of a problem: the forms that are accepted, and words for the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.problem.families import Family
from profl.problem.misfits import FAMILIES
from profl.problem.reaction import Reaction, SampledReaction
from profl.typing import Client, Key, Theta


@dataclass(frozen=True, eq=False)
class Constant:
    """``initial`` of a problem that always starts from one model."""

    theta: Theta

    def __call__(self, key: Key) -> Theta:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), self.theta)


def initial(given: Any) -> Any:
    """A function of a key, also where one model was given."""
    if callable(given):
        return given
    leaves = jax.tree.leaves(given)
    if not leaves or any(np.asarray(leaf).dtype.kind not in "fiub" for leaf in leaves):
        raise checks.InputError(
            f"initial must be a model of numbers, or a function initial(key) -> theta, got {given!r}"
        )
    return Constant(given)


def family(given: Any) -> Family:
    """A ``Family``; a name or a class is not one."""
    if isinstance(given, Family):
        return given
    names = [f"profl.{cls.__name__}()" for cls in FAMILIES]
    near = checks.nearest(f"profl.{given}()", names) if isinstance(given, str) else None
    if isinstance(given, type) and issubclass(given, Family):
        near = f"{given.__name__}()"
    hint = f"; did you mean {near}?" if near else ""
    raise checks.InputError(f"family must be one of {', '.join(names)} or a profl.Family of yours, got {given!r}{hint}")


def reaction(given: Any) -> Reaction:
    """A ``Reaction``, also where a function that samples was given."""
    if isinstance(given, Reaction):
        return given
    if isinstance(given, type) and issubclass(given, Reaction):
        raise checks.InputError(f"reaction must be a reaction, not its class; did you mean {given.__name__}()?")
    return SampledReaction(function("reaction", "(key, theta, client, n) -> batch", given))


def function(name: str, signature: str, given: Any) -> Any:
    """``given``, where it can be called."""
    if not callable(given):
        raise checks.InputError(f"{name} must be a function {signature}, got {given!r}")
    return given


def hashable(name: str, given: Any) -> None:
    """Refuse a part that compiled code could not be found by: one without a hash, or that cannot be compared."""
    inner = given.function if isinstance(given, SampledReaction) else given
    kind = type(inner).__name__
    try:
        hash(given)
        odd = _compared_arrays(inner) or _compares_oddly(inner)
    except Exception as error:
        raise checks.InputError(
            f"{name} must be hashable, so that compiled code is found again, and {kind} is not "
            f"({checks.words(error)}): {FROZEN}"
        ) from error
    if odd:
        raise checks.InputError(
            f"{name} must be comparable, so that compiled code is found again: two of {kind} {odd}: {FROZEN}"
        )


FROZEN = "make it a frozen dataclass, @dataclass(frozen=True), with tuples in place of lists and arrays"


def _compared_arrays(given: Any) -> str:
    """The fields by which a dataclass is compared that are arrays, which have no answer to ==."""
    if not is_dataclass(given) or type(given).__eq__ is object.__eq__:
        return ""
    compared = [field.name for field in fields(given) if field.compare]
    arrays = [name for name in compared if isinstance(getattr(given, name, None), (np.ndarray, jax.Array))]
    return f"compare arrays, {', '.join(arrays)}" if arrays else ""


def _compares_oddly(given: Any) -> str:
    """Whether == of an object and its copy, or of the object and another thing, is no plain answer."""
    if type(given).__eq__ is object.__eq__:
        return ""
    try:
        other = copy.copy(given)
    except Exception:  # then nobody else will copy it, either
        other = given
    answers = [given == other, given == object()]
    plain = all(isinstance(answer, (bool, np.bool_)) for answer in answers)
    return "" if plain else f"compare to {checks.words(type(answers[0]).__name__)}, not to True or False"


def clients(given: Any) -> Client:
    """A pytree of arrays with one row per client, also where a list of dicts was given, one per client.

    >>> clients([{"gamma": 1.0}, {"gamma": 2.0}])
    {'gamma': array([1., 2.])}
    """
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, Mapping) for one in given):
        given = _stacked(given)
    leaves = jax.tree_util.tree_leaves_with_path(given)
    if not leaves:
        raise checks.InputError("clients must be a pytree with at least one leaf that has a row per client")
    for path, leaf in leaves:
        if np.asarray(leaf).dtype.kind not in "fiubV":
            raise checks.InputError(
                f"clients{jax.tree_util.keystr(path)} must hold numbers, got dtype {np.asarray(leaf).dtype}"
            )
    counts = sorted({np.shape(leaf)[0] if np.ndim(leaf) else 0 for _, leaf in leaves})
    if len(counts) > 1 or counts[0] < 1:
        raise checks.InputError(
            f"every leaf of clients must have one row per client, got leaves with {counts} rows; "
            "for n clients that do not differ, {'number': np.arange(n)}"
        )
    return jax.tree.map(np.asarray, given)


def _stacked(given: Any) -> Client:
    """Dicts, one per client, as one dict of arrays."""
    first = _shapes(given[0])
    for number, one in enumerate(given):
        if (shapes := _shapes(one)) != first:
            raise checks.InputError(
                f"all clients must have the same keys and shapes; client 0 has {first}, client {number} {shapes}: "
                "pad what is shorter, and say how many rows count"
            )
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *map(dict, given))


def _shapes(one: Mapping[str, Any]) -> str:
    return str(jax.tree.map(np.shape, dict(one)))
