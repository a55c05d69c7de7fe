"""What ``profl demo`` runs: two problems, clean, and with junk samples and hostile clients.

Nearly all its time is compilation, so runs are short, the clean run is the other one with no junk and nobody hostile
(the same code).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from profl.cases import orange_juice, pricing
from profl.methods import pfl, pg, pofl, prm, profl
from profl.methods.method import Method
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.results.tables import gap_closed
from profl.run.compiled.simulate import simulate

JUNK, SOURCE, DISTANCE = 0.2, "blob", 30.0
"""A fifth of the samples lies thirty standard deviations away (nine in each of the eleven brands). At ten, which was
tried first, pofl still closes 88 % of the gap on orange juice, pg as well."""
HOSTILE, ATTACK, RULE = 0.2, "sign_flip", "trimmed_mean"
"""A fifth of the clients sends its change of the model backwards; what profl and prm combine models with."""
ROUNDS, STEPS, SAMPLES, SEEDS = 40, 5, 120, range(3)
CHANGES, KEEP = 30, 8
"""Deployments that prm has, and batches that it minimises over: fewer than by default (32), which is quicker."""
ROBUST = ("profl", "prm")


class Trial(NamedTuple):
    """One method on one problem."""

    problem: str
    method: Method
    rounds: int
    steps: int


class TrialResult(NamedTuple):
    """The runs of a trial: on clean data, and with junk and hostile clients."""

    problem: str
    clean: Run
    trouble: Run


def problems() -> dict[str, Problem]:
    """The problems of the demo, by name."""
    return {"pricing": pricing(), "orange juice": orange_juice(clients=12)}


def trials(rounds: int = ROUNDS) -> list[Trial]:
    """The trials of the demo: every problem with its methods, plain retraining first."""
    methods = {
        "pricing": [pfl(0.05), pg(0.05), pofl(0.05), profl(0.05, aggregate=RULE)],
        "orange juice": [pfl(0.3), pofl(0.3), profl(0.3, aggregate=RULE)],
    }
    steady = [Trial(name, method, rounds, STEPS) for name, some in methods.items() for method in some]
    return [*steady, Trial("orange juice", prm(filter="robust", aggregate=RULE, keep=KEEP), CHANGES, 1)]


def demo(*, seeds: Sequence[int] = SEEDS, rounds: int = ROUNDS, progress: bool = True) -> Iterator[TrialResult]:
    """The results of all trials, one after the other: two at a time take 120 s, not 129, on two cores."""
    cases = problems()
    for trial in trials(rounds):
        yield run(cases[trial.problem], trial, seeds, progress)


def run(case: Problem, trial: Trial, seeds: Sequence[int], progress: bool) -> TrialResult:
    """The runs of one trial: on clean data, and with junk and hostile clients."""
    settings: dict[str, Any] = {"rounds": trial.rounds, "local_steps": trial.steps, "samples": SAMPLES, "seeds": seeds}
    runs = []
    for junk, hostile in ((0.0, 0.0), (JUNK, HOSTILE)):
        problem = contaminate(case, junk, SOURCE, distance=DISTANCE)
        if not junk:
            problem = replace(problem, name=case.name)
        runs.append(simulate(problem, trial.method, attack=ATTACK, hostile=hostile, progress=progress, **settings))
    return TrialResult(trial.problem, *runs)


def summary_sentence(results: Sequence[TrialResult]) -> str:
    """One sentence on the runs with junk and hostile clients: first the robust methods, then the others."""
    robust = [one for one in results if one.clean.algorithm in ROBUST]
    parts = [
        ", ".join(
            f"{one.clean.algorithm} {format_gap_closed(one.trouble)} in {deployments(one.clean)} deployments"
            for one in group
        )
        for group in (robust, [one for one in results if one not in robust])
    ]
    return (
        f"With {JUNK:.0%} junk samples and {HOSTILE:.0%} hostile clients, of the gap between the stable point and the "
        f"optimum is closed by {'; '.join(part for part in parts if part)}."
    )


def format_gap_closed(run: Run) -> str:
    """The share of the gap that a run closes, as text; never "-0.0 %"."""
    return f"{round(100 * gap_closed(run), 1) + 0.0:.1f} %"


def deployments(run: Run) -> str:
    """The number of deployments per client, as text."""
    return f"{run.deployments[:, -1].mean() / run.settings['clients']:.0f}"
