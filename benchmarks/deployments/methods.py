"""The methods of ``python -m benchmarks deployments``, all with the same number of deployments, clients and samples.

``METHODS`` is a table: a name, what is tried of it on a problem, and who is run how. Of several settings the one with
the least mean excess at the end is shown: the others are handed what no user has, the best step size in hindsight.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.coded import run_of
from benchmarks.deployments.bandit import bandit
from benchmarks.deployments.outcome import Outcome, outcome, start_spread
from profl.checks import InputError
from profl.methods import ALGORITHMS, dfo, pfl, pofl, two_stage
from profl.methods.method import Forecast, Method
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl.run.config import RunConfig
from profl.run.plan import make_plan

ROUNDS, SAMPLES = 30, 500
"""Deployments per client, one per round; and samples of each."""
RATES = (0.01, 0.03, 0.1, 0.3)
EXPLORED = 2 / 3
"""Of the deployments, what ``two_stage`` explores with; the rest deploys what it has found."""
SUBJECT = "prm"
"""The method that the claims are about."""
STATED = "default" if SUBJECT in ALGORITHMS else "two_stage in its place"


class Entry(NamedTuple):
    """A row of the table; ``settings`` are those of ``run`` that a method asks for instead of the benchmark's."""

    name: str
    tried: Callable[[Problem], dict[str, Method]]
    settings: dict[str, Any]


def subject(problem: Problem, **options: Any) -> Method:
    """The method that the claims are about, with the ``options`` of a robust run."""
    if SUBJECT in ALGORITHMS:
        return ALGORITHMS[SUBJECT](**options)
    options.pop("filter", None)  # two_stage, which stands in for it until then, has none
    return explorer(problem, **options)


def explorer(problem: Problem, rounds: int = ROUNDS, **options: Any) -> Method:
    """``two_stage`` that explores as far as runs start apart."""
    radius = float(np.sqrt(np.mean(start_spread(problem) ** 2)))
    return two_stage(deployments=max(1, round(EXPLORED * rounds)), radius=radius, **options)


def at_rates(make: Callable[..., Method], **options: Any) -> dict[str, Method]:
    return {f"eta = {rate}": make(learning_rate=rate, **options) for rate in RATES}


def automatic(problem: Problem) -> dict[str, Method]:
    """``pofl`` that finds its own rate, where there is one."""
    make: Callable[..., Method] = pofl
    try:
        return {"auto": make(learning_rate="auto")}
    except (InputError, TypeError):
        return {}


def probing(problem: Problem) -> dict[str, Method]:
    return at_rates(dfo, delta=float(np.mean(start_spread(problem))) / 2)


METHODS = (
    Entry("pfl", lambda problem: at_rates(pfl), {}),
    Entry("pofl", lambda problem: at_rates(pofl), {}),
    Entry("pofl, auto", automatic, {}),
    Entry("two_stage", lambda problem: {"default": explorer(problem)}, {}),
    Entry("dfo", probing, {}),
)


def compare(problem: Problem, **settings: Any) -> dict[str, Outcome]:
    """The best of every other method's settings, by name; the bandit where there is scikit-learn."""
    found = {}
    for entry in METHODS:
        tried = [
            run(problem, method, text, **settings | entry.settings) for text, method in entry.tried(problem).items()
        ]
        if tried:
            found[entry.name] = min(tried, key=lambda each: float(each.end.mean()))
    if importlib.util.find_spec("sklearn") is not None:
        found["bandit"] = bandit(problem, rounds=settings["rounds"], samples=SAMPLES, seeds=settings["seeds"])
    return found


def run(problem: Problem, method: Method, setting: str = "", **settings: Any) -> Outcome:
    """One method on one problem: a deployment per round, SAMPLES samples unless told otherwise."""
    known = {"local_steps": 1, "samples": SAMPLES, "progress": False}
    return outcome(problem, simulate(problem, method, **known | settings), setting)


class Followed(NamedTuple):
    """A run with what the method expected after every deployment."""

    problem: Problem
    run: Run
    forecast: Forecast  # leaves (seeds, deployments)

    def first(self, deployments: int, setting: str = STATED) -> Outcome:
        """What was made of the problem with so many deployments: the length of a run changes nothing in it."""
        return outcome(self.problem, self.run, setting, deployments)


def follow(problem: Problem, method: Method, rounds: int, seeds: Any) -> Followed:
    """A run of the method that the claims are about, whatever it expects."""
    plan = make_plan(problem, method, RunConfig(rounds=rounds, local_steps=1, samples=SAMPLES, seeds=seeds))
    made, trace = run_of(problem, plan)
    return Followed(problem, made, trace.forecast)
