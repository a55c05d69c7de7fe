"""Figure 6b: few samples per deployment."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import AT_THE_OPTIMUM, AWAY, versus
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    rows, claims, panels = [], [], []
    case = trial.case()
    for n in trial.settings["n"]:
        pair = versus(trial, case, n=n)
        name = f"n = {n}"
        rows += pair.rows(n=n)
        claims += pair.risk_claims(name, AT_THE_OPTIMUM, AWAY)
        panels.append(pair.risk_panel(name))
    return Found(rows, claims, panels)


ITEM = Item(
    name="fig6b",
    title="Housing: with 5, 50 or 500 samples, only ProFL reaches the optimum",
    paper={"eta": "PFL 0.005, ProFL 0.001", "R": 5, "H": 1, "n": "5, 50, 500", "eps": 0},
    settings={
        "case": "housing",
        "clients": 10,
        "heterogeneity": 0.5,
        "method": ("pfl", "profl"),
        "eta": 0.01,
        "R": 5,
        "n": (5, 50, 500),
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="With H = 1 the estimate is noise divided by a vanishing step; both methods get the same learning rate. No "
    "sample is junk here, so the filter is off.",
    run=run,
)
