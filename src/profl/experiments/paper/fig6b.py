"""Figure 6b: few samples per deployment."""

from __future__ import annotations

from profl.cases import housing
from profl.experiments.paper.item import Found, Item, Trial
from profl.experiments.paper.versus import versus


def run(trial: Trial) -> Found:
    rows, claims, panels = [], [], []
    for n in trial.settings["n"]:
        pair = versus(trial, housing(), samples=n)
        name = f"n = {n}"
        rows += pair.rows(n=n)
        claims += pair.risk_claims(name, 0.01, 0.5)
        panels.append(pair.risk_panel(name))
    return Found(rows, claims, panels)


ITEM = Item(
    name="fig6b",
    title="Housing: with 5, 50 or 500 samples, only ProFL reaches the optimum",
    paper={"eta": "PFL 0.005, ProFL 0.001", "R": 5, "H": 1, "n": "5, 50, 500", "eps": 0},
    settings={
        "case": "housing",
        "n": (5, 50, 500),
        "eta": {"PFL": 0.01, "ProFL": 0.01},
        "R": 5,
        "rounds": 200,
        "clients": 10,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="With H = 1 the estimate is noise divided by a vanishing step; both methods get the same learning rate. No "
    "sample is junk here, so the filter is off.",
    run=run,
)
