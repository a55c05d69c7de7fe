"""Every attack on every method with every aggregation rule: how much of the gap is left with 20 % hostile clients.

    left = (L(theta) - L(optimum)) / (L(stable point) - L(optimum)),   mean over the last rounds

0 is the optimum, 1 is where retraining ends. An attack changes every entry of a report in every turn of a round; the
exceptions state what they leave (``profl.server.attacks``). ``profl`` has shared Jacobians and drift correction here:
its clients send models, gradients and Jacobians. Filters are off, and the estimator of Jacobians is Kalman's: neither
is what is measured, and the defaults take long to compile.

Of a method, a rule and a case there is one compiled program for all attacks (``Coded``). Cases run in processes of
their own with every method, as many at a time as there are cores.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import profl
from profl.results.callbacks import Watch
from profl.results.measure import make_run
from profl.run.compiled.scan import run_compiled
from profl.run.config import RunConfig
from profl.run.plan import CompiledPlan, describe, make_plan
from profl.server import attacks
from profl.server.entries import Report
from profl.typing import Array, Theta

HOSTILE = 0.2
RULES = (
    "mean",
    "median",
    "trimmed_mean",
    "geometric_median",
    "krum",
    "centred_clipping",
    "nnm+trimmed_mean",
    "history",
)
QUICK_RULES = ("median",)
ON_ESTIMATES, ON_JACOBIANS = "f_hat", "jacobian"
CODES = {name: 1 + number for number, name in enumerate(attacks.ATTACKS)}
"""Attack -> what a hostile client's code is under it; that of an honest one is 0."""
CLIENTS, SAMPLES, LAST = 10, 100, 5
"""Clients, samples of a deployment, and records at the end over which the excess is averaged."""


class Case(NamedTuple):
    """A problem and what suits it: a learning rate, and a radius of exploration for the methods that need one."""

    make: Callable[[], profl.Problem]
    rate: float
    radius: float


class Length(NamedTuple):
    rounds: int
    local_steps: int


CASES = {
    "housing": Case(partial(profl.cases.housing, CLIENTS, heterogeneity=0.5), 0.03, 1.0),
    "pricing": Case(partial(profl.cases.pricing, CLIENTS, heterogeneity=0.5), 0.05, 1.0),
    "orange_juice": Case(partial(profl.cases.orange_juice, CLIENTS), 0.3, 0.1),
}
STEADY, RARE, QUICK = Length(40, 5), Length(20, 1), 6
"""Of methods that take small steps, and of those that fit the reaction and deploy seldom; rounds of a quick form."""
EXPLORED, KEEP = 14, 8
"""Deployments that ``two_stage`` explores with; batches that ``prm`` minimises over: fewer than by default, quicker."""


def methods(case: Case, rule: str) -> dict[str, tuple[profl.methods.Method, Length]]:
    """All methods with one rule, and how long each runs."""
    everything = profl.profl(
        case.rate, jacobian="kalman", filter="none", share="shrink", correction="scaffold", aggregate=rule
    )
    return {
        "pfl": (profl.pfl(case.rate, aggregate=rule), STEADY),
        "pofl": (profl.pofl(case.rate, jacobian="kalman", aggregate=rule), STEADY),
        "profl": (everything, STEADY),
        "prm": (profl.prm(aggregate=rule, keep=KEEP), RARE),
        "two_stage": (profl.two_stage(EXPLORED, case.radius, aggregate=rule), RARE),
        "dfo": (profl.dfo(case.rate, case.radius / 2, aggregate=rule), STEADY),
    }


METHODS = ("pfl", "pofl", "profl", "prm", "two_stage", "dfo")
LONGEST_FIRST = ("prm", "profl", "pofl", "two_stage", "pfl", "dfo")
ESTIMATING = ("pofl", "profl", "prm", "two_stage")
"""The methods whose clients estimate f, which ``f_hat`` attacks."""


@dataclass(frozen=True)
class Coded(attacks.Attack):
    """The attack that the clients' ``CODES`` name. They are data, so all attacks share one compiled program."""

    def f_hat(self, f: Array) -> Array:
        return attacks.get(ON_ESTIMATES).f_hat(f)

    def estimate(self, f: Array, hostile: Array) -> Array:
        return jnp.where(hostile == CODES[ON_ESTIMATES], self.f_hat(f), f)

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def changed(name: str) -> Callable[[Report], Report]:
            return lambda own: attacks.apply(attacks.get(name), own, sent, first, hostile > 0)

        return jax.lax.switch(jnp.max(hostile), [lambda own: own, *map(changed, CODES)], reports)


def bench(
    seeds: int = 5,
    quick: bool = False,
    progress: bool = False,
    advance: Callable[[int], None] = lambda steps: None,
    cases: tuple[str, ...] = tuple(CASES),
) -> dict[str, Any]:
    """The table; ``quick`` makes short runs of one case and one rule, which show its form but prove nothing."""
    started = time.perf_counter()
    names = cases[:1] if quick else cases
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count() or 1, context) as pool:
        cells = [pool.submit(of_method, name, method, seeds, quick) for method in LONGEST_FIRST for name in names]
        for cell in as_completed(cells):
            rows += cell.result()
            advance(1)
    rows.sort(key=lambda row: (names.index(row["case"]), METHODS.index(row["method"]), RULES.index(row["rule"])))
    return {"item": "attacks", "seeds": seeds, "seconds": time.perf_counter() - started, "rows": rows, "claims": []}


PARTS = len(CASES) * len(METHODS)


def of_method(name: str, method: str, seeds: int, quick: bool) -> list[dict[str, Any]]:
    """The rows of one method on one case; a line on stderr after every rule."""
    case, rows = CASES[name], []
    problem = case.make()
    for rule in QUICK_RULES if quick else RULES:
        began = time.perf_counter()
        chosen, length = methods(case, rule)[method]
        settings = {
            "rounds": QUICK if quick else length.rounds,
            "local_steps": length.local_steps,
            "samples": SAMPLES,
            "seeds": range(seeds),
            "hostile": HOSTILE,
        }
        for attack, run in runs(problem, chosen, settings, method in ESTIMATING):
            rows.append({"case": name, "method": method, "rule": rule, "attack": attack, **share_left(run)})
        took = time.perf_counter() - began
        print(f"{name}, {method}, {rule}: {took:.0f} s", file=sys.stderr, flush=True)
    return rows


def runs(
    problem: profl.Problem, method: profl.methods.Method, settings: dict[str, Any], estimating: bool
) -> Iterator[tuple[str, profl.Run]]:
    """(attack, run) without an attack and with every one that can change something of this method's reports."""
    plan = make_plan(problem, method, RunConfig(attack=Coded(), **settings))
    jacobians = any(entry.kind == ON_JACOBIANS for entry in plan.report.values())
    idle = {ON_JACOBIANS: not jacobians, ON_ESTIMATES: not estimating}
    for name, code in {"none": 0, **CODES}.items():
        if not idle.get(name, False):
            yield name, coded_run(problem, plan, code)


def coded_run(problem: profl.Problem, plan: CompiledPlan, code: int) -> profl.Run:
    """A run whose hostile clients attack as the code says."""
    hostile = jnp.where(plan.population.hostile, jnp.int32(code), jnp.int32(0))
    plan = plan._replace(population=plan.population._replace(hostile=hostile))
    method, layout = plan.settings.method, describe(plan)
    watch = Watch(problem, method, layout, ())
    return make_run(problem, method, run_compiled(plan, method.name, False, None, watch), layout, 0.0)


def share_left(run: profl.Run) -> dict[str, Any]:
    """The share of the gap that is left, its mean over seeds and that of the worst seed; None where a seed diverged."""
    excess = np.mean(np.asarray(run.excess, np.float64)[:, -LAST:], axis=1)
    left = excess / (run.stable_risk - run.optimum_risk)
    diverged = int(np.sum(~np.isfinite(left)))
    if diverged:
        return {"left": None, "worst seed": None, "diverged": diverged}
    return {"left": float(left.mean()), "worst seed": float(left.max()), "diverged": 0}
