"""Figure 5a: pricing with contribution dynamics."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import NEAR, STUCK, versus
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    pair = versus(trial, trial.case())
    return Found(pair.rows(), pair.risk_claims("group pricing", NEAR, STUCK), [pair.risk_panel("group pricing")])


ITEM = Item(
    name="fig5a",
    title="Groups of customers who come and go with the prices: PFL at the stable point, ProFL near the optimum",
    paper={"eta": "PFL 0.005, ProFL 0.001", "R": 5, "H": 1, "n": 500, "eps": 0},
    settings={
        "case": "group_pricing",
        "clients": 10,
        "heterogeneity": 0.1,
        "method": ("pfl", "profl"),
        "eta": 0.02,
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
