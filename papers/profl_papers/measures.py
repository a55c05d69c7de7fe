"""What a run of an item becomes: numbers for its rows and claims, lines and panels for its figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profl.problem.problem import Problem
from profl.results.record import Run, mean_over_seeds

POINTS = 101
"""Of a line in a figure: a hundred steps and the start, more than a figure of this size can show."""
DIGITS = 6
"""Significant digits of what is drawn."""
TENTH = 0.1
"""Where speeds are compared: at a tenth of the first excess most of the way is made, and noise does not yet decide."""


def tail(run: Run, name: str = "excess") -> float:
    """Mean over seeds of a figure over the last 10 % of the rounds; NaN where every seed diverged."""
    return float(mean_over_seeds(run, run.tail(name)))


def standard_deviation(run: Run, name: str = "excess") -> float:
    """Over seeds, of a figure over the last 10 % of the rounds; 0 with one seed."""
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
    return float(per_client(run)[below[0] if below.size else -1])


def per_client(run: Run) -> np.ndarray:
    """Deployments per client so far, mean over seeds."""
    return run.deployments.mean(0) / run.settings["clients"]


def gap(problem: Problem) -> float:
    """L(PS) - L(PO)."""
    return problem.risk(problem.stable) - problem.risk(problem.optimum)


def known(run: Run) -> dict[str, float]:
    """The risks at the optimum and at the stable point."""
    return {"optimum (PO)": run.optimum_risk, "stable point (PS)": run.stable_risk}


def panel(
    title: str, lines: Sequence[dict[str, Any]], levels: dict[str, float], y: str = "performative risk", **more: Any
) -> dict[str, Any]:
    """A plot: lines with bands over seeds, and horizontal lines at known levels."""
    named = [{"label": label, "value": drawn(value)} for label, value in levels.items()]
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
    numbers = {"x": per_client(run)[records], "mean": mean, "low": low, "high": high}
    return {"label": label, "method": run.algorithm} | {
        key: [drawn(value) for value in array] for key, array in numbers.items()
    }


def drawn(value: Any) -> float | None:
    """A number as a plot can show it; None where there is none.

    >>> drawn(1 / 3), drawn(float("nan"))
    (0.333333, None)
    """
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if np.isfinite(number) else None
