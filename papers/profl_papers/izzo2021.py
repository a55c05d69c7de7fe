"""Izzo, Ying and Zou, "How to learn when data reacts to your model: performative gradient descent" (ICML 2021).

Five problems with known optimum (``profl_papers.izzo_cases``), the authors' rates and samples. PerfGD is
theirs (``profl_papers.spgd``: some steps of retraining, then differences from the newest deployment); PG is
``profl.pg`` with the same estimator of the Jacobian; DFO is ``profl.dfo`` from one point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from profl.methods import dfo, pg, pofl, prm, rgd, rrm
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.item import Found, Item
from profl_papers.izzo_cases import CASES, MU0
from profl_papers.measures import line, panel
from profl_papers.spgd import StatefulDescent
from profl_papers.trial import Trial

KNOWN: dict[str, Any] = {
    "pricing": (MU0 / 3, -35.9460, MU0 / 1.5, 0.0),
    "nonlinear": (-2 / 3, -0.384900, -1.0, 0.0),
    "mixture": (-0.357143, -0.0446429, -0.714286, 0.0),
    "regression": (-0.837438, 5.556549, 7.727273, 189.3950),
    "logistic": ((0.1438, -0.3159), 0.6172, (0.5214, -0.6015), 0.6786),
}
"""PO, its risk, PS, its risk; closed forms but for the last, which is given to four digits."""
FOUR_DIGITS = 1e-4
RECORDED = {
    "pricing": {"PerfGD": -35.91, "RGD": -0.40, "DFO": -34.30},
    "nonlinear": {"PerfGD": -0.3730, "RGD": -0.0226, "DFO": -0.3667},
    "mixture": {"PerfGD": -0.0444, "RGD": -0.0018},
    "regression": {"PerfGD": 5.5572, "RGD": 182.7},
    "logistic": {"PerfGD": 0.6168, "RGD": 0.6609, "DFO": 1.04},
}
"""Risk of the last model: the authors' scripts in pricing and logistic (ten runs), an earlier run of 200 elsewhere."""
PLACES = {
    "nonlinear": {"PerfGD": -0.6365, "RGD": -0.9986, "DFO": -0.5974},
    "mixture": {"PerfGD": -0.3608, "RGD": -0.7061},
    "regression": {"PerfGD": -0.8365, "RGD": 7.565},
}
"""The last model, mean of those 200, where it is one number; met within 10 % (DFO: half) of |PS - PO|."""
SHARES = {"PerfGD": 0.02, "RGD": 0.1, "DFO": 0.5}
"""How near to those, as a share of the risk between PO and PS: RGD is still on its way, DFO is noise mostly."""
OWN = ("PoFL", "PRM")
TRIED = {
    "pricing": {"H": 25, "n": 500, "T": 30, "delta": 4.75},
    "nonlinear": {"H": 4, "n": 500, "T": 30, "delta": 0.3},
    "mixture": {"H": 500, "n": 1000, "T": 100, "delta": 0.1},
    "regression": {"H": 500, "n": 500, "T": 40, "delta": 1.5},
    "logistic": {"H": 500, "n": 500, "T": 100, "delta": 1.1},
}


def methods(eta: float, window: int, delta: float, rounds: int) -> dict[str, Method]:
    """``profl.pg`` waits until its window is full: it gets a fifth of the deployments at most."""
    return {
        "RGD": rgd(eta),
        "DFO": dfo(eta, delta, points=1),
        "PerfGD": StatefulDescent(eta, stateful=False, window=window + 1, retrains_first=True),
        "PG": pg(eta, min(window, max(rounds // 5, 1)), jacobian="paper"),
        "PoFL": pofl(eta),
        "PRM": prm(),
    }


def run(trial: Trial) -> Found:
    table, claims, panels = [], [], []
    eta, rounds = trial.take("eta"), trial.take("rounds")
    for name, make in CASES.items():
        problem, stated = make(), trial.take(name)
        claims += answers(name, problem)
        tried = methods(eta, min(stated["H"], stated["T"]), stated["delta"], stated["T"])
        if name == "logistic":
            tried["RRM"] = rrm(eta, inner_steps=200)
        how = {"rounds": min(rounds, stated["T"]), "samples": stated["n"], "local_steps": 1, "seeds": trial.seeds}
        runs = {label: simulate(problem, method, **how, progress=False) for label, method in tried.items()}
        table += [row(name, label, ended) for label, ended in runs.items()]
        claims += recorded(name, problem, runs) + nearer(name, runs)
        lines = [line(ended, label, "excess") for label, ended in runs.items()]
        gap = problem.risk(problem.stable) - problem.risk(problem.optimum)
        panels.append(panel(name, lines, {"stable point (PS)": gap}, "risk above the optimum", scale="log"))
    return Found(table, claims, panels)


def answers(name: str, problem: Problem) -> list[Claim]:
    """PO, PS and their risks against the closed forms, to four digits."""
    found = (problem.optimum, problem.risk(problem.optimum), problem.stable, problem.risk(problem.stable))
    return [
        at_most(
            f"{name}: {what} from the known one, relative to its size or 1",
            np.max(np.abs(np.asarray(here) - known)) / max(1.0, np.max(np.abs(known))),
            FOUR_DIGITS,
        )
        for what, here, known in zip(("PO", "risk at PO", "PS", "risk at PS"), found, KNOWN[name], strict=True)
    ]


def ended(run: Run, figure: str = "risk") -> np.ndarray:
    """Of every seed, after the last deployment."""
    return np.asarray(getattr(run, figure)[:, -1])


def row(name: str, label: str, found: Run) -> dict[str, Any]:
    return {
        "problem": name,
        "method": label,
        "from PO": ended(found, "to_optimum").mean(),
        "sd": ended(found, "to_optimum").std(),
        "risk": ended(found).mean(),
        "optimum's": found.optimum_risk,
        "recorded": RECORDED[name].get(label, ""),
    }


def recorded(name: str, problem: Problem, runs: dict[str, Run]) -> list[Claim]:
    """The risks on record; in direction where RGD stays above half the way to PS, PerfGD below it, DFO above PerfGD."""
    claims, best, stable = [], problem.risk(problem.optimum), problem.risk(problem.stable)
    perf = ended(runs["PerfGD"]).mean()
    for label, figure in RECORDED[name].items():
        mean = ended(runs[label]).mean()
        right = {"RGD": mean > (best + stable) / 2, "PerfGD": mean < (best + stable) / 2, "DFO": mean > perf}[label]
        within = SHARES[label] * (stable - best)
        claims.append(close(f"{name}: risk that {label} ends at", mean, figure, within, bool(right)))
    for label, figure in PLACES.get(name, {}).items():
        mean = float(np.mean(runs[label].theta[:, -1]))
        within = (0.5 if label == "DFO" else 0.1) * abs(float(problem.stable[0] - problem.optimum[0]))
        claims.append(close(f"{name}: model that {label} ends at", mean, figure, within))
    if name == "pricing":
        far = {"PerfGD": (0.129, 0.044), "DFO": (0.904, 0.354), "RGD": (4.868, 0.1)}  # two standard deviations each
        for label, (figure, within) in far.items():
            mean = ended(runs[label], "to_optimum").mean()
            side = mean > 1 if label == "RGD" else mean < 4.868
            claims.append(close(f"pricing: distance of {label} from PO", mean, figure, within, side, paper=f"{figure}"))
    if name == "logistic":
        worst = ended(runs["RRM"]).mean()
        claims.append(
            at_least("logistic: risk that RRM ends at, over PS's", worst / stable, 1.5, paper="3.92: diverges")
        )
    return claims


def nearer(name: str, runs: dict[str, Run]) -> list[Claim]:
    """PerfGD ends below RGD; profl's own methods at least as near to PO as the better of PerfGD and PG."""
    perf = min((runs["PerfGD"], runs["PG"]), key=lambda run: ended(run, "excess").mean())
    below = ended(runs["PerfGD"]).mean() - ended(runs["RGD"]).mean()
    return [
        at_most(f"{name}: PerfGD's risk less RGD's", below, 0.0, paper="below"),
        *(
            at_most(
                f"{name}: {label}'s excess over the lower of PerfGD's and PG's, same deployments and samples",
                ended(runs[label], "excess").mean() / ended(perf, "excess").mean(),
                1.0,
            )
            for label in OWN
        ),
    ]


ITEM = Item(
    name="izzo2021",
    title="Five problems whose optimum is known: the performative gradient finds it, retraining does not",
    paper={"eta": 0.1, "runs": 10, **TRIED},
    settings={"eta": 0.1, "rounds": 100, **TRIED},
    why="T deployments per problem. PerfGD's second term is pathwise here, not by the score function: less noise. "
    "Figures on record are of the authors' own scripts (pricing, logistic) or of an earlier run of the same by 200 "
    "seeds; they are met within 2 % (PerfGD), a tenth (RGD) or half (DFO) of the risk between PO and PS.",
    run=run,
    work="izzo2021",
    citation="Izzo, Ying, Zou: How to learn when data reacts to your model: performative gradient descent (ICML 2021)",
    finding="All optima and stable points are those known, and PerfGD ends below RGD everywhere. PRM ends nearer to "
    "the optimum than PerfGD in all five; PoFL at the authors' rate does not in pricing, the mixture and the "
    "regression: where thirty deployments are all there is, what it spends on exploring counts. In logistic PerfGD "
    "runs away on some seeds.",
    changed="PerfGD was profl.pg with the paper's window H at first, which waits until the window is full; now it is "
    "the authors' own form (retraining first, window H + 1), pg is beside it with a window of a fifth of the "
    "deployments, and profl's methods are held against the better of the two. PerfGD's tolerance went from 10 % to 2 "
    "%. PRM's prior where there is one client alone was mended with these five and the bottleneck of izzo2022 in view.",
)
