"""Attacks as data: of a method, a rule and a problem there is one compiled program for all of them.

Hostile clients have a number in place of "hostile", the code of what they do; 0 is an honest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.results.callbacks import Watch
from profl.results.measure import Trace, make_run
from profl.results.record import Run
from profl.run.compiled.scan import run_compiled
from profl.run.config import RunConfig
from profl.run.plan import CompiledPlan, describe, make_plan
from profl.server import attacks
from profl.server.entries import Report
from profl.server.participation import hostile_clients
from profl.typing import Array, Theta

ON_ESTIMATES = "f_hat"


@dataclass(frozen=True)
class Coded(attacks.Attack):
    """The attack that the clients' codes name: 0 is honest, and the first of ``named`` is 1."""

    named: tuple[tuple[str, attacks.Attack], ...] = tuple(attacks.ATTACKS.items())

    def code(self, name: str) -> int:
        """The code of an attack; 0 for "none"."""
        return ["none", *dict(self.named)].index(name)

    def f_hat(self, f: Array) -> Array:
        return attacks.get(ON_ESTIMATES).f_hat(f)

    def estimate(self, f: Array, hostile: Array) -> Array:
        if ON_ESTIMATES not in dict(self.named):
            return f
        return jnp.where(hostile == self.code(ON_ESTIMATES), self.f_hat(f), f)

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def changed(attack: attacks.Attack) -> Callable[[Report], Report]:
            return lambda own: attacks.apply(attack, own, sent, first, hostile > 0)

        branches = [changed(attack) for _, attack in self.named]
        return jax.lax.switch(jnp.max(hostile), [lambda own: own, *branches], reports)


def plan_of(problem: Problem, method: Method, **settings: Any) -> CompiledPlan:
    """The plan of a run in which clients may attack."""
    return make_plan(problem, method, RunConfig(attack=Coded(), **settings))


def attacked(
    problem: Problem, method: Method, attacks: Sequence[tuple[str, float]], **settings: Any
) -> dict[tuple[str, float], Run]:
    """The runs under each attack with its share of hostile clients; "none" has no hostile ones."""
    plan = plan_of(problem, method, **settings)
    return {
        (name, share): run_of(problem, coded(plan, hostile_clients(share, problem.count), name))[0]
        for name, share in attacks
    }


def coded(plan: CompiledPlan, hostile: Any, name: str) -> CompiledPlan:
    """The plan in which the clients that are hostile attack so."""
    attack: Any = plan.settings.attack
    codes = jnp.where(jnp.asarray(hostile), jnp.int32(attack.code(name)), jnp.int32(0))
    return plan._replace(population=plan.population._replace(hostile=codes))


def run_of(problem: Problem, plan: CompiledPlan) -> tuple[Run, Trace]:
    """The run of a plan, and the trace that it was made from."""
    method, layout = plan.settings.method, describe(plan)
    trace = run_compiled(plan, method.name, False, None, Watch(problem, method, layout, ()))
    return make_run(problem, method, trace, layout, 0.0), trace
