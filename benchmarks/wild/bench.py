"""``python -m benchmarks wild``: prm on problems that nobody tuned it for, and what it says of them.

Parts: every shape of drawn problem (``draw``), then the named problems (``table``), then all drawn ones together.
``--seeds`` is how many problems are drawn. The first seed is the environment's ``WILD_FIRST``, 0 by default (those
below 1,000 are for tuning).

*Share left* is excess / (L(PS) - L(PO)), of problems where that gap is at least 1 % of the start's excess. Elsewhere
there is next to nothing to gain over retraining: such rows are measured in the start's excess, and count for what ends
above its start or above PFL's end but for no share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Row
from benchmarks.wild import named
from benchmarks.wild.outcome import BEYOND, METHODS, compare_on
from benchmarks.wild.table import TABLE
from profl_papers.claims import Part, at_least, at_most
from profl_papers.drawn.draw import SHAPES, by_shape, draw
from profl_papers.drawn.solver import solve

MEDIAN, NINETIETH = 0.01, 0.15
"""Shares that may be left."""
ABOVE_START, ABOVE_PFL, POFL_ABOVE_START = 0.005, 0.02, 0.01
"""Shares of problems that may end above their start, and above PFL's end."""
COVERED = (0.80, 0.97)
"""Between which shares of problems the 90 % upper limit of the forecast is to lie above the truth."""
QUICK = 2
"""Problems of a quick run, which all methods but pofl go through."""
DRAWN = "drawn"


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` takes few problems and no named one: it shows the form of the result but proves nothing."""
    first = int(os.environ.get("WILD_FIRST", "0"))
    groups = by_shape(range(first, first + (min(seeds, QUICK) if quick else seeds)))
    methods = ("prm", "pfl") if quick else tuple(METHODS)
    parts: dict[str, Callable[[], Part]] = {
        f"shape {number}, from seed {groups[shape][0]}": partial(shape_part, groups[shape], methods)
        for number, shape in enumerate(SHAPES)
        if shape in groups
    }
    if not quick:
        parts |= {name: partial(named.row, name) for name in TABLE} | named.OTHERS
    return Bench(parts, of_all=over_all)


def shape_part(seeds: list[int], methods: tuple[str, ...]) -> Part:
    """All problems of one shape."""
    return Part([one_problem(seed, methods) for seed in seeds], [])


def one_problem(seed: int, methods: tuple[str, ...]) -> Row:
    """The row of a drawn problem."""
    drawn = draw(seed)
    row = {"part": DRAWN, "seed": seed, "problem": drawn.text}
    return row | compare_on(drawn.problem, solve(drawn.problem), drawn.samples, methods)


def over_all(rows: Sequence[Row]) -> Part:
    """The figures over all drawn problems, and the claims about them."""
    rows = [row for row in rows if row["part"] == DRAWN]
    table, claims = [], []
    for name in METHODS:
        if not rows or f"{name}: left" not in rows[0]:
            continue
        figures = summary(rows, name)
        table.append({"part": "all drawn", "method": name, **figures})
        if name == "pofl":
            claims += [
                at_most("pofl: diverged", figures["diverged"], 0),
                at_most("pofl: ends above its start", figures["above its start"], POFL_ABOVE_START),
            ]
        if name == "prm":
            claims += prm_claims(figures)
    return Part(table, claims)


def prm_claims(figures: dict[str, float]) -> list[Any]:
    """The bars over all drawn problems."""
    claims = [
        at_most("prm: share left, median", figures["median left"], MEDIAN),
        at_most("prm: share left, 90th percentile", figures["90 % left"], NINETIETH),
        at_most("prm: ends above its start", figures["above its start"], ABOVE_START),
        at_most("prm: most above its start, of the scale", figures["most above its start"], BEYOND),
        at_most("prm: ends above PFL's end", figures["above pfl's end"], ABOVE_PFL),
    ]
    if "covered" in figures:
        covers = "prm: forecasts whose upper limit covers"
        claims += [
            at_least(covers, figures["covered"], COVERED[0]),
            at_most(f"{covers}, no wider than needed", figures["covered"], COVERED[1]),
            at_most("prm: forecasts of zero width", figures["zero width"], 0),
        ]
    return claims


def summary(rows: Sequence[Row], name: str) -> dict[str, float]:
    """One method over all problems; a figure that was stored as none is infinite."""

    def column(key: str, among: Sequence[Row] = rows) -> np.ndarray:
        return np.array([np.inf if each[key] is None else each[key] for each in among], float)

    judged = [each for each in rows if each["judged"]]
    left, over_start = column(f"{name}: left", judged), column(f"{name}: over its start")
    figures = {
        "problems": len(rows),
        "with a share": len(judged),
        "median left": float(np.median(left)) if left.size else np.nan,
        "90 % left": float(np.quantile(left, 0.9, method="higher")) if left.size else np.nan,
        "above its start": float(np.mean(over_start > BEYOND)),
        "most above its start": float(over_start.max()),
        "diverged": int(np.sum(~np.isfinite(column(f"{name}: left")))),
    }
    if f"{name}: over pfl's end" in rows[0]:
        over_pfl, ended = column(f"{name}: over pfl's end"), np.isfinite(column(f"{name}: left"))
        above = ~ended | (np.isfinite(over_pfl) & (over_pfl > BEYOND))  # what ended is not above what diverged
        figures["above pfl's end"] = float(np.mean(above))
    if f"{name}: covered" in rows[0]:
        figures["covered"] = float(np.mean(column(f"{name}: covered")))
        figures["zero width"] = int(np.sum(column(f"{name}: error") == 0))
    return figures
