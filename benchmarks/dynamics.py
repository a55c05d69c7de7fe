"""``python -m benchmarks dynamics``: people who react slowly, a world that moves by itself, and what a run finds.

Pricing with linear demand, ten clients, 500 samples a deployment. Figures are shares of the gap between the risk of the
stable point and that of the optimum, over the last fifth of a run; where the world drifts, both are those of the time.
The estimator that looks for slow people and drift, ``jacobian="tracking"``, stands beside the default, ``"kalman"``.

A part has the worlds that share a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Row
from profl.cases import group_pricing, housing, pricing, retail, strategic
from profl.methods import pofl, prm
from profl.methods.method import Method
from profl.problem.memory import drifting, slow, staggered
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Claim, Part, at_least, at_most

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
FOUND_RATES, FOUND_TRENDS, ALARM = (0.5, 0.2, 0.05), (-0.003, 0.003), "says so without a reason"

PLAIN: dict[str, Callable[[], Problem]] = {
    "pricing": pricing,
    "pricing, exponential": partial(pricing, reaction="exponential"),
    "group_pricing": group_pricing,
    "strategic": strategic,
    "housing": housing,
    "retail": retail,
}
REPEATS = 3
"""How many times as many seeds say whether they are slow or drift where there is neither."""
TRACKING, PLAINLY = pofl(jacobian="tracking"), pofl(jacobian="kalman")


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` makes runs a tenth as long."""
    lengths = {"seeds": seeds, "shorter": 10 if quick else 1}
    parts: dict[str, Callable[[], Part]] = {
        "slow": partial(slowly, **lengths),
        "in turn": partial(in_turn, **lengths),
        "drifting": partial(by_itself, **lengths),
        "slow and drifting": partial(both, **lengths),
        **{f"unmoved, {name}": partial(unmoved, name, **lengths) for name in PLAIN},
        "prm": partial(within_sixty, **lengths),
    }
    return Bench(parts, of_all=alarms)


def run(problem: Problem, method: Method, seeds: int, deployments: int, steps: int = STEPS, first: int = 0) -> Run:
    rounds = max(deployments // steps, 4)
    return simulate(
        problem,
        method,
        rounds=rounds,
        local_steps=steps,
        samples=SAMPLES,
        seeds=range(first, first + seeds),
        record_every=max(rounds // 40, 1),
        progress=False,
    )


def above(found: Run, gap: float | None = None) -> np.ndarray:
    """Of the gap, what is left over the last fifth, per seed."""
    return found.tail("excess", TAIL) / (found.stable_risk - found.optimum_risk if gap is None else gap)


def _row(world: str, method: str, left: np.ndarray, regret: np.ndarray) -> Row:
    return {
        "part": "left",
        "world": world,
        "method": method,
        "above PO, % of the gap": 100 * float(left.mean()),
        "worst seed": 100 * float(left.max()),
        "deployed regret": float(regret[:, -1].mean()),
    }


def slowly(seeds: int, shorter: int) -> Part:
    """People who react slowly, at rates of the estimator's grid and at others; the plain estimator beside."""
    rows, claims = [], []
    for rate in (*RATES, *BETWEEN):
        world, problem = f"rate {rate}", slow(pricing(), rate)
        more, (left, _) = compared(world, problem, seeds, LONG // shorter)
        rows += more
        if rate in RATES:
            name = f"{world}: share of the gap closed, mean over seeds"
            claims.append(at_least(name, 1 - left.mean(), RATES[rate]))
    for rate in FOUND_RATES:
        said, claim = finds(f"rate {rate}", slow(pricing(), rate), "memory", seeds)
        rows.append(said)
        claims.append(claim)
    return Part(rows, claims)


def in_turn(seeds: int, shorter: int) -> Part:
    """Groups of people who react in turn, which no estimator here knows."""
    worlds = {f"{groups} groups in turn": staggered(pricing(), groups) for groups in GROUPS}
    return Part([row for name, each in worlds.items() for row in compared(name, each, seeds, LONG // shorter)[0]], [])


def compared(
    world: str, problem: Problem, seeds: int, deployments: int, gap: float | None = None
) -> tuple[list[Row], list[np.ndarray]]:
    """Rows, and what is left per seed, with tracking and with the plain estimator."""
    rows, shares = [], []
    for method in (TRACKING, PLAINLY):
        made = run(problem, method, seeds, deployments)
        shares.append(above(made, gap))
        rows.append(_row(world, method.settings()["jacobian"], shares[-1], made.deployed_regret))
    return rows, shares


def by_itself(seeds: int, shorter: int) -> Part:
    """A world that drifts, and people in it who react at once."""
    case, rows, claims = pricing(), [], []
    gap = case.risk(case.stable) - case.risk(case.optimum)
    for world, (drift, deployments) in DRIFTS.items():
        # prices end at an edge of their space where demand rises: then the gap of the beginning is the measure
        share = None if drift.get("trend") in FOUND_TRENDS else gap
        more, (left, _) = compared(world, drifting(case, **drift), seeds, deployments // shorter, share)
        rows += more
        claims.append(at_most(f"{world}: above the moving optimum, of the gap", left.mean(), FOLLOWED))
    for trend in FOUND_TRENDS:
        said, claim = finds(f"trend {trend}", drifting(case, trend=trend), "trend", seeds)
        rows.append(said)
        claims.append(claim)
    return Part(rows, claims)


def both(seeds: int, shorter: int) -> Part:
    """A world that drifts, and people in it who react slowly, with tracking alone."""
    rows, claims = [], []
    for rate, trend in BOTH:
        made = run(drifting(slow(pricing(), rate), trend=trend), TRACKING, seeds, LONG // shorter)
        left, world = above(made), f"rate {rate}, trend {trend}"
        rows.append(_row(world, "Tracking", left, made.deployed_regret))
        claims.append(at_most(f"{world}: above the moving optimum, of the gap", left.mean(), FOLLOWED_SLOWLY))
    return Part(rows, claims)


def unmoved(name: str, seeds: int, shorter: int) -> Part:
    """Where there is neither memory nor drift, looking for them costs nothing, and next to no run says there is."""
    runs = [run(PLAIN[name](), method, seeds, LONG // shorter) for method in (TRACKING, PLAINLY)]
    tails = [made.tail_excess().mean() for made in runs]
    ratio = tails[0] / tails[1]
    row = {"problem": name, "excess": tails[0], "without looking": tails[1], "ratio": ratio}
    rows: list[Row] = [{"part": "unmoved", **row}]
    for turn in range(REPEATS):
        made = run(PLAIN[name](), TRACKING, seeds, SOON, first=turn * seeds)
        said = _said(f"{name}, seeds from {turn * seeds}", made)
        wrong = made.memory.significant | made.trend.significant  # type: ignore[union-attr]
        rows.append(said | {"per seed": {ALARM: wrong}})
    return Part(rows, [at_most(f"{name}: excess over that without looking", ratio, NO_WORSE, " times")])


def finds(world: str, problem: Problem, what: str, seeds: int) -> tuple[Row, Claim]:
    """What runs say after SOON deployments, and whether all of them say what is so."""
    made = run(problem, TRACKING, seeds, SOON)
    share = getattr(made, what).significant.mean()
    return _said(world, made), at_least(f"{world}: share of seeds that say so after {SOON} deployments", share, 1.0)


def alarms(rows: Sequence[Row]) -> Part:
    """Of all runs where there is neither memory nor drift, the share that says so."""
    wrong = [each for row in rows for each in row.get("per seed", {}).get(ALARM, ())]
    return Part([], [at_most(f"share of {len(wrong)} runs that say so without a reason", np.mean(wrong), ALARMS)])


def _said(world: str, made: Run) -> Row:
    slowness, moving = made.memory, made.trend
    assert slowness is not None
    assert moving is not None
    return {
        "part": "said",
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
