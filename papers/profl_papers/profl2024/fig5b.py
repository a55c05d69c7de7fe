"""Figure 5b: regression with contribution dynamics."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import NEAR, STUCK, versus
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    pair = versus(trial, trial.case())
    return Found(pair.rows(), pair.risk_claims("retail", NEAR, STUCK), [pair.risk_panel("retail")])


ITEM = Item(
    name="fig5b",
    title="Retailers who leave where predictions are bad: PFL at the stable point, ProFL near the optimum",
    paper={"eta": "PFL 0.005, ProFL 0.001", "R": 5, "H": 1, "n": 500, "eps": 0},
    settings={
        "case": "retail",
        "clients": 10,
        "heterogeneity": 0.5,
        "method": ("pfl", "profl"),
        "eta": 0.01,
        "R": 5,
        "n": 500,
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="With H = 1 the estimate is noise divided by a vanishing step; both methods get the same learning rate. No "
    "sample is junk here, so the filter is off. Near means within 5 % of the gap between the two points.",
    run=run,
)
