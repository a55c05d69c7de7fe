"""``python -m benchmarks dynamics``: people who react slowly, a world that moves by itself, and what a run finds.

Pricing with linear demand, ten clients, 500 samples a deployment. Figures are shares of the gap between the risk of the
stable point and that of the optimum, over the last fifth of a run; where the world drifts, both are those of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from profl.cases import group_pricing, housing, pricing, retail, strategic
from profl.methods import pofl, prm
from profl.methods.method import Method
from profl.problem.memory import drifting, slow, staggered
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Advance, Part, at_least, at_most, item, nothing

STEPS, SAMPLES, TAIL = 5, 500, 0.2
LONG, SHORT = 1000, 300
"""Deployments of a run; with a trend of 0.01 fewer, or demand would be gone."""

RATES = {0.5: 0.995, 0.2: 0.99, 0.1: 0.98, 0.05: 0.95}
"""Rate of the reaction -> share of the gap that must be closed."""
BETWEEN = (0.7, 0.35, 0.15, 0.07, 0.03)
"""Rates that no point of the estimator's grid is at, or that lie beyond it."""
GROUPS = (3, 10)
PRM_RATES = {0.5: 0.97, 0.2: 0.9}
PRM_DEPLOYMENTS = 60

DRIFTS: dict[str, tuple[dict[str, Any], int]] = {
    "trend -0.003": ({"trend": -0.003}, LONG),
    "trend 0.003": ({"trend": 0.003}, LONG),
    "trend -0.01": ({"trend": -0.01}, SHORT),
    "trend 0.01": ({"trend": 0.01}, SHORT),
    "season 0.5 of 50": ({"season": (0.5, 50)}, LONG),
}
FOLLOWED, FOLLOWED_SLOWLY = 0.015, 0.04
"""Of the gap, how far above the moving optimum at most; and where people react slowly besides."""
BOTH = [(rate, trend) for rate in (0.5, 0.2) for trend in (-0.003, 0.003)]

NO_WORSE = 1.1
SOON, ALARMS = 100, 0.01
"""Deployments after which memory and drift must be found, and the share of runs that may say so where there is none."""

PLAIN: dict[str, Callable[[], Problem]] = {
    "pricing": pricing,
    "pricing, exponential": partial(pricing, reaction="exponential"),
    "group_pricing": group_pricing,
    "strategic": strategic,
    "housing": housing,
    "retail": retail,
}
PARTS = 5
TRACKING, PLAINLY = pofl(jacobian="tracking"), pofl(jacobian="kalman")


def bench(seeds: int = 10, quick: bool = False, advance: Advance = nothing) -> dict[str, Any]:
    """All parts; ``quick`` makes runs a tenth as long."""
    shorter = 10 if quick else 1
    parts = (slowly, by_itself, unmoved, found, within_sixty)
    return item("dynamics", seeds, [partial(part, seeds, shorter) for part in parts], advance)


def run(problem: Problem, method: Method, seeds: int, deployments: int, steps: int = STEPS) -> Run:
    rounds = max(deployments // steps, 4)
    return simulate(
        problem,
        method,
        rounds=rounds,
        local_steps=steps,
        samples=SAMPLES,
        seeds=range(seeds),
        record_every=max(rounds // 40, 1),
        progress=False,
    )


def above(found: Run, gap: float | None = None) -> np.ndarray:
    """Of the gap, what is left over the last fifth, per seed."""
    return found.tail("excess", TAIL) / (found.stable_risk - found.optimum_risk if gap is None else gap)


def _row(world: str, method: str, left: np.ndarray, regret: np.ndarray) -> dict[str, Any]:
    return {
        "world": world,
        "method": method,
        "above PO, % of the gap": 100 * float(left.mean()),
        "worst seed": 100 * float(left.max()),
        "deployed regret": float(regret[:, -1].mean()),
    }


def slowly(seeds: int, shorter: int) -> Part:
    """People who react slowly, or in turn; the plain estimator beside."""
    case, rows, claims = pricing(), [], []
    worlds: dict[str, tuple[Problem, float | None]] = {
        f"rate {rate}": (slow(case, rate), share) for rate, share in RATES.items()
    }
    worlds |= {f"rate {rate}": (slow(case, rate), None) for rate in BETWEEN}
    worlds |= {f"{groups} groups in turn": (staggered(case, groups), None) for groups in GROUPS}
    for world, (problem, share) in worlds.items():
        for method in (TRACKING, PLAINLY):
            made = run(problem, method, seeds, LONG // shorter)
            left = above(made)
            rows.append(_row(world, method.settings()["jacobian"], left, made.deployed_regret))
            if share is not None and method == TRACKING:
                claims.append(at_least(f"{world}: share of the gap closed, mean over seeds", 1 - left.mean(), share))
    return Part(rows, claims)


def by_itself(seeds: int, shorter: int) -> Part:
    """A world that drifts, and people in it who react at once or slowly."""
    case, rows, claims = pricing(), [], []
    gap = case.risk(case.stable) - case.risk(case.optimum)
    for world, (drift, deployments) in DRIFTS.items():
        # prices end at an edge of their space where demand rises: then the gap of the beginning is the measure
        share = None if drift.get("trend") in (-0.003, 0.003) else gap
        for method in (TRACKING, PLAINLY):
            made = run(drifting(case, **drift), method, seeds, deployments // shorter)
            left = above(made, share)
            rows.append(_row(world, method.settings()["jacobian"], left, made.deployed_regret))
            if method == TRACKING:
                claims.append(at_most(f"{world}: above the moving optimum, of the gap", left.mean(), FOLLOWED))
    for rate, trend in BOTH:
        made = run(drifting(slow(case, rate), trend=trend), TRACKING, seeds, LONG // shorter)
        left, world = above(made), f"rate {rate}, trend {trend}"
        rows.append(_row(world, "Tracking", left, made.deployed_regret))
        claims.append(at_most(f"{world}: above the moving optimum, of the gap", left.mean(), FOLLOWED_SLOWLY))
    return Part(rows, claims)


def unmoved(seeds: int, shorter: int) -> Part:
    """Where there is neither memory nor drift, looking for them costs nothing."""
    rows, claims = [], []
    for name, make in PLAIN.items():
        runs = [run(make(), pofl(jacobian=each), seeds, LONG // shorter) for each in ("tracking", "kalman")]
        tails = [made.tail_excess().mean() for made in runs]
        rows.append({"problem": name, "excess": tails[0], "without looking": tails[1], "ratio": tails[0] / tails[1]})
        claims.append(at_most(f"{name}: excess over that without looking", tails[0] / tails[1], NO_WORSE, " times"))
    return Part(rows, claims)


def found(seeds: int, shorter: int) -> Part:
    """What a run says after 100 deployments, and how often it says so without a reason."""
    case, rows, claims = pricing(), [], []
    worlds = {
        **{f"rate {rate}": (slow(case, rate), "memory") for rate in (0.5, 0.2, 0.05)},
        **{f"trend {trend}": (drifting(case, trend=trend), "trend") for trend in (-0.003, 0.003)},
    }
    for world, (problem, what) in worlds.items():
        made = run(problem, TRACKING, seeds, SOON)
        share = getattr(made, what).significant.mean()
        rows.append(_said(world, made))
        claims.append(at_least(f"{world}: share of seeds that say so after {SOON} deployments", share, 1.0))
    alarms = []
    for name, make in PLAIN.items():
        made = run(make(), TRACKING, 3 * seeds, SOON)
        rows.append(_said(name, made))
        alarms += (made.memory.significant | made.trend.significant).tolist()  # type: ignore[union-attr]
    claims.append(at_most(f"share of {len(alarms)} runs that say so without a reason", np.mean(alarms), ALARMS))
    return Part(rows, claims)


def _said(world: str, made: Run) -> dict[str, Any]:
    slowness, moving = made.memory, made.trend
    assert slowness is not None
    assert moving is not None
    return {
        "world": world,
        "say slow": float(slowness.significant.mean()),
        "settling": float(slowness.settling.mean()),
        "say drift": float(moving.significant.mean()),
        "trend": float(moving.rate.mean()),
        "its error": float(moving.error.mean()),
    }


def within_sixty(seeds: int, shorter: int) -> Part:
    """prm, where deployments are few."""
    case, rows, claims = pricing(), [], []
    gap = case.risk(case.stable) - case.risk(case.optimum)
    for rate, share in PRM_RATES.items():
        made = run(slow(case, rate), prm(), seeds, PRM_DEPLOYMENTS, steps=1)
        left = made.excess[:, -1] / gap
        rows.append(_row(f"rate {rate}", "prm", left, made.deployed_regret))
        claims.append(at_least(f"prm, rate {rate}, {PRM_DEPLOYMENTS} deployments: gap closed", 1 - left.mean(), share))
    return Part(rows, claims)
