"""The arguments of a ``Problem``: accepted forms are converted, others are refused with a hint."""

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
from profl.problem.reaction import Reaction, SampledReaction
from profl.problem.validation.samples import FAMILIES
from profl.typing import Client, Key, Theta

FROZEN = "make it a frozen dataclass, @dataclass(frozen=True), with tuples in place of lists and arrays"


@dataclass(frozen=True, eq=False)
class ConstantModel:
    """``initial`` of a problem that always starts from the same model."""

    theta: Theta

    def __call__(self, key: Key) -> Theta:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), self.theta)


def check_statement(problem: Any) -> dict[str, Any]:
    """What ``Problem`` and ``LiveProblem`` state alike, in its accepted form, by name."""
    checks.text("name", problem.name)
    if problem.version is not None:
        checks.text("version", problem.version)
    return {
        "loss": checks.function("loss", "(theta, z) -> number", problem.loss),
        "family": as_family(problem.family),
        "project": checks.function("project", "(theta) -> theta", problem.project),
        "signal": checks.function("signal", "(theta) -> vector", problem.signal),
    }


def as_initial(value: Any) -> Any:
    """A function of a key; a single model becomes a ``ConstantModel``."""
    if callable(value):
        return value
    leaves = jax.tree.leaves(value)
    if not leaves or any(np.asarray(leaf).dtype.kind not in "fiub" for leaf in leaves):
        raise checks.InputError(
            f"initial must be a model of numbers, or a function initial(key) -> theta, got {checks.shown(value)}"
        )
    return ConstantModel(value)


def as_family(value: Any) -> Family:
    """``value`` if it is a ``Family``; a name or a class is refused."""
    if isinstance(value, Family):
        return value
    names = [f"profl.{cls.__name__}()" for cls in FAMILIES]
    near = checks.nearest(f"profl.{value}()", names) if isinstance(value, str) else None
    hint = f"; did you mean {near}?" if near else ""
    raise checks.InputError(
        f"family must be one of {', '.join(names)} or a profl.Family of yours, got {checks.shown(value)}{hint}"
    )


def as_reaction(value: Any) -> Reaction:
    """A ``Reaction``; a function that samples becomes a ``SampledReaction``."""
    if isinstance(value, Reaction):
        return value
    if isinstance(value, type) and issubclass(value, Reaction):
        raise checks.InputError(f"reaction must be a reaction, not its class; did you mean {value.__name__}()?")
    return SampledReaction(checks.function("reaction", "(key, theta, client, n) -> batch", value))


def check_hashable(name: str, value: Any) -> None:
    """Refuse a part without a hash, or one that cannot be compared: JAX finds compiled code by both."""
    inner = value.function if isinstance(value, SampledReaction) else value
    kind = type(inner).__name__
    try:
        hash(value)
        fault = _array_fields(inner) or _comparison_fault(inner)
    except Exception as error:
        raise checks.InputError(
            f"{name} must be hashable, so that compiled code is found again, and {kind} is not "
            f"({checks.words(error)}): {FROZEN}"
        ) from error
    if fault:
        raise checks.InputError(
            f"{name} must be comparable, so that compiled code is found again: two of {kind} {fault}: {FROZEN}"
        )


def _array_fields(value: Any) -> str:
    """The compared fields of a dataclass that are arrays, in words: == of arrays is not True or False."""
    if not is_dataclass(value) or type(value).__eq__ is object.__eq__:
        return ""
    compared = [field.name for field in fields(value) if field.compare]
    arrays = [name for name in compared if isinstance(getattr(value, name, None), (np.ndarray, jax.Array))]
    return f"compare arrays, {', '.join(arrays)}" if arrays else ""


def _comparison_fault(value: Any) -> str:
    """What is wrong with == of an object and its copy, or of the object and another thing; "" for nothing."""
    if type(value).__eq__ is object.__eq__:
        return ""
    try:
        other = copy.copy(value)
    except Exception:  # then JAX cannot meet a copy of it either
        other = value
    answers = [value == other, value == object()]
    plain = all(isinstance(answer, (bool, np.bool_)) for answer in answers)
    return "" if plain else f"compare to {checks.words(type(answers[0]).__name__)}, not to True or False"


def as_clients(value: Any) -> Client:
    """A pytree of arrays with one row per client, also from a list of dicts, one per client.

    >>> as_clients([{"gamma": 1.0}, {"gamma": 2.0}])
    {'gamma': array([1., 2.])}
    """
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value):
        value = _stack_dicts(value)
    leaves = jax.tree_util.tree_leaves_with_path(value)
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
    return jax.tree.map(np.asarray, value)


def _stack_dicts(dicts: Any) -> Client:
    """One dict of arrays, from one dict per client."""
    first, *others = (str(jax.tree.map(np.shape, dict(one))) for one in dicts)
    for number, shapes in enumerate(others, 1):
        if shapes != first:
            raise checks.InputError(
                f"all clients must have the same keys and shapes; client 0 has {first}, client {number} {shapes}: "
                "pad what is shorter, and say how many rows count"
            )
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *map(dict, dicts))
