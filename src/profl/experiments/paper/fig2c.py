"""Figure 2c: a sample size that follows the noise, with linear and with curved demand."""

from __future__ import annotations

from typing import Any

from profl.algorithms import profl
from profl.cases import pricing
from profl.client.sample_size import AdaptiveSamples
from profl.experiments.claims import at_most
from profl.experiments.paper.item import Found, Item, Trial, known, line, panel, spread, tail


def run(trial: Trial) -> Found:
    s = trial.settings
    rows: list[dict[str, Any]] = []
    claims, panels = [], []
    for demand in s["demand"]:
        case = pricing(reaction=demand)
        fixed = trial.simulate(case, profl(s["eta"], filter=s["filter"]))
        runs = {f"fixed {s['n']}": fixed}
        for tolerance in s["tolerances"]:
            size = AdaptiveSamples(tolerance, s["least"], s["n"])
            ended = trial.simulate(case, profl(s["eta"], filter=s["filter"], samples=size))
            runs[f"tolerance {tolerance}"] = ended
            used = ended.samples[:, -1].sum() / fixed.samples[:, -1].sum()
            name = f"{demand} demand, tolerance {tolerance}"
            claims += [
                at_most(f"{name}: share of the samples of fixed n", used, 0.5, paper="significantly fewer"),
                at_most(f"{name}: excess", tail(ended), tolerance, paper="within the tolerance"),
            ]
        rows += [
            {
                "demand": demand,
                "n": name,
                "mean n": float(ended.samples[:, -1].sum() / ended.deployments[:, -1].sum()),
                "excess": tail(ended),
                "sd": spread(ended),
            }
            for name, ended in runs.items()
        ]
        drawn = [line(ended, name, "samples") for name, ended in runs.items()]
        panels += [
            panel(f"{demand} demand", [line(ended, name) for name, ended in runs.items()], known(fixed)),
            panel(f"{demand} demand, samples drawn", drawn, {}, "samples so far, all clients"),
        ]
    return Found(rows, claims, panels)


ITEM = Item(
    name="fig2c",
    title="Pricing: a sample size that follows the noise draws fewer samples",
    paper={"eta": 0.001, "R": 5, "H": 100, "n": "up to 1000", "eps": 0},
    settings={
        "case": "pricing",
        "demand": ("linear", "exponential"),
        "eta": 0.01,
        "R": 5,
        "n": 1000,
        "least": 50,
        "rounds": 200,
        "clients": 10,
        "tolerances": (0.05, 0.1),
        "jacobian": "kalman",
        "filter": "none",
    },
    why="The paper's pricing case is linear, but its text calls this one non-linear, so both kinds of demand are run. "
    "Its bound for n has a negative denominator for ordinary H (it holds H^6); here n is the variance of the gradient "
    "over the tolerance, which is then also asked of the excess. eta = 0.01 lets runs with linear demand arrive; with "
    "curved demand 200 rounds are short.",
    run=run,
)
