"""The problem, the methods and the configuration from command-line options; invalid ones are refused at once."""

from __future__ import annotations

import inspect
from typing import Any

from profl import checks
from profl.cases import get as get_case
from profl.cli.options import RunOptions
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
MAX_SEEDS = 1_000_000  # of a range
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
        if not numbers or not 0 <= int(last or first) - int(first) < MAX_SEEDS:
            raise checks.InputError(f"seeds must look like 3, 0,1,5 or 0-9, got {text!r:.80}")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def make_problem(options: RunOptions) -> Problem:
    """The case, or the problem that FILE.py:NAME names, contaminated if ``--junk`` is given."""
    problem = _own_problem(options) if ":" in options.case else _case(options)
    if options.junk is None:
        if options.source is not None or options.distance is not None:
            raise checks.InputError("--source and --distance need --junk, the share of the samples that is junk")
        return problem
    source = SOURCE if options.source is None else options.source
    distance = DISTANCE if options.distance is None else options.distance
    return contaminate(problem, options.junk, source, distance=distance)


def _case(options: RunOptions) -> Problem:
    """The named case study, with the options that it takes."""
    function = get_case(options.case)
    accepted = inspect.signature(function).parameters
    chosen = {"clients": options.clients, "heterogeneity": options.heterogeneity}
    for name, value in chosen.items():
        if value is not None and name not in accepted:
            raise checks.InputError(f"the case {options.case} takes no --{name}")
    clients = {"clients": CLIENTS} if "clients" in accepted else {}
    return function(**clients | {name: value for name, value in chosen.items() if value is not None})


def _own_problem(options: RunOptions) -> Problem:
    """The user's problem that FILE.py:NAME names."""
    for name in ("clients", "heterogeneity"):
        if getattr(options, name) is not None:
            raise checks.InputError(f"--{name} is for the case studies; {options.case} has its own")
    problem = import_object(options.case)
    if not isinstance(problem, Problem):
        raise checks.InputError(f"{options.case} must be a profl.Problem, got a {type(problem).__name__}")
    return problem


def make_config(options: RunOptions, clients: int) -> RunConfig:
    """The ``RunConfig`` of the options."""
    attack = ATTACK if options.attack is None and options.hostile is not None else options.attack
    hostile = HOSTILE if options.hostile is None else options.hostile
    hostile_clients(hostile, clients)
    stop = None if options.stop is None else StopWhenSettled(tolerance=options.stop or None)
    return RunConfig(
        rounds=options.rounds,
        local_steps=options.local_steps,
        samples=checks.positive_int("samples", options.samples),
        seeds=parse_seeds(options.seeds),
        participation=options.participation,
        attack=attack,
        hostile=hostile,
        stop=stop,
    )


def make_methods(text: str, options: RunOptions) -> tuple[list[Method], list[str]]:
    """(the named methods, each with the options that it takes; a note for each method that ignores an option).

    An option that none of them takes is refused.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise checks.InputError(f"name at least one method, got {text!r}; there are: {', '.join(ALGORITHMS)}")
    chosen = _method_options(options)
    takes = {name: set(inspect.signature(get_algorithm(name)).parameters) for name in names}
    for key in chosen:
        if not any(key in accepted for accepted in takes.values()):
            accepting = [name for name, function in ALGORITHMS.items() if key in inspect.signature(function).parameters]
            who = f"{names[0]} takes" if len(names) == 1 else f"{', '.join(names)} take"
            raise checks.InputError(f"{who} no {OPTIONS[key]}; methods that do: {', '.join(accepting)}")
    methods, without = [], []
    for name in names:
        missing = [OPTIONS[key] for key in chosen if key not in takes[name]]
        without += [f"{name} takes no {' and no '.join(missing)} and runs without"] if missing else []
        methods.append(_method(name, {key: value for key, value in chosen.items() if key in takes[name]}))
    return methods, without


def _method(name: str, parts: dict[str, Any]) -> Method:
    """A method from its name and its options."""
    function = get_algorithm(name)
    if "share" in parts:
        yes_or_no = isinstance(inspect.signature(function).parameters["share"].default, bool)
        parts["share"] = _share(name, parts["share"], yes_or_no)
    return function(**parts)


def _method_options(options: RunOptions) -> dict[str, Any]:
    """The options for methods that were given, by parameter name."""
    parts = {name: getattr(options, name) for name in OPTIONS if name not in ("samples", "learning_rate")}
    parts["samples"] = None if options.adaptive is None else AdaptiveSamples(options.adaptive)
    parts["learning_rate"] = None if options.learning_rate is None else _rate(options.learning_rate)
    return {name: value for name, value in parts.items() if value is not None}


def _rate(text: str) -> float | str:
    """The learning rate as a number, or "auto"."""
    try:
        return checks.positive("learning rate", float(text))
    except ValueError as error:
        if text == "auto":
            return text
        raise checks.InputError(f"--learning-rate must be a number above 0 or auto, got {text!r}") from error


def _share(name: str, text: str, yes_or_no: bool) -> Any:
    """The value of ``share`` that a method takes, from the text of ``--share``."""
    if text in ("none", "auto") or (text == "shrink" and not yes_or_no):
        return (text == "auto") if yes_or_no else None if text == "none" else text
    if not (text.isascii() and text.isdigit()) or yes_or_no:
        words = "none or auto" if yes_or_no else "none, auto, shrink, or a number of groups"
        raise checks.InputError(f"--share of {name} must be {words}, got {text!r}")
    return checks.positive_int("--share", int(text))
