"""Every attack on every method with every aggregation rule: how much of the gap is left with 20 % hostile clients.

    left = (L(theta) - L(optimum)) / (L(stable point) - L(optimum)),   mean over the last rounds

0 is the optimum, 1 is where retraining ends. An attack changes every entry of a report in every turn of a round; the
exceptions state what they leave (``profl.server.attacks``). ``profl`` has shared Jacobians and drift correction here:
its clients send models, gradients and Jacobians. Filters are off, and the estimator of Jacobians is Kalman's: neither
is what is measured, and the defaults take long to compile.

Of a method, a rule and a case there is one compiled program for all attacks (``coded``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import profl
from benchmarks.bench import Bench
from benchmarks.coded import ON_ESTIMATES, coded, plan_of, run_of
from profl_papers.claims import Part

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
ON_JACOBIANS = "jacobian"
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


METHODS = ("prm", "profl", "pofl", "two_stage", "pfl", "dfo")
"""In the order in which they begin: those that take longest first."""
ESTIMATING = ("pofl", "profl", "prm", "two_stage")
"""The methods whose clients estimate f, which ``f_hat`` attacks."""


def bench(seeds: int = 5, quick: bool = False) -> Bench:
    """The table; ``quick`` makes short runs of one case and one rule, which show its form but prove nothing."""
    names = tuple(CASES)[:1] if quick else CASES
    return Bench(
        {f"{name}, {method}": partial(of_method, name, method, seeds, quick) for method in METHODS for name in names}
    )


def of_method(name: str, method: str, seeds: int, quick: bool) -> Part:
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
    return Part(rows, [])


def runs(
    problem: profl.Problem, method: profl.methods.Method, settings: dict[str, Any], estimating: bool
) -> Iterator[tuple[str, profl.Run]]:
    """(attack, run) without an attack and with every one that can change something of this method's reports."""
    plan = plan_of(problem, method, **settings)
    jacobians = any(entry.kind == ON_JACOBIANS for entry in plan.report.values())
    idle = {ON_JACOBIANS: not jacobians, ON_ESTIMATES: not estimating}
    for name in ("none", *profl.server.ATTACKS):
        if not idle.get(name, False):
            yield name, run_of(problem, coded(plan, plan.population.hostile, name))[0]


def share_left(run: profl.Run) -> dict[str, Any]:
    """The share of the gap that is left, its mean over seeds and that of the worst seed; None where a seed diverged."""
    excess = np.mean(np.asarray(run.excess, np.float64)[:, -LAST:], axis=1)
    left = excess / (run.stable_risk - run.optimum_risk)
    diverged = int(np.sum(~np.isfinite(left)))
    if diverged:
        return {"left": None, "worst seed": None, "diverged": diverged}
    return {"left": float(left.mean()), "worst seed": float(left.max()), "diverged": 0}
