"""Izzo, Zou and Ying, "How to learn when data gradually reacts to your model" (AISTATS 2022): its five experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from profl.methods import pofl, prm, rgd
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Claim, at_most, close
from profl_papers.item import Found, Item
from profl_papers.izzo_worlds import WORLDS
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.spgd import StatefulDescent
from profl_papers.trial import Trial

METHODS: dict[str, Callable[..., Method]] = {
    "RGD": rgd,
    "PGD": lambda eta, **more: StatefulDescent(eta, stateful=False, **more),
    "SPGD": StatefulDescent,
    "PoFL (tracking)": lambda eta: pofl(eta, jacobian="tracking"),
    "PRM": prm,
}
LEARN = ("SPGD", "PoFL (tracking)", "PRM")
"""Which must end below those that ignore the state."""
SAME = 1e-3
"""How far an optimum may be from the closed form: numbers are given to four or five digits."""
PAPER = {"bottleneck": {"RGD": "-0.019", "PGD": "-0.053", "SPGD": "-0.168; -0.192 where it knows the bottleneck"}}
RUN = {"RGD": -0.019, "PGD": -0.053, "SPGD": -0.168}
TENTH = 0.0209
"""What the authors' script ends at in the bottleneck, and how near to it: a tenth of what the optimum gains."""
BEST = -0.192
"""The best long-run loss in the bottleneck: that of the authors' method which knows that only theta.mu counts."""


class Outcome(NamedTuple):
    """Of one world: its problems, one per seed, and the long-run losses of every method, (seeds, rounds + 1)."""

    problems: list[Problem]
    losses: dict[str, np.ndarray]

    def ended(self, method: str) -> float:
        return float(self.losses[method][:, -1].mean())

    def best(self) -> float:
        return float(np.mean([problem.risk(problem.optimum) for problem in self.problems]))


def run(trial: Trial) -> Found:
    rows, claims, panels = [], [], []
    settling = trial.take("settling")
    linear = {k: observe(trial, "linear", settling=k) for k in settling}
    for k, outcome in linear.items():
        rows += table(f"linear, settles in {k}", "linear", outcome)
        claims += below(f"linear, settles in {k}", outcome)
    claims.append(closed_form("linear", linear[settling[0]]))
    panels.append(revenue_panel(linear))
    for world in ("nonlinear", "oscillating", "bottleneck", "spam"):
        outcome = observe(trial, world)
        rows += table(world, world, outcome)
        claims += [closed_form(world, outcome), *below(world, outcome)]
        if world == "bottleneck":
            claims.append(close("bottleneck: risk at the optimum", outcome.best(), -0.20929, 1e-5))
            claims += [
                close(
                    f"bottleneck: long-run loss of {label}",
                    outcome.ended(label),
                    figure,
                    TENTH,
                    outcome.ended(label) < 0,
                )
                for label, figure in RUN.items()
            ]
            claims += [
                at_most(f"bottleneck: long-run loss of {method}", outcome.ended(method), BEST, paper=f"{BEST}")
                for method in ("PoFL (tracking)", "PRM")
            ]
        panels.append(loss_panel(world, outcome))
    return Found(rows, claims, panels)


def observe(trial: Trial, world: str, **where: Any) -> Outcome:
    """Every method in one world, a problem per seed: seeds draw where a run begins, and the bottleneck's mu0."""
    n, rounds = trial.take("n"), trial.take("rounds")
    problems = [WORLDS[world](seed, n, **where) for seed in trial.seeds]
    losses = {}
    for label, stated in trial.take(world).items():
        arguments = dict(stated)
        unseen = {"penalised": False} if arguments.pop("penalty", "seen") == "unseen" else {}
        method = METHODS[label.removesuffix(", penalty seen")](*_first(arguments), **arguments)
        losses[label] = np.stack(
            [
                simulate(
                    WORLDS[world](seed, n, **where, **unseen),
                    method,
                    rounds=rounds,
                    local_steps=1,
                    samples=n,
                    seeds=(seed,),
                    progress=False,
                ).risk[0]
                for seed in trial.seeds
            ]
        )
    return Outcome(problems, losses)


def _first(arguments: dict[str, Any]) -> list[Any]:
    """eta, which stands first in every method that has one."""
    return [arguments.pop("eta")] if "eta" in arguments else []


def table(name: str, world: str, outcome: Outcome) -> list[dict[str, Any]]:
    stable = float(np.mean([problem.risk(problem.stable) for problem in outcome.problems]))
    return [
        {
            "world": name,
            "method": label,
            "long-run loss": outcome.ended(label),
            "sd": float(np.std(losses[:, -1])),
            "optimum's": outcome.best(),
            "stable point's": stable,
            "paper": PAPER.get(world, {}).get(label, ""),
        }
        for label, losses in outcome.losses.items()
    ]


def below(name: str, outcome: Outcome) -> list[Claim]:
    """Those who learn how the state moves end below the better of those who do not."""
    plain = min(outcome.ended("RGD"), outcome.ended("PGD"))
    return [
        at_most(f"{name}: {label}'s long-run loss less the lower of RGD's and PGD's", outcome.ended(label) - plain, 0.0)
        for label in LEARN
        if label in outcome.losses
    ]


def closed_form(world: str, outcome: Outcome) -> Claim:
    """The optimum of the long run against what is known of it, the farthest of all seeds."""
    if world == "spam":  # the authors' own, from samples of 10,000: the risk is flat there
        known, tolerance = [np.array([-0.1961, 0.2205])] * len(outcome.problems), 5e-3
    elif world == "bottleneck":
        known, tolerance = [0.46557 * problem.clients["mu0"][0] for problem in outcome.problems], SAME
    else:
        slopes = [(problem.clients["A"][0], problem.clients["b"][0]) for problem in outcome.problems]
        known, tolerance = [np.linalg.solve(-2 * slope, level) for slope, level in slopes], SAME
    off = max(np.max(np.abs(p.optimum - point)) for p, point in zip(outcome.problems, known, strict=True))
    return at_most(f"{world}: the optimum from the closed form", off, tolerance)


def loss_panel(world: str, outcome: Outcome) -> dict[str, Any]:
    x = range(next(iter(outcome.losses.values())).shape[1])
    lines = [line(label, label, x, losses) for label, losses in outcome.losses.items()]
    return panel(world, lines, {"optimum (PO)": outcome.best()}, "long-run loss")


def revenue_panel(linear: dict[int, Outcome]) -> dict[str, Any]:
    """Of the best revenue, how much is had in the end, as people take longer to settle."""
    best = next(iter(linear.values())).best()
    lines = [
        line(label, label, list(linear), np.stack([o.losses[label][:, -1] for o in linear.values()], 1) / best)
        for label in next(iter(linear.values())).losses
    ]
    levels = {"optimum (PO)": 1.0, "stable point (PS)": 0.0}
    return panel("linear", lines, levels, "share of the best revenue", x="deployments until people have settled")


ITEM = Item(
    name="izzo2022",
    title="People who react gradually: who learns how their state moves finds the optimum of the long run",
    paper={"rounds": "40; 50 in linear and oscillating", "seeds": "5, 50 or 100", "settling": "1 to 2048"},
    settings={
        "rounds": 40,
        "n": 100,
        "settling": (1, 8, 64),
        "linear": {
            "RGD": {"eta": 0.1},
            "PGD": {"eta": 0.1},
            "SPGD": {"eta": 0.1, "perturbation": 0.1},
            "PoFL (tracking)": {"eta": 0.1},
        },
        "nonlinear": {
            "RGD": {"eta": 0.1},
            "PGD": {"eta": 0.1, "wait": 5},
            "SPGD": {"eta": 0.1, "perturbation": 0.1, "longest": 10.0},
            "PoFL (tracking)": {"eta": 0.1},
        },
        "oscillating": {
            "RGD": {"eta": 0.4},
            "PGD": {"eta": 0.316},
            "SPGD": {"eta": 0.316, "perturbation": 0.1},
            "PoFL (tracking)": {"eta": 0.03},
        },
        "bottleneck": {
            "RGD": {"eta": 0.1, "penalty": "unseen"},
            "RGD, penalty seen": {"eta": 0.1},
            "PGD": {"eta": 0.316, "window": 9, "warm": 0.1, "penalty": "unseen"},
            "SPGD": {"eta": 0.1, "perturbation": 0.032, "window": 5, "warm": 0.1},
            "PoFL (tracking)": {"eta": 0.1},
            "PRM": {},
        },
        "spam": {
            "RGD": {"eta": 0.02},
            "PGD": {"eta": 0.1, "wait": 5, "window": 2},
            "SPGD": {"eta": 0.1, "perturbation": 0.1},
            "PoFL (tracking)": {"eta": 0.1},
        },
    },
    why="Rates are the authors' where their code states them, and otherwise the best of two to five on seeds 100-105. "
    "Everywhere 40 deployments. PRM measures its steps by how much samples differ, which is next to nothing in the "
    "other worlds: it is run in the bottleneck alone. There the authors' RGD and PGD leave |theta|^2 / 2 out of their "
    "gradient; so they do here, beside RGD that sees it, which ends at the stable point: as low as the authors' best.",
    run=run,
    work="izzo2022",
    citation="Izzo, Zou, Ying: How to learn when data gradually reacts to your model (AISTATS 2022)",
    finding="The paper's claim holds in every world: its method ends below RGD and PGD. RGD that sees the penalty, "
    "which the authors' leaves out, does as well in the bottleneck as their best, and so does PRM. PoFL with tracking "
    "does not do what is asked of it where there is next to no state (settles in 1), where the state swings "
    "(oscillating: its memories are never negative), nor in the bottleneck. The authors' DFO is left out.",
    changed="What the authors' script ends at in the bottleneck became claims after results had been seen; the "
    "tolerance is that of izzo2021, a tenth of what the optimum gains.",
)
