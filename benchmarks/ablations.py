"""``python -m benchmarks ablations``: what each part of a method is worth, with the others as they are.

``gradient``: the performative gradient with every estimator of df/dtheta, with exploration and without, with either
form of the second term, from few samples and from many: linear and curved demand, and strategic classification.
``prm``: ``prm`` as it is, and with one thing off at a time.

*Share left* is excess / (L(PS) - L(PO)) over the last 10 % of the rounds: 1 is where retraining ends, 0 the optimum.
The table of docs/ablations.md is made by ``python -m benchmarks.ablations FILE.json`` from the JSON of the command.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.bench import Bench, Row
from profl.cases import orange_juice, pricing, strategic
from profl.methods import pofl
from profl.methods.method import Method
from profl.methods.prm import PRM, client, response
from profl.parts import Exploration
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_most


class Setting(NamedTuple):
    """A problem and the learning rate that suits it."""

    problem: Callable[[], Problem]
    learning_rate: float


SETTINGS = {
    "linear demand": Setting(pricing, 0.01),
    "curved demand": Setting(partial(pricing, reaction="exponential"), 0.01),
    "strategic": Setting(strategic, 0.1),
}
ESTIMATORS = {"paper": "paper", "least squares": "least_squares", "Kalman": "kalman", "tracking": "tracking"}
EXPLORATIONS = {"none": None, "ours": Exploration()}
SECOND_TERMS = "score", "pathwise"
SAMPLES = 50, 500
OURS = "Kalman", "ours", "pathwise"
ROUNDS, LOCAL_STEPS = 200, 5
DEPLOYMENTS, PRM_SAMPLES = 30, {"linear demand": 500, "curved demand": 500, "orange juice": 26}
PRM_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "linear demand": pricing,
    "curved demand": partial(pricing, reaction="exponential"),
    "orange juice": partial(orange_juice, 10),
}
ENDLESS = 1e6
"""Natural units: a first trust region that holds nothing."""


class WithoutExploration(PRM):
    """``prm`` whose clients deploy the model to try as it is."""

    def deploy(self, problem: Any, state: Any, key: Any, theta: Any) -> Any:
        return client.tried_model(problem, state, theta), state


class WithoutCurvature(PRM):
    """``prm`` that fits lines; what is not fitted then begins with the second order. ``measured`` takes it away."""


PRMS: dict[str, Callable[[], PRM]] = {
    "prm": PRM,
    "without sharing": partial(PRM, share=False),
    "without curvature": WithoutCurvature,
    "without a trust region": partial(PRM, region=ENDLESS),
    "without exploration": WithoutExploration,
    "without more than one turn of learning from others": partial(PRM, sharing_turns=1),
    "without more than one Newton turn": partial(PRM, newton_turns=1),
}


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` makes short runs that show the form and prove nothing."""
    parts: dict[str, Callable[[], Part]] = {
        f"gradient, {name}, n = {n}": partial(of_gradient, name, n, seeds, quick)
        for name, n in itertools.product(SETTINGS, SAMPLES)
    }
    parts |= {f"prm, {name}": partial(of_prm, name, seeds, quick) for name in PRM_PROBLEMS}
    return Bench(parts)


def gap(problem: Problem) -> float:
    return problem.risk(problem.stable) - problem.risk(problem.optimum)


def figures(run: Run, problem: Problem) -> Row:
    """What is left on average and in the worst seed; None where a seed diverged."""
    left = run.tail_excess() / gap(problem)
    whole = bool(np.isfinite(left).all())
    return {"share left": float(left.mean()) if whole else None, "worst seed": float(left.max()) if whole else None}


def of_gradient(name: str, n: int, seeds: int, quick: bool) -> Part:
    """Every estimator, exploration and second term on one problem with n samples a deployment."""
    problem, rate = SETTINGS[name].problem(), SETTINGS[name].learning_rate
    rows = []
    for estimator, exploration, second in itertools.product(ESTIMATORS, EXPLORATIONS, SECOND_TERMS):
        method = pofl(rate, jacobian=ESTIMATORS[estimator], explore=EXPLORATIONS[exploration], second_term=second)
        run = measured(problem, method, n, 10 if quick else ROUNDS, LOCAL_STEPS, seeds)
        cell = {"estimator": estimator, "exploration": exploration, "second term": second}
        rows.append({"part": f"gradient, {name}, n = {n}", **cell, **figures(run, problem)})
    if quick:
        return Part(rows, [])
    left = {(row["estimator"], row["exploration"], row["second term"]): row["share left"] for row in rows}
    ours, printed = left[OURS], left["paper", "none", "score"]
    alike = left["paper", "ours", "pathwise"]
    claims = [
        at_most(
            f"{name}, n = {n}: left by ours, over the paper's estimator, score form, no exploration",
            ours / printed,
            1.0,
        ),
        at_most(f"{name}, n = {n}: left by ours, over the paper's estimator with all else the same", ours / alike, 1.0),
    ]
    return Part(rows, claims)


def of_prm(name: str, seeds: int, quick: bool) -> Part:
    """prm as it is, and with one thing off."""
    problem, n = PRM_PROBLEMS[name](), PRM_SAMPLES[name]
    rows = []
    for what, make in PRMS.items():
        method = make()
        run = measured(problem, method, n, 6 if quick else DEPLOYMENTS, 1, seeds)
        regret = float(np.mean(run.deployed_regret[:, -1])) / gap(problem)
        rows.append({"part": f"prm, {name}", "method": what, **figures(run, problem), "regret": regret})
    return Part(rows, [])


def measured(problem: Problem, method: Method, n: int, rounds: int, steps: int, seeds: int) -> Run:
    settings: dict[str, Any] = {"rounds": rounds, "local_steps": steps, "samples": n, "seeds": range(seeds)}
    most_curved = 0 if isinstance(method, WithoutCurvature) else response.MOST_CURVED
    with patch.object(response, "MOST_CURVED", most_curved):
        return simulate(problem, method, progress=False, **settings)


def page(rows: Sequence[Row]) -> str:
    """The tables of docs/ablations.md, in per cent of the gap: mean (worst seed)."""
    text = []
    for name in SETTINGS:
        found = {n: [row for row in rows if row["part"] == f"gradient, {name}, n = {n}"] for n in SAMPLES}
        keys = "estimator", "exploration", "second term"
        text.append(f"### {name[0].upper()}{name[1:]}\n")
        text.append(
            f"| {' | '.join(keys)} | {' | '.join(f'n = {n}' for n in SAMPLES)} |\n|---|---|---|{'---|' * len(SAMPLES)}"
        )
        for few, many in zip(*found.values(), strict=True):
            text.append(f"| {' | '.join(few[key] for key in keys)} | {percent(few)} | {percent(many)} |")
        text.append("")
    text.append(f"### prm\n\n| | {' | '.join(PRM_PROBLEMS)} |\n|---|{'---|' * len(PRM_PROBLEMS)}")
    for what in PRMS:
        cells = [next(r for r in rows if r["part"] == f"prm, {name}" and r["method"] == what) for name in PRM_PROBLEMS]
        shown = (f"{percent(cell)}, regret {cell['regret']:.2g}" for cell in cells)
        text.append(f"| {what} | {' | '.join(shown)} |")
    return "\n".join(text)


def percent(row: Row) -> str:
    """
    >>> percent({"share left": 0.0123, "worst seed": 2.0}), percent({"share left": None})
    ('1.2 (200)', 'diverged')
    """
    if row["share left"] is None:
        return "diverged"
    mean, worst = (100 * row[name] for name in ("share left", "worst seed"))
    return " ".join(
        (f"{mean:.2g}" if mean < 100 else f"{mean:.0f}", f"({worst:.2g})" if worst < 100 else f"({worst:.0f})")
    )


if __name__ == "__main__":
    target = Path("docs/ablations.md")
    made = page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["items"][0]["rows"])
    whole = target.read_text(encoding="utf-8")
    block = f"<!-- ablations -->\n{made}\n<!-- /ablations -->"
    target.write_text(re.sub(r"<!-- ablations -->.*<!-- /ablations -->", lambda _: block, whole, flags=re.DOTALL))
