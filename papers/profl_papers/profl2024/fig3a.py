"""Figure 3a: more samples per deployment."""

from __future__ import annotations

from itertools import pairwise

from profl_papers.claims import at_least
from profl_papers.item import Found, Item
from profl_papers.measures import known, line, panel, standard_deviation, tail
from profl_papers.trial import Trial


def run(trial: Trial) -> Found:
    s = trial.settings
    case, method = trial.case(), trial.method("profl")
    runs = {n: trial.simulate(case, method, n=n) for n in s["n"]}
    claims = []
    for few, many in pairwise(s["n"]):
        ratio = tail(runs[few]) / tail(runs[many])
        claims.append(at_least(f"excess with n = {few} over that with n = {many}", ratio, 1, " times", "closer"))
        ratio = standard_deviation(runs[few]) / standard_deviation(runs[many])
        claims.append(
            at_least(f"spread over seeds with n = {few} over that with {many}", ratio, 1, " times", "stabler")
        )
    lines = [line(ended, f"n = {n}") for n, ended in runs.items()]
    above = [line(ended, f"n = {n}", "excess") for n, ended in runs.items()]
    return Found(
        [{"n": n, "excess": tail(ended), "sd": standard_deviation(ended)} for n, ended in runs.items()],
        claims,
        [
            panel("risk", lines, known(runs[s["n"][0]])),
            panel("above the optimum", above, {}, "risk above the optimum", scale="log"),
        ],
    )


ITEM = Item(
    name="fig3a",
    title="Pricing: more samples per deployment end closer to the optimum, and more alike over seeds",
    paper={"eta": 0.001, "R": 5, "H": 20, "n": "50, 500, 5000", "eps": 0},
    settings={
        "case": "pricing",
        "clients": 10,
        "heterogeneity": 0.5,
        "method": "profl",
        "eta": 0.01,
        "R": 5,
        "n": (50, 500, 5000),
        "rounds": 200,
        "jacobian": "kalman",
        "filter": "none",
    },
    why="With eta = 0.001 a run is still on its way after 200 rounds. No sample is junk here, so the filter is off.",
    run=run,
)
