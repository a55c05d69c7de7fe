"""What a run is, in words that stay the same from process to process; the checkpoint of another run has other words."""

from __future__ import annotations

import functools
import hashlib
import types
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.algorithms.base import Algorithm
from profl.engines.plan import Plan
from profl.problem.problem import Problem

_DEPTH = 6


def facts(engine: str, problem: Problem, algorithm: Algorithm, plan: Plan) -> dict[str, str]:
    """Everything that decides what a run computes, except how many rounds it has."""
    settings, population = plan.settings, plan.population
    return {
        "engine": engine,
        "precision": str(jnp.zeros(()).dtype),
        "problem": problem.name,
        "loss": describe(problem.loss),
        "family": describe(problem.family),
        "reaction": describe(problem.reaction),
        "project": describe(problem.project),
        "signal": describe(problem.signal),
        "clients": f"{population.weights.shape[0]} {_digest(population.clients)}",
        "weights": _digest(population.weights),
        "samples": _digest(population.counts),
        "start": _digest(plan.models),
        "seeds": str(plan.seeds),
        "local_steps": str(settings.local_steps),
        "participation": f"{settings.slots} {settings.scheme}",
        "record_every": str(settings.record_every),
        "attack": f"{describe(settings.attack)} {_digest(population.hostile)}",
        "min_reports": str(settings.min_reports),
    } | {f"algorithm.{name}": text for name, text in _fields(algorithm, _DEPTH)}


def describe(value: Any, depth: int = _DEPTH) -> str:
    """A value in words that hold in every process: no addresses; functions by their name and their code.

    >>> print(describe(functools.partial(max, 1.0)), describe({"a": [1, "b"]}))
    partial(builtins.max, [1.0], {}) {'a': [1, 'b']}
    """
    if depth == 0 or value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if depth else "..."
    below = functools.partial(describe, depth=depth - 1)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _digest(value)
    if isinstance(value, functools.partial):
        return f"partial({below(value.func)}, {below(list(value.args))}, {below(value.keywords)})"
    if isinstance(value, types.MethodType):
        return f"{below(value.__func__)} of {below(value.__self__)}"
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {below(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(below(item) for item in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}({', '.join(f'{name}={text}' for name, text in _fields(value, depth - 1))})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _fields(value: Any, depth: int) -> list[tuple[str, str]]:
    return [(field.name, describe(getattr(value, field.name), depth)) for field in fields(value)]


def _function(function: types.FunctionType, depth: int) -> str:
    code = hashlib.sha256(_code(function.__code__)).hexdigest()[:12]
    caught = [describe(cell.cell_contents, depth - 1) for cell in function.__closure__ or ()]
    return f"{function.__module__}.{function.__qualname__} {code}{' ' + str(caught) if caught else ''}"


def _code(code: types.CodeType) -> bytes:
    """What a function does, without the file and the line where it stands."""
    consts = b"".join(_code(c) if isinstance(c, types.CodeType) else repr(c).encode() for c in code.co_consts)
    return code.co_code + consts + " ".join(code.co_names).encode()


def _digest(tree: Any) -> str:
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]
