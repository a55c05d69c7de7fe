"""``python -m benchmarks jacobian``: how close an estimated df/dtheta comes to the exact one, on every case, untuned.

Parts: one table per case and sample size over three step sizes; few and silent clients, per case; windows; and, alone,
the cost of a step. Step sizes share their programs.
``python -m benchmarks.jacobian PATH`` draws excess and regret against deployments for three of the methods.

*Gap closed* is 1 - tail excess / tail excess of PFL; *regret share* how far the deployed regret over the whole run lies
on the way from that with the exact J to PFL's. All methods see the same seeds: the same draws for the same
deployments.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bench import Bench
from benchmarks.bench import Row as Found
from profl.cases import group_pricing, housing, pricing, retail, strategic
from profl.methods import pfl, pofl
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most
from profl_papers.measures import line, panel
from profl_papers.panels import plot_panels

WINDOWS = (4, 20, 100)
"""H, of which the paper's estimator gets its best; the middle one is also shown by itself."""
ROUNDS, QUICK_ROUNDS = 200, 10
FEW, MANY = 50, 500
"""Samples per deployment: with few, noise decides; with many, how the reaction bends."""


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

LEFT = {(False, MANY): 0.001, (True, MANY): 0.005, (False, FEW): 0.003, (True, FEW): 0.015}
"""(curved, n) -> the share of PFL's gap that may be left: five times as much where the reaction bends, which an
estimate lags behind, and three times as much (the root of ten) with a tenth of the samples."""
NO_WORSE, BETTER = 1.2, 1 / 3
"""Excess over that of the paper's estimator at its best H: in any one row, and over all of them."""
REGRET = 0.05
"""The largest share of PFL's regret that learning the Jacobian may cost on top of the run with the exact J."""
ANY_WINDOW, ANY_H = (1, 4, 20, 100, 200), 2
"""The default has no use for H: over these, its largest excess is at most ANY_H times its smallest."""
PAPER_H, HETEROGENEITIES, AT_THE_OPTIMUM = 1, (0.0, 0.25, 0.5), 0.01
"""Table I: its H, how much clients differ, and how near the risk must come, as far as its two decimals can tell."""
ASKED, LEFT_TIMES = (0.3, 0.8), 2
"""Shares of clients asked per round (few, and one in five silent), and how many times LEFT they may leave."""
TURNS, SLOWER = 5, 1.3
"""Runs timed per method, and how many times the paper's estimator's time the default may take."""


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` makes short runs that show the form of the result but prove nothing."""
    settings = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "seeds": range(seeds), "progress": False}
    parts: dict[str, Callable[[], Part]] = {
        f"{name}, n = {n}": partial(case_table, name, n, settings) for name in CASES for n in (MANY, FEW)
    }
    parts |= {f"{name}, few clients": partial(few, name, settings) for name in CASES}
    return Bench(parts | {"windows": partial(windows, settings)}, {"cost": partial(cost, settings)}, over_all)


def case_table(name: str, n: int, settings: dict[str, Any]) -> Part:
    """One case and sample size at three step sizes."""
    case, rate, curved = CASES[name].case(), CASES[name].rate, CASES[name].curved
    rows, claims = [], []
    for eta in (rate / 3, rate, 3 * rate):
        row = compared(case, eta, n, settings)
        rows.append({"part": f"{name}, n = {n}", "case": name, "n": n, "eta": round(eta, 6), **row})
        left = LEFT[curved, n]
        where = f"{name}, n = {n}, eta = {eta:.2g}: "
        if converged(row, left):
            claims.append(at_least(where + "gap closed", row["gap closed"], 1 - left))
        claims.append(at_most(where + "excess over the paper's at its best H", row["default"] / row["paper"], NO_WORSE))
        claims.append(at_most(where + "regret share", row["regret share"], REGRET))
    return Part(rows, claims)


def compared(case: Problem, eta: float, n: int, settings: dict[str, Any]) -> dict[str, float]:
    """Tail excess of every method, and how the default compares."""

    def run(method: Any) -> Run:
        return simulate(case, method, samples=n, **settings)

    plain, exact, default = run(pfl(eta)), run(pofl(eta, jacobian="exact")), run(pofl(eta))
    paper = {h: _tail(run(pofl(eta, h, jacobian="paper"))) for h in WINDOWS}
    return {
        "PFL": _tail(plain),
        "paper, H = 20": paper[20],
        "paper": min(paper.values()),
        "default": _tail(default),
        "exact": _tail(exact),
        "gap closed": 1 - _tail(default) / _tail(plain),
        "gap closed, exact": 1 - _tail(exact) / _tail(plain),
        "regret share": (_regret(default) - _regret(exact)) / (_regret(plain) - _regret(exact)),
    }


def converged(row: dict[str, float], left: float) -> bool:
    """Whether the exact J leaves at most half of what the default may leave: then the step size is not the limit."""
    return row["gap closed, exact"] >= 1 - left / 2


def over_all(rows: Sequence[Found]) -> Part:
    """Geometric means over every row of the cases' tables."""
    rows = [row for row in rows if "gap closed, exact" in row]
    to_paper = np.exp(np.mean([np.log(row["default"] / row["paper"]) for row in rows]))
    found = []
    for curved in (False, True):
        ratios = [row["default"] / row["exact"] for row in rows if CASES[row["case"]].curved == curved]
        found.append(
            {
                "part": "over all rows",
                "reaction": "curved" if curved else "linear",
                "default / exact, geometric mean": float(np.exp(np.mean(np.log(ratios)))),
                "largest": max(ratios),
            }
        )
    return Part(found, [at_most("all rows: excess over the paper's at its best H, geometric mean", to_paper, BETTER)])


def windows(settings: dict[str, Any]) -> Part:
    """The default from H = 1 to 200, and housing with the paper's own H = 1."""
    rows, claims = [], []
    case, rate = pricing(), CASES["pricing"].rate
    excess = {h: _tail(simulate(case, pofl(rate, h), samples=MANY, **settings)) for h in ANY_WINDOW}
    rows += [{"part": "windows", "case": "pricing", "H": h, "excess": value} for h, value in excess.items()]
    largest = max(excess.values()) / min(excess.values())
    claims.append(at_most("pricing, H from 1 to 200: largest excess over smallest", largest, ANY_H))
    rate = CASES["housing"].rate
    for heterogeneity in HETEROGENEITIES:
        case = housing(heterogeneity=heterogeneity)
        reached, literal = [
            _tail(simulate(case, pofl(rate, PAPER_H, jacobian=name), samples=MANY, **settings))
            for name in ("kalman", "paper")
        ]
        rows.append({"part": "windows", "case": case.name, "H": PAPER_H, "excess": reached, "paper": literal})
        claims.append(
            at_most(f"housing, H = {PAPER_H}, heterogeneity {heterogeneity}: tail excess", reached, AT_THE_OPTIMUM)
        )
    return Part(rows, claims)


def few(name: str, settings: dict[str, Any]) -> Part:
    """30 % of the clients asked per round, and one in five silent at random: twice the gap may be left."""
    rows, claims = [], []
    case, rate = CASES[name].case(), CASES[name].rate
    left = LEFT_TIMES * LEFT[CASES[name].curved, MANY]
    for share in ASKED:
        plain, exact, default = (
            _tail(simulate(case, method, samples=MANY, participation=share, **settings))
            for method in (pfl(rate), pofl(rate, jacobian="exact"), pofl(rate))
        )
        row = {"PFL": plain, "default": default, "exact": exact, "gap closed": 1 - default / plain}
        rows.append({"part": "few clients", "case": name, "asked": share, **row})
        if exact / plain <= left / 2:
            claims.append(at_least(f"{name}, {share:.0%} of clients asked: gap closed", 1 - default / plain, 1 - left))
    return Part(rows, claims)


def cost(settings: dict[str, Any]) -> Part:
    """Time of a whole run over that with the paper's estimator at H = 20; medians of five, taken in turn."""
    case, methods = (
        pricing(),
        {"default": pofl(), "paper, H = 20": pofl(jacobian="paper"), "exact": pofl(jacobian="exact")},
    )
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(1 + TURNS):
        for name, method in methods.items():
            started = time.perf_counter()
            simulate(case, method, samples=MANY, **settings)
            if turn:  # the first one compiles
                seconds[name].append(time.perf_counter() - started)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    rows = [{"part": "cost", "method": name, "seconds": value} for name, value in medians.items()]
    ratio = medians["default"] / medians["paper, H = 20"]
    return Part(rows, [at_most("time over that with the paper's estimator, H = 20", ratio, SLOWER)])


def picture(path: str, seeds: int = 10, rounds: int = ROUNDS) -> None:
    """Excess and deployed regret against deployments: the paper's estimator, the default, and the exact one."""
    methods = {
        "paper, H = 20": pofl(jacobian="paper"),
        "default": pofl(),
        "exact Jacobian": pofl(jacobian="exact"),
    }
    panels = []
    for name in ("pricing", "pricing, exponential"):
        case = CASES[name].case()
        runs = {
            label: simulate(case, method, rounds=rounds, samples=MANY, seeds=range(seeds), progress=False)
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
