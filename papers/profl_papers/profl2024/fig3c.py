"""Figure 3c: how many earlier deployments the Jacobian is estimated from, with linear and with curved demand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from profl.results.record import Run
from profl_papers.claims import Claim, at_least, at_most
from profl_papers.item import Found, Item
from profl_papers.measures import TENTH, known, line, panel, standard_deviation, tail, time_to
from profl_papers.trial import Trial

DEFAULT = "default (no H)"


def run(trial: Trial) -> Found:
    s = trial.settings
    rows: list[dict[str, Any]] = []
    claims, panels = [], []
    windows = [H for H in s["H"] if H is not None]
    for demand in s["reaction"]:
        case = trial.case(reaction=demand)
        paper = {"jacobian": "paper"} if "jacobian" in s else {}
        methods = {f"paper, H = {H}": trial.method("profl", H=H, **paper) for H in windows}
        if None in s["H"]:
            methods[DEFAULT] = trial.method("profl", jacobian="kalman", H=None)
        runs = {name: trial.simulate(case, method) for name, method in methods.items()}
        claims += compare(demand, runs, windows)
        rows += [
            {
                "demand": demand,
                "Jacobian": name,
                "excess": tail(ended),
                "sd": standard_deviation(ended),
                "deployments to a tenth": time_to(ended, TENTH),
            }
            for name, ended in runs.items()
        ]
        first = next(iter(runs.values()))
        stable = known(first)["stable point (PS)"] - first.optimum_risk
        lines = [line(ended, name, "excess") for name, ended in runs.items()]
        title, y = f"{demand} demand", "risk above the optimum"
        panels.append(panel(title, lines, {"stable point (PS)": stable}, y, scale="log"))
    return Found(rows, claims, panels)


def compare(demand: str, runs: dict[str, Run], windows: list[int]) -> list[Claim]:
    """The paper's claim for each two neighbouring windows, and the default against the best of them."""
    claims = []
    for short, long in pairwise(windows):
        few, many = runs[f"paper, H = {short}"], runs[f"paper, H = {long}"]
        name = f"{demand} demand, paper's estimator: excess with H = {long} over that with {short}"
        claims.append(at_least(name, tail(many) / tail(few), 1, " times", "smaller H closer"))
        name = (
            f"{demand} demand, paper's estimator: deployments to a tenth of the first excess, H = {short} over {long}"
        )
        claims.append(at_least(name, time_to(few, TENTH) / time_to(many, TENTH), 1, " times", "smaller H slower"))
    if DEFAULT not in runs:
        return claims
    best = min(tail(runs[f"paper, H = {H}"]) for H in windows)
    name = f"{demand} demand, default estimator: excess over that of the paper's with its best H"
    return [*claims, at_most(name, tail(runs[DEFAULT]) / best, 1, " times")]


ITEM = Item(
    name="fig3c",
    title="Pricing: the window H of the paper's estimator, and the default that needs none",
    paper={"eta": 0.001, "R": 5, "H": "4, 20, 100", "n": 500, "eps": 0},
    settings={
        "case": "pricing",
        "clients": 10,
        "heterogeneity": 0.5,
        "reaction": ("linear", "exponential"),
        "method": "profl",
        "eta": 0.01,
        "R": 5,
        "H": (4, 20, 100, None),
        "n": 500,
        "rounds": 200,
        "jacobian": ("paper", "kalman"),
        "filter": "none",
    },
    why="With eta = 0.001 a run is still on its way after 200 rounds. The paper asks for H - 1 > d, which H = 4 is not "
    "with five goods. A long window is wrong only where the reaction is curved, so both kinds of demand are run. The "
    "default estimator has no H: it finds its own memory, and stands beside the three windows.",
    run=run,
)
