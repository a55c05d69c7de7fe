"""One table or figure of the paper as data: its settings beside the paper's row, how to run it, what it must show.

An item's ``run`` gets a ``Trial`` and reads every number it uses from ``trial.settings``, so what a result states as
its settings is what was run. A result is plain data, ready for JSON; its form is in ``profl.experiments.reproduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from profl.algorithms.base import Algorithm
from profl.data.registry import find
from profl.engines.simulate import simulate
from profl.experiments.claims import Claim
from profl.problem.problem import Problem
from profl.results.record import Run, mean_over_seeds

POINTS = 101
QUICK_ROUNDS = 10


class Found(NamedTuple):
    """What an item found: rows of its table, its claims, and its figure as panels."""

    rows: list[dict[str, Any]]
    claims: list[Claim]
    panels: list[dict[str, Any]]


class Trial(NamedTuple):
    """The settings of an item and the seeds to run them with."""

    settings: dict[str, Any]
    seeds: tuple[int, ...]

    def simulate(self, problem: Problem, algorithm: Algorithm, **changes: Any) -> Run:
        """A run with the item's rounds, local steps and samples, unless ``changes`` says otherwise."""
        own = {"rounds": self.settings["rounds"], "local_steps": self.settings["R"], "samples": self.settings["n"]}
        return simulate(problem, algorithm, **{**own, **changes}, seeds=self.seeds, progress=False)


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Args:
      name: as on the command line, "fig2a".
      title: what it shows, in one line.
      paper: the row of the paper's parameter table.
      settings: what is run here; ``eta``, ``R``, ``n`` and ``rounds`` at least, unless the run sets them itself.
      why: where ``settings`` differ from the paper's row, why.
      run: the runs, rows, claims and panels.
      data: the real data sets it needs.
    """

    name: str
    title: str
    paper: dict[str, Any]
    settings: dict[str, Any]
    why: str
    run: Callable[[Trial], Found]
    data: tuple[str, ...] = field(default=())

    def trial(self, seeds: Iterable[int], quick: bool = False) -> Trial:
        """What to run; ``quick`` cuts the rounds, which shows the form of the result and proves nothing."""
        settings = dict(self.settings)
        if quick:
            settings["rounds"] = min(settings["rounds"], QUICK_ROUNDS)
        return Trial(settings, tuple(seeds))

    def check_data(self) -> None:
        """Refuse, with the command that gets it, where a data set the item needs is missing or damaged."""
        for name in self.data:
            find(name)


def panel(
    title: str, lines: Sequence[dict[str, Any]], levels: dict[str, float], y: str = "performative risk", **more: Any
) -> dict[str, Any]:
    """A plot: lines with bands over seeds, and horizontal lines at known levels."""
    named = [{"label": label, "value": _digits(value)} for label, value in levels.items()]
    return {"title": title, "x": "deployments per client", "y": y, "scale": "linear", **more} | {
        "lines": list(lines),
        "levels": named,
    }


def line(run: Run, label: str, values: str = "risk") -> dict[str, Any]:
    """Mean, lowest and highest over the seeds that did not diverge, against deployments per client."""
    records = np.unique(np.linspace(0, run.rounds.size - 1, POINTS).round().astype(int))
    series = getattr(run, values)[:, records]
    good = series[~run.diverged]
    mean = mean_over_seeds(run, series)
    low, high = (good.min(0), good.max(0)) if len(good) else (mean, mean)
    x = run.deployments.mean(0)[records] / run.settings["clients"]
    numbers = {"x": x, "mean": mean, "low": low, "high": high}
    return {"label": label, "method": run.algorithm} | {
        key: [_digits(v) for v in array] for key, array in numbers.items()
    }


def known(run: Run) -> dict[str, float]:
    """The risks at the optimum and at the stable point."""
    return {"optimum (PO)": run.optimum_risk, "stable point (PS)": run.stable_risk}


def mean(values: Any) -> float:
    return float(np.mean(np.asarray(values)))


def tail(run: Run, name: str = "excess") -> float:
    """Mean over seeds of a figure over the last 10 % of the rounds; NaN where every seed diverged."""
    return float(mean_over_seeds(run, run.tail(name)))


def spread(run: Run, name: str = "excess") -> float:
    """Standard deviation over seeds of a figure over the last 10 % of the rounds."""
    return float(np.std(run.tail(name)[~run.diverged], ddof=1)) if len(run.seeds) > 1 else 0.0


def time_to(run: Run, share: float) -> float:
    """Deployments per client until the mean excess first falls below ``share`` of its start; all, if it never does.

    >>> import profl
    >>> case = profl.cases.housing(clients=2, heterogeneity=0)
    >>> run = profl.simulate(case, profl.pofl(0.01), rounds=20, samples=50, seeds=[0], progress=False)
    >>> time_to(run, 0.5) < time_to(run, 0.05)
    True
    """
    excess = mean_over_seeds(run, run.excess)
    below = np.flatnonzero(excess < share * excess[0])
    per_client = run.deployments.mean(0) / run.settings["clients"]
    return float(per_client[below[0] if below.size else -1])


def gap(problem: Problem) -> float:
    """L(PS) - L(PO)."""
    return problem.risk(problem.stable) - problem.risk(problem.optimum)


def _digits(value: Any) -> float | None:
    """Six significant digits: what a plot can show; None where there is no number."""
    number = float(value)
    return float(f"{number:.6g}") if np.isfinite(number) else None
