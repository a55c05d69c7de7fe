"""What a run is, in words; the checkpoint of another run has other words."""

from __future__ import annotations

import jax.numpy as jnp

from profl.algorithms.base import Algorithm
from profl.engines.plan import Plan
from profl.problem.problem import Problem
from profl.storage.fingerprint import describe, describe_fields, digest


def fingerprint(engine: str, problem: Problem, algorithm: Algorithm, plan: Plan) -> dict[str, str]:
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
    } | {f"algorithm.{name}": text for name, text in describe_fields(algorithm)}
