"""The parts of ``python -m benchmarks wild`` with the named problems, prm alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.wild.outcome import BEYOND, covered, run
from benchmarks.wild.table import STORE_WEEK, TABLE, WORST, quarter, store_week
from profl.methods.stopping import StopWhenSettled
from profl.problem import model_space
from profl_papers.claims import Part, at_least, at_most
from profl_papers.drawn.solver import Risk, minimum_nearby, solve

SAMPLES, SEEDS = 500, 5
COVERS = 0.8
"""Of the seeds, in how many the forecast's upper limit is to lie above the truth."""
WEEKS = 40
QUARTER_SAMPLES, QUARTER_SEEDS, QUARTER_LEFT = 100, 20, 0.01
LOCAL = "two minima"
"""The row that is judged by the minimum below its start."""


def row(name: str) -> Part:
    """One problem of the table: what is left in the mean and the worst seed, and whether the forecast covers it."""
    make, bar = TABLE[name]
    problem = make()
    known, ends = solve(problem), run(problem, "prm", SAMPLES, range(SEEDS))
    least = np.full(SEEDS, known.optimum_risk)
    if name == LOCAL:
        risk, bounds = Risk(problem), np.tile([model_space.bounds(problem.project)], (known.start.size, 1))
        starts = np.asarray(ends.run.theta[:, 0], float)
        least = np.array([risk.value(minimum_nearby(risk.total, start, bounds)) for start in starts])
    gap, excess = known.stable_risk - least, ends.end - least
    left = excess / gap
    figures = {"gap": known.gap, "share left": left.mean(), "worst seed": left.max()}
    above = int(np.sum(ends.end > ends.start + BEYOND * gap))
    claims = [
        at_most(f"{name}: share left", left.mean(), bar),
        at_most(f"{name}: share left, worst seed", left.max(), WORST * bar),
        at_most(f"{name}: seeds that end above their start", above, 0),
    ]
    seeds = {"share left": left, "start": (ends.start - least) / gap}
    if ends.forecast is not None and ends.error is not None:
        inside = covered(ends.forecast, ends.error, excess)
        claims.append(at_least(f"{name}: seeds whose forecast covers", inside.mean(), COVERS))
        seeds |= {"forecast": ends.forecast / gap, "error": ends.error / gap}
    if name == LOCAL:
        claims.append(at_least(f"{name}: said to be local", float("local minim" in str(ends.run.summary())), 1))
    return Part([{"part": "named", "problem": name, **figures, "per seed": seeds}], claims)


def weeks(samples: int) -> Part:
    """The store's weeks: the gain that is reached in the worst seed, of those that stop or do not warn."""
    problem, left_bar = store_week(), STORE_WEEK[samples]
    known, ends = solve(problem), run(problem, "prm", samples, range(SEEDS), rounds=WEEKS, stop=StopWhenSettled())
    gained = (ends.start - ends.end) / (ends.start - known.optimum_risk)
    warned = "WARNING" in str(ends.run.summary())
    unsure = np.array([warned and stop is None for stop in ends.run.settled])
    worst = float(np.min(np.where(unsure, 1.0, gained)))
    figures = {
        "gained": gained.mean(),
        "worst seed": gained.min(),
        "stopped": sum(each is not None for each in ends.run.settled),
    }
    figures["warned"] = int(warned)
    text = f"store week, n = {samples}: gain in the worst seed that stops or does not warn"
    table = [{"part": "named", "problem": f"store week, n = {samples}", **figures, "per seed": {"gained": gained}}]
    return Part(table, [at_least(text, worst, 1 - left_bar)])


def from_a_quarter() -> Part:
    """Linear demand from a quarter of the optimum: in every seed next to nothing is left."""
    problem = quarter()
    known = solve(problem)
    ends = run(problem, "prm", QUARTER_SAMPLES, range(QUARTER_SEEDS), rounds=WEEKS)
    excess = ends.end - known.optimum_risk
    figures = {"excess": excess.mean(), "worst seed": excess.max(), "per seed": {"excess": excess}}
    claim = at_most("from a quarter of the optimum: excess in the worst seed", excess.max(), QUARTER_LEFT)
    return Part([{"part": "named", "problem": "from a quarter", **figures}], [claim])


OTHERS: dict[str, Callable[[], Part]] = {
    **{f"store week, n = {samples}": partial(weeks, samples) for samples in STORE_WEEK},
    "from a quarter": from_a_quarter,
}
