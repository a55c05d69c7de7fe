"""``coverage``, a part of ``python -m benchmarks analyst``: how often the intervals of ``run.forecast`` hold the truth.

Every shipped case with ``prm``, one deployment a round and 500 samples each. Per case and number of deployments: the
share of 90 % intervals that hold the exact answer, for the optimum (all its numbers), for its gain over the first
model, and for what is left to gain; and the median of the intervals' widths over the true size, where the size of the
optimum is its distance from the first model.

``stable``: the same for ``run.stable_errors`` of repeated retraining, beside the exact asymptotic errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import cases, theory, trees
from profl.data.dataset import MissingDataError
from profl.methods import pfl, prm, rgd
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most

LEVEL, LEAST, MOST = 0.9, 0.80, 0.97
"""Of the intervals, and the shares between which they are to hold the truth: always is too wide."""
DEPLOYMENTS = 15, 30
SAMPLES = 500
ROUNDING = 1e-6
"""Share of a model's number, and of the risk, by which an end may be off: models are in single precision."""
WITHOUT = {"network": "its hidden units can be exchanged: there are many optima, and prm searches one valley"}
"""Cases that are left out, and why."""
CHUNK = 20
"""Seeds that run together: what memory holds."""


class Retraining(NamedTuple):
    """A run of repeated retraining."""

    problem: Callable[[], Problem]
    method: Method
    rounds: int


RETRAINING = {
    "pricing, rgd": Retraining(cases.pricing, rgd(0.2), 400),
    "pricing, pfl": Retraining(cases.pricing, pfl(0.2), 400),
    "mean estimation, rgd": Retraining(partial(cases.mean_estimation, sensitivity=0.5), rgd(0.5), 400),
    "mean estimation, pfl": Retraining(partial(cases.mean_estimation, sensitivity=0.5), pfl(0.5), 400),
    "strategic, rgd": Retraining(cases.strategic, rgd(0.5), 800),
    "strategic, pfl": Retraining(cases.strategic, pfl(0.5), 800),
}


def parts(seeds: int, quick: bool) -> dict[str, Callable[[], Part]]:
    """All parts by their names; ``quick`` takes four seeds and eight deployments, and proves nothing."""
    names = [name for name in cases.CASES if name not in WITHOUT]
    both = {f"coverage, {name}": partial(coverage, name, 4 if quick else seeds, quick) for name in names}
    return both | {f"stable, {name}": partial(stable, name, 4 if quick else seeds) for name in RETRAINING}


def coverage(name: str, seeds: int, quick: bool = False) -> Part:
    """The share of intervals that hold the truth on one case."""
    try:
        problem = cases.get(name)()
    except MissingDataError as error:
        return Part([{"part": "coverage", "case": name, "left out": str(error)}], [])
    rows: list[dict[str, Any]] = []
    claims = []
    for rounds in (8,) if quick else DEPLOYMENTS:
        found = [held_by_seed(problem, rounds, range(i, min(i + CHUNK, seeds))) for i in range(0, seeds, CHUNK)]
        held, width = (np.concatenate(each) for each in zip(*found, strict=True))
        row = {"part": "coverage", "case": name, "deployments": rounds, "seeds": seeds}
        for what, share, wide in zip(("optimum", "gain", "excess"), held.mean(0), np.median(width, 0), strict=True):
            rows.append({**row, "of": what, "coverage": share, "width": wide})
            claim = f"{name}: share of intervals that hold the {what} after {rounds}"
            claims += [at_least(claim, share, LEAST), at_most(claim, share, MOST)]
    return Part(rows, claims)


def held_by_seed(problem: Problem, rounds: int, seeds: range) -> tuple[np.ndarray, np.ndarray]:
    """(whether each interval holds the truth, its width over the true size), (seeds, 3): optimum, gain, excess."""
    run = simulate(
        problem, prm(), rounds=rounds, local_steps=1, samples=SAMPLES, seeds=seeds, record_every=rounds, progress=False
    )
    optimum, held, width = flat(problem.optimum), [], []
    for seed in range(len(seeds)):
        known, start = run.forecast(seed, level=LEVEL), flat(trees.take(run.theta, (seed, 0)))
        lower, upper = flat(known.optimum.lower), flat(known.optimum.upper)
        slack = ROUNDING * np.maximum(1.0, np.abs(optimum))
        models = np.mean((lower - slack <= optimum) & (optimum <= upper + slack))
        gain, excess, slack = run.excess[seed, 0], run.excess[seed, -1], ROUNDING * np.abs(run.risk[seed, 0])
        inside = [one.lower - slack <= truth <= one.upper + slack for one, truth in figures(known, gain, excess)]
        far = np.maximum(np.abs(optimum - start), slack)
        sizes = [(one.upper - one.lower) / max(truth, slack) for one, truth in figures(known, gain, excess)]
        held.append([models, *inside])
        width.append([np.mean((upper - lower) / far), *sizes])
    return np.array(held, float), np.array(width)


def figures(known: Any, gain: float, excess: float) -> list[tuple[Any, float]]:
    """The intervals of two numbers, each with the truth."""
    return [(known.gain, gain), (known.excess, excess)]


def stable(name: str, seeds: int) -> Part:
    """The share of intervals around the mean of retraining's models that hold the stable point."""
    each = RETRAINING[name]
    problem = each.problem()
    run = simulate(
        problem, each.method, rounds=each.rounds, local_steps=1, samples=100, seeds=range(seeds), progress=False
    )
    known, truth = run.stable_errors(level=LEVEL), flat(problem.stable)
    lower, upper, error = known.lower, known.upper, known.error
    exact = flat(theory.stable_covariance(problem).errors(known.batches * known.length, 100))
    held = float(np.mean((lower <= truth) & (truth <= upper)))
    ratio = float(np.mean(np.sqrt(np.mean(np.asarray(error) ** 2, 0)) / exact))
    row = {"part": "stable", "case": name, "seeds": seeds, "coverage": held, "error over the exact one": ratio}
    claim = f"{name}: share of intervals that hold the stable point"
    return Part([row], [at_least(claim, held, LEAST), at_most(claim, held, MOST)])


def flat(theta: Any) -> np.ndarray:
    """A model's numbers as one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])
