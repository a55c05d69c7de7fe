"""A problem, methods and a configuration from what was asked for on the command line; refused before any work."""

from __future__ import annotations

import inspect
from typing import Any

from profl import checks
from profl.cases import get as get_case
from profl.cli.options import Asked
from profl.methods import ALGORITHMS
from profl.methods import get as get_algorithm
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.objects import import_object
from profl.parts.sample_size import AdaptiveSamples
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
from profl.run.config import RunConfig
from profl.server.participation import hostile_clients

CLIENTS, ATTACK, HOSTILE, SOURCE, DISTANCE = 10, "sign_flip", 0.2, "blob", 10.0
MOST_SEEDS = 1_000_000  # of a range
OPTIONS = {
    "learning_rate": "--learning-rate",
    "window": "--window",
    "jacobian": "--jacobian",
    "filter": "--filter",
    "aggregate": "--aggregate",
    "share": "--share",
    "samples": "--adaptive",
}
"""What a method may be made with -> the option that says it."""


def parse_seeds(text: str) -> list[int]:
    """Seeds from "3", "0,1,5" or "0-9".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        numbers = all(number.isascii() and number.isdigit() and len(number) < 12 for number in (first, last or first))
        if not numbers or not 0 <= int(last or first) - int(first) < MOST_SEEDS:
            raise checks.InputError(f"seeds must look like 3, 0,1,5 or 0-9, got {text!r:.80}")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def make_problem(asked: Asked) -> Problem:
    """The case, or what FILE.py:NAME names, with the junk that was asked for."""
    problem = _own_problem(asked) if ":" in asked.case else _case(asked)
    if asked.junk is None:
        if asked.source is not None or asked.distance is not None:
            raise checks.InputError("--source and --distance need --junk, the share of the samples that is junk")
        return problem
    source = SOURCE if asked.source is None else asked.source
    distance = DISTANCE if asked.distance is None else asked.distance
    return contaminate(problem, asked.junk, source, distance=distance)


def _case(asked: Asked) -> Problem:
    function = get_case(asked.case)
    known = inspect.signature(function).parameters
    given = {"clients": asked.clients, "heterogeneity": asked.heterogeneity}
    for name, value in given.items():
        if value is not None and name not in known:
            raise checks.InputError(f"the case {asked.case} takes no --{name}")
    clients = {"clients": CLIENTS} if "clients" in known else {}
    return function(**clients | {name: value for name, value in given.items() if value is not None})


def _own_problem(asked: Asked) -> Problem:
    for name in ("clients", "heterogeneity"):
        if getattr(asked, name) is not None:
            raise checks.InputError(f"--{name} is for the case studies; {asked.case} has its own")
    found = import_object(asked.case)
    if not isinstance(found, Problem):
        raise checks.InputError(f"{asked.case} must be a profl.Problem, got a {type(found).__name__}")
    return found


def make_config(asked: Asked, clients: int) -> RunConfig:
    """How long the run is, who takes part and who attacks."""
    attack = ATTACK if asked.attack is None and asked.hostile is not None else asked.attack
    hostile = HOSTILE if asked.hostile is None else asked.hostile
    hostile_clients(hostile, clients)
    stop = None if asked.stop is None else StopWhenSettled(tolerance=asked.stop or None)
    return RunConfig(
        rounds=asked.rounds,
        local_steps=asked.local_steps,
        samples=checks.positive_int("samples", asked.samples),
        seeds=parse_seeds(asked.seeds),
        participation=asked.participation,
        attack=attack,
        hostile=hostile,
        stop=stop,
    )


def make_methods(text: str, asked: Asked) -> tuple[list[Method], list[str]]:
    """The named methods, each with those of the options that it takes; and, in words, who does without which.

    An option that none of them takes is refused.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise checks.InputError(f"name at least one method, got {text!r}; there are: {', '.join(ALGORITHMS)}")
    given = _given(asked)
    takes = {name: set(inspect.signature(get_algorithm(name)).parameters) for name in names}
    for key in given:
        if not any(key in known for known in takes.values()):
            able = [name for name, function in ALGORITHMS.items() if key in inspect.signature(function).parameters]
            who = f"{names[0]} takes" if len(names) == 1 else f"{', '.join(names)} take"
            raise checks.InputError(f"{who} no {OPTIONS[key]}; methods that do: {', '.join(able)}")
    methods, without = [], []
    for name in names:
        missing = [OPTIONS[key] for key in given if key not in takes[name]]
        without += [f"{name} takes no {' and no '.join(missing)} and runs without"] if missing else []
        methods.append(_method(name, {key: value for key, value in given.items() if key in takes[name]}))
    return methods, without


def _method(name: str, parts: dict[str, Any]) -> Method:
    function = get_algorithm(name)
    if "share" in parts:
        yes_or_no = isinstance(inspect.signature(function).parameters["share"].default, bool)
        parts["share"] = _share(name, parts["share"], yes_or_no)
    return function(**parts)


def _given(asked: Asked) -> dict[str, Any]:
    parts = {name: getattr(asked, name) for name in OPTIONS if name not in ("samples", "learning_rate")}
    parts["samples"] = None if asked.adaptive is None else AdaptiveSamples(asked.adaptive)
    parts["learning_rate"] = None if asked.learning_rate is None else _rate(asked.learning_rate)
    return {name: value for name, value in parts.items() if value is not None}


def _rate(text: str) -> float | str:
    try:
        return checks.positive("learning rate", float(text))
    except ValueError as error:
        if text == "auto":
            return text
        raise checks.InputError(f"--learning-rate must be a number above 0 or auto, got {text!r}") from error


def _share(name: str, text: str, yes_or_no: bool) -> Any:
    if text in ("none", "auto") or (text == "shrink" and not yes_or_no):
        return (text == "auto") if yes_or_no else None if text == "none" else text
    if not (text.isascii() and text.isdigit()) or yes_or_no:
        words = "none or auto" if yes_or_no else "none, auto, shrink, or a number of groups"
        raise checks.InputError(f"--share of {name} must be {words}, got {text!r}")
    return checks.positive_int("--share", int(text))
