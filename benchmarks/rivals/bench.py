"""``python -m benchmarks rivals``: other ways to the optimum beside ``prm``, at equal deployments and samples.

Rows: those of ``benchmarks deployments`` and the named problems of ``benchmarks wild``. Every client makes thirty
deployments of 500 samples. *Left* is the excess of the model that a run would return, *regret* the excess of what was
deployed, summed over the deployments; both are in units of L(PS) - L(PO), or of the start's excess where that is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Row
from benchmarks.deployments.bench import ROWS
from benchmarks.deployments.outcome import NONE
from benchmarks.deployments.problems import PROBLEMS
from benchmarks.rivals.federation import Known, known
from benchmarks.rivals.methods import HOW, compare, figures, has_botorch
from benchmarks.wild.table import TABLE
from profl_papers.claims import Part, at_least
from profl_papers.drawn.solver import solve
from profl_papers.measures import drawn, gap

ROUNDS, AFTER = 30, (10, 20, 30)
QUICK_ROWS, QUICK_ROUNDS, QUICK_AFTER = ("housing",), 6, (3, 6)
STRONGEST = "botorch, composite"
"""The rival that the claims are about."""
BETTER = 0.8
"""Of the rows, on how many ``prm`` is to have less excess, and no more regret."""


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` takes one row and a short run that shows the form of the result but proves nothing."""
    rows = QUICK_ROWS if quick else (*ROWS, *TABLE)
    rounds, after = (QUICK_ROUNDS, QUICK_AFTER) if quick else (ROUNDS, AFTER)
    parts: dict[str, Callable[[], Part]] = {name: partial(row_part, name, seeds, rounds, after) for name in rows}
    return Bench(parts, of_all=over_all)


def known_row(name: str) -> Known:
    """A row's problem with its exact risks."""
    if name in PROBLEMS:
        problem = PROBLEMS[name]()
        least = problem.risk(problem.optimum)
        return known(problem, least, least + gap(problem))
    problem = TABLE[name][0]()
    found = solve(problem)
    return known(problem, found.optimum_risk, found.stable_risk)


def row_part(name: str, seeds: int, rounds: int, after: Sequence[int]) -> Part:
    """All methods on one problem."""
    row = known_row(name)
    tracks = compare(row, rounds, range(seeds))
    unit = row.gap if row.gap > NONE else float(tracks["prm"].excess[:, 0].mean())
    rows: list[Row] = []
    for method, track in tracks.items():
        per_seed = {"left": track.excess[:, -1] / unit, "regret": track.regret[:, -1] / unit}
        lines = {"line": line(method, track.excess / unit), "regret line": line(method, track.regret / unit, 1)}
        text = {"part": name, "method": method, "setting": track.setting}
        rows.append(text | figures(track, unit, after) | {"per seed": per_seed} | lines)
    if not has_botorch():
        rows.append({"part": name, "method": "botorch", "setting": HOW})
    return Part(rows, [])


def line(label: str, values: np.ndarray, first: int = 0) -> dict[str, Any]:
    """A curve over deployments, from number ``first`` on: mean, lowest and highest seed."""
    x = first + np.arange(values.shape[1])
    of = {"x": x, "mean": values.mean(0), "low": values.min(0), "high": values.max(0)}
    return {"label": label, **{name: [drawn(value) for value in each] for name, each in of.items()}}


def over_all(rows: Sequence[Row]) -> Part:
    """On how many rows ``prm`` has less excess, and no more regret, than each rival; and claims about the strongest."""
    table, claims = [], []
    of_method = methods_of(rows)
    for rival in [name for name in of_method if name != "prm"]:
        pairs = [(of_method["prm"][name], each) for name, each in of_method[rival].items()]
        less = [ended(own, "left") <= ended(other, "left") for own, other in pairs]
        cheaper = [ended(own, "regret") <= ended(other, "regret") for own, other in pairs]
        figures = {"rows": len(pairs), "prm leaves less": int(np.sum(less)), "prm pays less": int(np.sum(cheaper))}
        lost = [name for name, wins in zip(of_method[rival], less, strict=True) if not wins]
        table.append({"part": "over all rows", "rival": rival, **figures, "leaves less than prm": lost})
        if rival == STRONGEST:
            claims = [
                at_least(f"rows where prm leaves no more than {rival}", np.mean(less), BETTER),
                at_least(f"rows where prm has no more regret than {rival}", np.mean(cheaper), BETTER),
            ]
    return Part(table, claims)


def methods_of(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Method -> part -> its row."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if "line" in row:
            found.setdefault(row["method"], {})[row["part"]] = row
    return found


def ended(row: Row, figure: str) -> float:
    """The mean over seeds at the end; infinite where one diverged."""
    return float(np.mean([np.inf if value is None else value for value in row["per seed"][figure]]))
