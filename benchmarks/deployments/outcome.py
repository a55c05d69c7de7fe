"""What one method made of one problem, seed by seed: the figures that ``python -m benchmarks deployments`` compares."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.problem.problem import Problem
from profl.results.record import Run
from profl_papers.measures import drawn

NONE = 1e-12
"""An excess or a gap that is none: below what double precision can tell of these risks."""
STARTS = 64
"""Models that tell how far apart runs start."""


class Outcome(NamedTuple):
    """Arrays have one entry, or row, per seed; a seed that diverged has an infinite excess and regret."""

    setting: str  # what the method was run with, of what was tried
    excess: np.ndarray  # (seeds, 1 + deployments): of the model after each deployment
    regret: np.ndarray  # mean over the deployments of what was deployed
    accuracy: np.ndarray | None  # at the end, minus the optimum's
    diverged: np.ndarray

    @property
    def end(self) -> np.ndarray:
        """The excess after the last deployment."""
        return self.excess[:, -1]

    def share(self, gap: float, deployments: int = -1) -> np.ndarray:
        """Of L(PS) - L(PO), what is left."""
        return self.excess[:, deployments] / gap


def outcome(problem: Problem, run: Run, setting: str = "", deployments: int = -1) -> Outcome:
    """Of a run that records every round of one local step, or of its first ``deployments``."""
    gone = ~np.isfinite(run.excess[:, deployments])
    accuracy = None
    if run.accuracy is not None:
        accuracy = run.accuracy[:, deployments] - problem.accuracy(problem.optimum)
    excess = np.where(np.isfinite(run.excess), run.excess, np.inf)
    regret = np.where(np.isfinite(run.deployed_regret[:, deployments]), run.deployed_regret[:, deployments], np.inf)
    return Outcome(setting, excess if deployments < 0 else excess[:, : deployments + 1], regret, accuracy, gone)


def starts(problem: Problem) -> np.ndarray:
    """Some of the models that runs start from, (STARTS, size)."""
    keys = jax.vmap(lambda seed: random.start_key(random.seed_key(seed)))(jnp.arange(STARTS))
    return np.asarray(jax.vmap(lambda key: trees.ravel(problem.initial(key)))(keys), float)


def start_spread(problem: Problem) -> np.ndarray:
    """The standard deviation of every parameter of where runs start."""
    return starts(problem).std(0)


def table_row(part: str, method: str, found: Outcome, gap: float) -> dict[str, Any]:
    """Means over seeds for the table, and every seed for the file."""
    row: dict[str, Any] = {"part": part, "method": method, "setting": found.setting}
    if gap > 0:
        row["share left"] = found.share(gap).mean()
    row |= {"excess": found.end.mean(), "worst seed": found.end.max(), "regret": found.regret.mean()}
    if found.accuracy is not None:
        row["accuracy over the optimum's, points"] = 100 * found.accuracy.mean()
    seeds = {"excess": found.end, "regret": found.regret, "diverged": found.diverged}
    if found.accuracy is not None:
        seeds["accuracy"] = found.accuracy
    if gap > 0:
        seeds["share left"] = found.share(gap)
    return row | {"diverged": int(found.diverged.sum()), "per seed": seeds, "line": line(method, found)}


def line(label: str, found: Outcome) -> dict[str, Any]:
    """Excess after each deployment, as ``profl.results.plots`` draws it: mean, lowest and highest seed."""
    of = {"mean": found.excess.mean(0), "low": found.excess.min(0), "high": found.excess.max(0)}
    numbers = {"x": np.arange(found.excess.shape[1]), **of}
    return {"label": label, **{name: [drawn(value) for value in values] for name, values in numbers.items()}}
