"""``profl bench jacobian``: how close an estimated df/dtheta comes to being told it, on every case, untuned.

Parts: one table per case and sample size over three step sizes; windows; few and silent clients; cost of a step.
``python -m profl.experiments.jacobian PATH`` draws excess and regret against deployments for three of the methods.

*Gap closed* is 1 - tail excess / tail excess of PFL; *regret share* how far the deployed regret over the whole run lies
on the way from the told run's to PFL's. All methods see the same seeds: the same draws for the same deployments.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from profl.algorithms import pfl, pofl
from profl.algorithms.base import Algorithm
from profl.cases import group_pricing, housing, pricing, retail, strategic
from profl.engines.simulate import simulate
from profl.experiments.claims import Part, at_least, at_most, item
from profl.experiments.paper.measures import line, panel
from profl.problem.problem import Problem
from profl.results.plots import plot_panels
from profl.results.record import Run

WINDOWS = (4, 20, 100)  # H, of which the paper's estimator gets its best


class Row(NamedTuple):
    case: Callable[[], Problem]
    rate: float  # a sensible step size; the table has a third and three times of it, too
    curved: bool = False  # whether f(theta) bends


CASES = {
    "pricing": Row(pricing, 0.01),
    "pricing, exponential": Row(partial(pricing, reaction="exponential"), 0.01, curved=True),
    "group_pricing": Row(group_pricing, 0.01, curved=True),
    "strategic": Row(strategic, 0.1),
    "housing": Row(housing, 0.01),
    "retail": Row(retail, 0.01, curved=True),
}

LEFT = {(False, 500): 0.001, (True, 500): 0.005, (False, 50): 0.003, (True, 50): 0.015}
"""(curved, n) -> the share of PFL's gap that may be left."""


def bench(
    seeds: int = 10, quick: bool = False, progress: bool = False, advance: Callable[[int], None] = lambda steps: None
) -> dict[str, Any]:
    """All parts; ``quick`` makes short runs that show the form of the result but prove nothing."""
    settings = {"rounds": 10 if quick else 200, "seeds": range(seeds), "progress": progress}
    rows: list[dict[str, Any]] = []
    sizes = [(name, n) for name in CASES for n in (50, 500)]
    parts: list[Callable[[], Part]] = [partial(case_table, rows, name, n, settings) for name, n in sizes]
    parts += [partial(over_all, rows), partial(windows, settings), partial(few, settings), partial(cost, settings)]
    return item("jacobian", seeds, parts, advance)


PARTS = 2 * len(CASES) + 4


def case_table(rows: list[dict[str, Any]], name: str, n: int, settings: dict[str, Any]) -> Part:
    """One case and sample size at three step sizes; the rows are also added to ``rows``."""
    case, rate, curved = CASES[name].case(), CASES[name].rate, CASES[name].curved
    found = []
    claims = []
    for eta in (rate / 3, rate, 3 * rate):
        row = compared(case, eta, n, settings)
        found.append({"part": f"{name}, n = {n}", "case": name, "n": n, "eta": round(eta, 6), **row})
        left = LEFT[curved, n]
        where = f"{name}, n = {n}, eta = {eta:.2g}: "
        if converged(row, left):
            claims.append(at_least(where + "gap closed", row["gap closed"], 1 - left))
        claims.append(at_most(where + "excess over the paper's at its best H", row["default"] / row["paper"], 1.2))
        claims.append(at_most(where + "regret share", row["regret share"], 0.05))
    rows += found
    return Part(found, claims)


def compared(case: Problem, eta: float, n: int, settings: dict[str, Any]) -> dict[str, float]:
    """Tail excess of every method, and how the default compares."""

    def run(method: Algorithm) -> Run:
        return simulate(case, method, samples=n, **settings)

    plain, told, default = run(pfl(eta)), run(pofl(eta, jacobian="exact")), run(pofl(eta))
    paper = {h: _tail(run(pofl(eta, h, jacobian="paper"))) for h in WINDOWS}
    return {
        "PFL": _tail(plain),
        "paper, H = 20": paper[20],
        "paper": min(paper.values()),
        "default": _tail(default),
        "told": _tail(told),
        "gap closed": 1 - _tail(default) / _tail(plain),
        "gap closed, told": 1 - _tail(told) / _tail(plain),
        "regret share": (_regret(default) - _regret(told)) / (_regret(plain) - _regret(told)),
    }


def converged(row: dict[str, float], left: float) -> bool:
    """Whether the told run leaves at most half of what the default may leave: then the step size is not the limit."""
    return row["gap closed, told"] >= 1 - left / 2


def over_all(rows: list[dict[str, Any]]) -> Part:
    """Geometric means over every row of the tables before."""
    to_paper = np.exp(np.mean([np.log(row["default"] / row["paper"]) for row in rows]))
    found = []
    for curved in (False, True):
        ratios = [row["default"] / row["told"] for row in rows if CASES[row["case"]].curved == curved]
        found.append(
            {
                "part": "over all rows",
                "reaction": "curved" if curved else "linear",
                "default / told, geometric mean": float(np.exp(np.mean(np.log(ratios)))),
                "largest": max(ratios),
            }
        )
    return Part(found, [at_most("all rows: excess over the paper's at its best H, geometric mean", to_paper, 1 / 3)])


def windows(settings: dict[str, Any]) -> Part:
    """The default from H = 1 to 200, and housing with the paper's own H = 1."""
    rows, claims = [], []
    case = pricing()
    excess = {h: _tail(simulate(case, pofl(0.01, h), samples=500, **settings)) for h in (1, 4, 20, 100, 200)}
    rows += [{"part": "windows", "case": "pricing", "H": h, "excess": value} for h, value in excess.items()]
    spread = max(excess.values()) / min(excess.values())
    claims.append(at_most("pricing, H from 1 to 200: largest excess over smallest", spread, 2))
    for heterogeneity in (0.0, 0.25, 0.5):
        case = housing(heterogeneity=heterogeneity)
        reached, literal = [
            _tail(simulate(case, pofl(0.01, 1, jacobian=name), samples=500, **settings)) for name in ("kalman", "paper")
        ]
        rows.append({"part": "windows", "case": case.name, "H": 1, "excess": reached, "paper": literal})
        claims.append(at_most(f"housing, H = 1, heterogeneity {heterogeneity}: tail excess", reached, 0.01))
    return Part(rows, claims)


def few(settings: dict[str, Any]) -> Part:
    """30 % of the clients asked per round, and one in five silent at random: twice the gap may be left."""
    rows, claims = [], []
    for name, (make, rate, curved) in CASES.items():
        case = make()
        for share in (0.3, 0.8):
            plain, told, default = (
                _tail(simulate(case, method, samples=500, participation=share, **settings))
                for method in (pfl(rate), pofl(rate, jacobian="exact"), pofl(rate))
            )
            left = 2 * LEFT[curved, 500]
            row = {"PFL": plain, "default": default, "told": told, "gap closed": 1 - default / plain}
            rows.append({"part": "few clients", "case": name, "asked": share, **row})
            if told / plain <= left / 2:
                claims.append(
                    at_least(f"{name}, {share:.0%} of clients asked: gap closed", 1 - default / plain, 1 - left)
                )
    return Part(rows, claims)


def cost(settings: dict[str, Any]) -> Part:
    """Time of a whole run over that with the paper's estimator at H = 20; medians of five, taken in turn."""
    case, methods = (
        pricing(),
        {"default": pofl(), "paper, H = 20": pofl(jacobian="paper"), "told": pofl(jacobian="exact")},
    )
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(6):
        for name, method in methods.items():
            started = time.perf_counter()
            simulate(case, method, samples=500, **settings)
            if turn:  # the first one compiles
                seconds[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    rows = [{"part": "cost", "method": name, "seconds": value} for name, value in medians.items()]
    ratio = medians["default"] / medians["paper, H = 20"]
    return Part(rows, [at_most("time over that with the paper's estimator, H = 20", ratio, 1.3)])


def picture(path: str, seeds: int = 10, rounds: int = 200) -> None:
    """Excess and deployed regret against deployments: the paper's estimator, the default, and told."""
    methods = {
        "paper, H = 20": pofl(jacobian="paper"),
        "default": pofl(),
        "told the Jacobian": pofl(jacobian="exact"),
    }
    panels = []
    for name in ("pricing", "pricing, exponential"):
        case = CASES[name].case()
        runs = {
            label: simulate(case, method, rounds=rounds, samples=500, seeds=range(seeds), progress=False)
            for label, method in methods.items()
        }
        for values, y in (("excess", "excess over the optimum"), ("deployed_regret", "deployed regret so far")):
            lines = [line(run, label, values) for label, run in runs.items()]
            panels.append(panel(name, lines, {}, y, scale="log" if values == "excess" else "linear"))
    plot_panels(panels, [path])


def _tail(run: Run) -> float:
    return float(run.tail_excess().mean())


def _regret(run: Run) -> float:
    return float(run.deployed_regret[:, -1].mean())


if __name__ == "__main__":
    picture(sys.argv[1])
