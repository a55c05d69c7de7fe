"""The fingerprint of a run: text that is the same in every process and differs between runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax.numpy as jnp

from profl.methods.chain import Chain
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.run.plan import CompiledPlan
from profl.storage.fingerprint import entries
from profl.storage.hashes import digest
from profl.storage.values import ValueWalker


def fingerprint(engine: str, problem: Problem, plan: CompiledPlan) -> dict[str, str]:
    """Everything that decides what a run computes, except how many rounds it has.

    Raises ``InputError`` if a part has no stable description and ``problem.version`` does not stand for it.
    """
    settings, population = plan.settings, plan.population
    method = settings.method
    walk = ValueWalker()

    def words(name: str, value: Any) -> dict[str, str]:
        return entries(name, value, walk, problem.version)

    identity = {
        "engine": engine,
        "precision": str(jnp.zeros(()).dtype),
        "problem": problem.name,
        "version": str(problem.version),
        "clients": f"{population.weights.shape[0]} {digest(population.clients)}",
        "weights": digest(population.weights),
        "samples": digest(population.counts),
        "start": digest(plan.models),
        "seeds": str(plan.seeds),
        "local_steps": str(settings.local_steps),
        "participation": f"{settings.slots} {settings.scheme}",
        "record_every": str(settings.record_every),
        "hostile": digest(population.hostile),
        "min_reports": str(settings.min_reports),
        "method": method.name,
    }
    for name in ("loss", "family", "reaction", "project", "signal", "push"):
        identity |= words(name, getattr(problem, name))
    if problem.limits:
        identity |= words("limits", problem.limits)
    for name in ("attack", "stop"):
        identity |= words(name, getattr(settings, name))
    for name, value in method_settings(method):
        identity |= words(name, value)
    return identity | {f"package {name}": _version(name) for name in sorted(walk.packages)}


def method_settings(method: Method) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that a method was made with; the parts of a chain by their kind."""
    if isinstance(method, Chain):
        kinds = Counter(type(part).__name__ for part in method.parts)
        for i, part in enumerate(method.parts):
            kind = type(part).__name__
            yield f"method {kind}" if kinds[kind] == 1 else f"method {kind} {i}", part
        yield "method.pooled", method.pooled
        return
    assert is_dataclass(method)
    for field in fields(method):
        value = getattr(method, field.name)
        if value is not None or not field.metadata.get("unstated"):  # a later option that is not used
            yield f"method.{field.name}", value


def _version(package: str) -> str:
    try:
        return version(_DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return "unknown"


_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
