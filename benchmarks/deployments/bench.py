"""``python -m benchmarks deployments``: how near to the optimum thirty deployments come, and what they cost on the way.

Parts: one per problem, or per few that share compiled programs: a table of all methods; then, of the method that the
claims are about alone, few samples, junk and hostile clients, and when it knows that it is done (``trials``). Besides,
pricing in other units, and all problems together.

*Share left* is excess / (L(PS) - L(PO)): 1 is where retraining ends, 0 the optimum. *Regret* is the mean over all
deployments of the risk of what was deployed, minus L(PO).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Row
from benchmarks.deployments import trials as trials
from benchmarks.deployments.methods import ROUNDS, SUBJECT, Followed, compare, follow, subject
from benchmarks.deployments.outcome import NONE, Outcome, table_row
from benchmarks.deployments.problems import PROBLEMS
from profl.problem.problem import Problem
from profl_papers.claims import Claim, Part, at_least, at_most
from profl_papers.measures import gap

LEFT = {
    "pricing": 0.0005,
    "housing": 0.0005,
    "exponential": 0.015,
    "group_pricing": 0.03,
    "retail": 0.03,
    "strategic": 0.02,
    "adult": 0.02,
    "credit": 0.02,
    "asymmetric 0": 0.002,
    "asymmetric 1": 0.002,
    "asymmetric 2": 0.002,
    "50 goods": 0.01,
    "50 goods, crossed": 0.01,
}
"""Row -> the share of PFL's gap that may be left: least where the reaction is a line, most where only shares of groups
show it."""
LATER, LEFT_LATER = 2 * ROUNDS, 0.005
"""A curve is a line ever nearer by: exponential demand, after twice as many deployments."""
POINTS = 0.5
"""Of accuracy that may be lost against the optimum, in percent."""
NOTHING_TO_GAIN = ("small shifts", "no reaction")
"""Where what is left may in no seed exceed what retraining leaves."""
BETTER, NO_DEARER = 10, 1
"""Over all rows: how many times less than pofl at its best rate is left, at no more regret."""
ROWS = (*LEFT, *NOTHING_TO_GAIN)
ALIKE = ("asymmetric 0", "asymmetric 1", "asymmetric 2", "no reaction")
"""Rows that share compiled programs: they differ in their clients alone."""
QUICK_ROWS, QUICK_ROUNDS = ("housing", "no reaction"), 10


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` takes few rows and short runs that show the form of the result but prove nothing."""
    settings = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "seeds": range(seeds)}
    rows = QUICK_ROWS if quick else ROWS
    alike = tuple(name for name in ALIKE if name in rows)
    groups = {name: (name,) for name in rows if name not in ALIKE} | {", ".join(alike): alike}
    parts: dict[str, Callable[[], Part]] = {
        text: partial(problems_part, names, settings) for text, names in groups.items() if names
    }
    return Bench(parts if quick else parts | {"other units": partial(trials.other_units, settings)}, of_all=over_all)


def problems_part(names: Sequence[str], settings: dict[str, Any]) -> Part:
    """Everything about some problems."""
    found = [problem_part(name, settings) for name in names]
    return Part([row for part in found for row in part.rows], [claim for part in found for claim in part.claims])


def problem_part(name: str, settings: dict[str, Any]) -> Part:
    """Everything about one problem; one run of the method that the claims are about serves wherever it can."""
    problem = PROBLEMS[name]()
    longest = max(trials.LATEST, LATER if name == "exponential" else 0)
    long = follow(problem, subject(problem), **settings | {"rounds": max(longest, settings["rounds"])})
    parts = [row_part(name, problem, long, settings), trials.settled(name, problem, long)]
    clean = long.first(settings["rounds"])
    if name in LEFT:
        parts.append(trials.few_samples(name, problem, clean, settings))
    if name in trials.HARMED:
        parts.append(trials.bad_data(name, problem, clean, settings))
    return Part([row for part in parts for row in part.rows], [claim for part in parts for claim in part.claims])


def row_part(name: str, problem: Problem, long: Followed, settings: dict[str, Any]) -> Part:
    """All methods on one problem."""
    stable = gap(problem)
    own = long.first(settings["rounds"])
    results = {SUBJECT: own, **compare(problem, **settings)}
    rows = [table_row(name, method, each, stable if stable > NONE else 0.0) for method, each in results.items()]
    rows.append({"part": name, "method": "stable point", "excess": stable})
    if name in NOTHING_TO_GAIN:
        return Part(rows, no_worse(name, own, results["pfl"], stable))
    claims = [at_most(f"{name}: share left", own.share(stable).mean(), LEFT[name])]
    if own.accuracy is not None:
        claims.append(
            at_most(f"{name}: accuracy lost against the optimum", -100 * own.accuracy.mean(), POINTS, " points")
        )
    if name == "exponential":
        after = long.first(LATER, f"{LATER} deployments")
        rows.append(table_row(name, SUBJECT, after, stable))
        claims.append(at_most(f"{name}: share left after {LATER}", after.share(stable).mean(), LEFT_LATER))
    return Part(rows, claims)


def no_worse(name: str, own: Outcome, plain: Outcome, stable: float) -> list[Claim]:
    """In the worst seed: excess over that of PFL at its best rate in the same seed, and over the stable point's."""
    worst = float(np.max(own.end / np.maximum(plain.end, NONE)))
    claims = [at_most(f"{name}: excess over PFL's end ({plain.setting}), worst seed", worst, 1)]
    if stable > NONE:  # where nothing reacts the stable point is the optimum: no method comes below
        claims.append(at_most(f"{name}: excess over the stable point's, worst seed", own.end.max() / stable, 1))
    return claims


def over_all(rows: Sequence[Row]) -> Part:
    """Against pofl at its best rate: how much less is left, and what was paid for it."""
    table, less, dearer = [], [], []
    for name in dict.fromkeys(row["part"] for row in rows if "line" in row):
        own, other = (
            next(row for row in rows if row["part"] == name and row["method"] == method) for method in (SUBJECT, "pofl")
        )
        less.append(ratio(ends(other, "excess"), ends(own, "excess")))
        dearer.append(ratio(ends(own, "regret"), ends(other, "regret")))
        figures = {"pofl's excess over its": less[-1], "its regret over pofl's": dearer[-1]}
        table.append({"part": "over all rows", "row": name, "pofl": other["setting"], **figures})
    middle = [float(np.exp(np.mean(np.log(values)))) for values in (less, dearer)]
    claims = [
        at_least("all rows: best pofl's excess over its, geometric mean", middle[0], BETTER),
        at_most("all rows: its regret over that pofl's, geometric mean", middle[1], NO_DEARER),
    ]
    return Part(table, claims)


def ends(row: Row, figure: str) -> np.ndarray:
    """A figure of every seed; infinite where it diverged."""
    return np.array([np.inf if value is None else value for value in row["per seed"][figure]])


def ratio(values: np.ndarray, others: np.ndarray) -> float:
    """Of means over seeds, none of them below NONE.

    >>> ratio(np.array([1.0, 3.0]), np.array([1.0]))
    2.0
    """
    return float(max(values.mean(), NONE) / max(others.mean(), NONE))
