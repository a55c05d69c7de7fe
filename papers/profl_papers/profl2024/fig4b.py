"""Figure 4b: strategic classification, different clients."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import versus
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    pair = versus(trial, trial.case())
    return Found(pair.rows(), pair.accuracy_claims("different clients"), [pair.accuracy_panel("different clients")])


ITEM = Item(
    name="fig4b",
    title="Strategic classification, different clients: ProFL decides right more often than PFL",
    paper={"eta": 0.03, "R": 500, "H": 1, "n": 500, "eps": 0},
    settings={
        "case": "strategic",
        "clients": 10,
        "heterogeneity": 0.5,
        "method": ("pfl", "profl"),
        "eta": 0.1,
        "R": 5,
        "n": 500,
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="R = 500 and H = 1 look exchanged with a neighbouring column; eta = 0.1, R = 5 and the default estimator "
    "do with 200 rounds. No sample is junk here, so the filter is off.",
    run=run,
)
