"""``python -m benchmarks deployments``: how near to the optimum thirty deployments come, and what they cost on the way.

Parts: one table per problem, all methods; all problems together; then, of the method the claims are about alone, junk
and hostile clients, other units, and when it knows that it is done (``deployment_trials``).

*Share left* is excess / (L(PS) - L(PO)): 1 is where retraining ends, 0 the optimum. *Regret* is the mean over all
deployments of the risk of what was deployed, minus L(PO).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.deployments import trials as trials
from benchmarks.deployments.methods import ROUNDS, SUBJECT, compare, run, subject
from benchmarks.deployments.outcome import NONE, Outcome, table_row
from benchmarks.deployments.problems import PROBLEMS
from profl.data.dataset import MissingDataError
from profl_papers.claims import Advance, Claim, Part, at_least, at_most, item, nothing
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
QUICK_ROWS, QUICK_ROUNDS = ("housing", "no reaction"), 10

Found = dict[str, dict[str, Outcome]]
"""Row -> method -> what it made of it."""


def bench(seeds: int = 10, quick: bool = False, progress: bool = False, advance: Advance = nothing) -> dict[str, Any]:
    """All parts; ``quick`` takes few rows and short runs that show the form of the result but prove nothing."""
    settings = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "seeds": range(seeds), "progress": progress}
    rows = QUICK_ROWS if quick else ROWS
    found: Found = {}
    parts: list[Callable[[], Part]] = [partial(row_part, found, name, settings) for name in rows]
    parts += [partial(over_all, found)]
    parts += [partial(trials.few_samples, name, found, settings) for name in LEFT if name in rows]
    parts += [partial(trials.bad_data, name, found, settings) for name in trials.HARMED if name in rows]
    parts += [partial(trials.other_units, settings)] if not quick else []
    parts += [partial(trials.settled, name, found, settings) for name in rows]
    return item("deployments", seeds, [partial(afresh, part) for part in parts], advance)


PARTS = 2 * len(ROWS) + len(LEFT) + len(trials.HARMED) + 2


def afresh(part: Callable[[], Part]) -> Part:
    """A part whose problem may lack its data; compiled code is forgotten after it, lest memory run out."""
    try:
        return part()
    except MissingDataError as error:
        return Part([{"part": "left out", "why": str(error)}], [])
    finally:
        jax.clear_caches()


def row_part(found: Found, name: str, settings: dict[str, Any]) -> Part:
    """All methods on one problem; what they made of it is also added to ``found``."""
    problem = PROBLEMS[name]()
    stable = gap(problem)
    results = found[name] = compare(problem, **settings)
    rows = [table_row(name, method, each, stable if stable > NONE else 0.0) for method, each in results.items()]
    rows.append({"part": name, "method": "stable point", "excess": stable})
    if name in NOTHING_TO_GAIN:
        return Part(rows, no_worse(name, results[SUBJECT], results["pfl"], stable))
    claims = [at_most(f"{name}: share left", results[SUBJECT].share(stable).mean(), LEFT[name])]
    lost = results[SUBJECT].accuracy
    if lost is not None:
        claims.append(at_most(f"{name}: accuracy lost against the optimum", -100 * lost.mean(), POINTS, " points"))
    if name == "exponential":
        after = run(problem, subject(problem), f"{LATER} deployments", **settings | {"rounds": LATER})
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


def over_all(found: Found) -> Part:
    """Against pofl at its best rate: how much less is left, and what was paid for it."""
    rows, less, dearer = [], [], []
    for name, results in found.items():
        own, other = results[SUBJECT], results["pofl"]
        less.append(ratio(other.end, own.end))
        dearer.append(ratio(own.regret, other.regret))
        figures = {"pofl's excess over its": less[-1], "its regret over pofl's": dearer[-1]}
        rows.append({"part": "over all rows", "row": name, "pofl": other.setting, **figures})
    middle = [float(np.exp(np.mean(np.log(values)))) for values in (less, dearer)]
    claims = [
        at_least("all rows: best pofl's excess over its, geometric mean", middle[0], BETTER),
        at_most("all rows: its regret over that pofl's, geometric mean", middle[1], NO_DEARER),
    ]
    return Part(rows, claims)


def ratio(values: np.ndarray, others: np.ndarray) -> float:
    """Of means over seeds, none of them below NONE.

    >>> ratio(np.array([1.0, 3.0]), np.array([1.0]))
    2.0
    """
    return float(max(values.mean(), NONE) / max(others.mean(), NONE))
