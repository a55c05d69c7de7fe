"""What a run is, in words that stay the same from process to process; the checkpoint of another run has other words."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import jax.numpy as jnp

from profl.engines.plan import Plan
from profl.problem.problem import Problem
from profl.storage.fingerprint import describe, digest


def fingerprint(engine: str, problem: Problem, plan: Plan) -> dict[str, str]:
    """Everything that decides what a run computes, except how many rounds it has."""
    settings, population = plan.settings, plan.population
    method = settings.method
    assert is_dataclass(method)
    return {
        "engine": engine,
        "precision": str(jnp.zeros(()).dtype),
        "problem": problem.name,
        "loss": describe(problem.loss),
        "family": describe(problem.family),
        "reaction": describe(problem.reaction),
        "project": describe(problem.project),
        "signal": describe(problem.signal),
        "push": describe(problem.push),
        "clients": f"{population.weights.shape[0]} {digest(population.clients)}",
        "weights": digest(population.weights),
        "samples": digest(population.counts),
        "start": digest(plan.models),
        "seeds": str(plan.seeds),
        "local_steps": str(settings.local_steps),
        "participation": f"{settings.slots} {settings.scheme}",
        "record_every": str(settings.record_every),
        "attack": f"{describe(settings.attack)} {digest(population.hostile)}",
        "min_reports": str(settings.min_reports),
        "stop": describe(settings.stop),
        "method": method.name,
    } | {f"method.{field.name}": describe(getattr(method, field.name)) for field in fields(method)}
