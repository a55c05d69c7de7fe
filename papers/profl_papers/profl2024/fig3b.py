"""Figure 3b: the learning rate."""

from __future__ import annotations

from itertools import pairwise

from profl_papers.claims import at_least
from profl_papers.item import Found, Item
from profl_papers.measures import TENTH, known, line, panel, standard_deviation, tail, time_to
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    s = trial.settings
    case = trial.case()
    runs = {eta: trial.simulate(case, trial.method("profl", eta=eta)) for eta in s["eta"]}
    claims = []
    for fast, slow in pairwise(s["eta"]):
        longer = time_to(runs[slow], TENTH) / time_to(runs[fast], TENTH)
        name = f"deployments until a tenth of the first excess, eta = {slow} over {fast}"
        claims.append(at_least(name, longer, 1, " times", "slower"))
        nearer = tail(runs[fast]) / tail(runs[slow])
        claims.append(at_least(f"excess with eta = {fast} over that with {slow}", nearer, 1, " times", "closer"))
    rows = [
        {
            "eta": eta,
            "excess": tail(ended),
            "sd": standard_deviation(ended),
            "deployments to a tenth": time_to(ended, TENTH),
        }
        for eta, ended in runs.items()
    ]
    lines = [line(ended, f"eta = {eta}") for eta, ended in runs.items()]
    above = [line(ended, f"eta = {eta}", "excess") for eta, ended in runs.items()]
    return Found(
        rows,
        claims,
        [
            panel("risk", lines, known(runs[s["eta"][0]])),
            panel("above the optimum", above, {}, "risk above the optimum", scale="log"),
        ],
    )


ITEM = Item(
    name="fig3b",
    title="Pricing: a smaller learning rate is slower and ends closer to the optimum",
    paper={"eta": "0.03, 0.01, 0.001", "R": 5, "H": 20, "n": 2500, "eps": 0},
    settings={
        "case": "pricing",
        "clients": 10,
        "heterogeneity": 0.5,
        "reaction": "linear",
        "method": "profl",
        "eta": (0.03, 0.01, 0.001),
        "R": 5,
        "n": 500,
        "rounds": 800,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="n = 500 instead of 2500, and 800 rounds, so that the smallest rate arrives too. No sample is junk here, so "
    "the filter is off.",
    run=run,
)
