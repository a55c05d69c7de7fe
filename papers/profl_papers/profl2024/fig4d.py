"""Figure 4d: Adult, where everyone responds and where only those who earn more do."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024.versus import versus
from profl_papers.trial import Trial

NAMES = {"all": "everyone responds", "positive": "class 1 responds"}


def run(trial: Trial) -> Found:
    s = trial.settings
    rows, claims, panels = [], [], []
    for respond, sensitivity in zip(s["respond"], s["sensitivity"], strict=True):
        pair = versus(trial, trial.case(respond=respond, sensitivity=sensitivity))
        name = f"{NAMES[respond]}, mean sensitivity {sensitivity:g}"
        rows += pair.rows(variant=name)
        claims += pair.accuracy_claims(name, "60.78 % against 54.74 %")
        panels.append(pair.accuracy_panel(name))
    return Found(rows, claims, panels)


ITEM = Item(
    name="fig4d",
    title="Adult: ProFL decides right more often than PFL",
    paper={"eta": 0.03, "R": 5, "H": 1, "n": 2368, "eps": 0},
    settings={
        "case": "adult",
        "clients": 10,
        "heterogeneity": 0.1,
        "sensitivity": (6.0, 3.0),
        "respond": ("all", "positive"),
        "method": ("pfl", "profl"),
        "eta": 0.3,
        "R": 5,
        "n": 2000,
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="The paper gives no constants. Two sets of them bracket its 60.78 % and meet its 54.74 %; six numeric columns, "
    "balanced, standardised, no intercept, ten clients. H = 1 divides noise by a vanishing step. No row is "
    "junk here, so the filter is off.",
    run=run,
    data=("adult",),
)
