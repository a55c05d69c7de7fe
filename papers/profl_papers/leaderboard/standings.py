"""From cells to a table: medians, quartiles, the worst, and ranks with their spread.

A method's score under a condition is the median over problems of its median over seeds of the share of the gap that is
left. Its rank is one plus the number of methods with a lower score, and the spread of the rank is from a bootstrap
over problems: problems are drawn with replacement RESAMPLES times and all methods ranked on each, whose 5 % and 95 %
quantiles are shown. What diverged or was refused on a problem leaves more there than any method that did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profl_papers.leaderboard.play import CONDITIONS, POOLED
from profl_papers.plain import plain

RESAMPLES = 2000
SPREAD = (0.05, 0.95)

Problems = Sequence[dict[str, Any]]


def standings(problems: Problems, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per method that has run on every problem, as plain data: its figures under each condition."""
    names = [name for name in names if all(name in problem["cells"] for problem in problems)]
    ranked = {condition: ranks(problems, names, condition) for condition in CONDITIONS}
    rows = []
    for name in names:
        row: dict[str, Any] = {"method": name}
        for condition in CONDITIONS:
            cells = [problem["cells"][name][condition] for problem in problems]
            row[condition] = summary(cells) | ranked[condition].get(name, {})
        row["deployments"] = max((row[condition].get("deployments") or 0 for condition in CONDITIONS), default=0)
        rows.append(row)
    return plain(rows)


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one method under one condition over problems and seeds; only reasons where it never ran."""
    played = [cell for cell in cells if "refused" not in cell]
    reasons = sorted({cell["refused"] for cell in cells if "refused" in cell})
    refused = {"refused": len(cells) - len(played), "reasons": reasons}
    if not played:
        return refused
    left, regret = (np.array([_number(v) for cell in played for v in cell[name]]) for name in ("left", "regret"))
    reached = [v for cell in played for v in cell["reached"]]
    times = np.array([_number(v) for v in reached])
    return {
        **refused,
        "left": median(left),
        "quartiles": [quantile(left, 0.25), quantile(left, 0.75)],
        "worst": float(left.max()),
        "diverged": int(np.sum(~np.isfinite(left))),
        "runs": left.size,
        "regret": median(regret),
        "regret_quartiles": [quantile(regret, 0.25), quantile(regret, 0.75)],
        "reached": median(times),
        "reached_share": float(np.mean(np.isfinite(times))),
        "deployments": max(cell["deployments"] for cell in played),
        "cpu": median(np.array([cell["cpu"] for cell in played])),
        "cpu_first": max(cell["cpu"] for cell in played),
    }


def ranks(problems: Problems, names: Sequence[str], condition: str) -> dict[str, dict[str, Any]]:
    """{"rank", "rank_low", "rank_high"} of every method that takes part under a condition."""

    def score(cell: dict[str, Any]) -> float:
        return np.inf if "refused" in cell else median(np.array([_number(v) for v in cell["left"]]))

    playing = [n for n in names if any(p["cells"][n][condition].get("refused") != POOLED for p in problems)]
    if not playing:
        return {}
    scores = np.array([[score(problem["cells"][name][condition]) for problem in problems] for name in playing])
    draws = np.random.default_rng(0).integers(len(problems), size=(RESAMPLES, len(problems)))
    several = np.stack([rank(each) for each in np.median(scores[:, draws], axis=2).T])
    low, high = np.quantile(several, SPREAD, axis=0, method="nearest")
    first = rank(np.median(scores, axis=1))
    return {
        name: {"rank": int(first[i]), "rank_low": int(low[i]), "rank_high": int(high[i])}
        for i, name in enumerate(playing)
    }


def rank(scores: np.ndarray) -> np.ndarray:
    """One plus how many scores are lower.

    >>> rank(np.array([0.2, 0.1, np.inf, 0.2])).tolist()
    [2, 1, 4, 2]
    """
    return 1 + np.sum(scores[None, :] < scores[:, None], axis=1)


def median(values: np.ndarray) -> float:
    """
    >>> median(np.array([1.0, np.inf, np.inf])), median(np.array([1.0, 3.0]))
    (inf, 2.0)
    """
    return quantile(values, 0.5)


def quantile(values: np.ndarray, share: float) -> float:
    """A quantile of values that may be infinite; between a finite one and an infinite one it is infinite.

    >>> quantile(np.array([1.0, 2.0, np.inf]), 0.25), quantile(np.array([np.inf, np.inf]), 0.25)
    (1.5, inf)
    """
    ordered = np.sort(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
    return float(high if not np.isfinite(high) or low == high else low + (at - np.floor(at)) * (high - low))


def _number(value: float | None) -> float:
    """What was stored as none was infinite: a run that diverged, a share that was never reached."""
    return np.inf if value is None or not np.isfinite(value) else float(value)
