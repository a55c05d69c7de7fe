"""Figure 6a: clients that differ more and more."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import AT_THE_OPTIMUM, AWAY, versus
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    rows, claims, panels = [], [], []
    for h in trial.settings["heterogeneity"]:
        pair = versus(trial, trial.case(heterogeneity=h))
        name = f"heterogeneity {h}"
        rows += pair.rows(heterogeneity=h)
        claims += pair.risk_claims(name, AT_THE_OPTIMUM, AWAY)
        panels.append(pair.risk_panel(name))
    return Found(rows, claims, panels)


ITEM = Item(
    name="fig6a",
    title="Housing: however much clients differ, only ProFL reaches the optimum",
    paper={"eta": "PFL 0.005, ProFL 0.001", "R": 5, "H": "0.2, 0.5, 1", "n": 500, "eps": 0},
    settings={
        "case": "housing",
        "clients": 10,
        "heterogeneity": (0.1, 0.3, 1.0),
        "method": ("pfl", "profl"),
        "eta": 0.01,
        "R": 5,
        "n": 500,
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="The 0.2, 0.5 and 1 in the paper's column H can only be heterogeneities. Both methods get the same learning "
    "rate; no sample is junk here, so the filter is off.",
    run=run,
)
