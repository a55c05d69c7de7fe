"""Options that several commands take, and how seeds, cases and algorithms are read from them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from profl import checks
from profl.algorithms import get as get_algorithm
from profl.algorithms.method import Method
from profl.cases import CASES
from profl.cases import get as get_case
from profl.client.jacobian import ESTIMATORS
from profl.problem.problem import Problem

CaseName = Annotated[str, typer.Argument(help=f"Case study: {', '.join(CASES)}.")]
Rounds = Annotated[int, typer.Option(help="Rounds of the federation.")]
LocalSteps = Annotated[int, typer.Option("--local-steps", "-R", help="Local steps per round; each deploys once.")]
Samples = Annotated[int, typer.Option("--samples", "-n", help="Samples per client and deployment.")]
Seeds = Annotated[str, typer.Option("--seeds", "--seed", help="One seed (3), a list (0,1,5) or a range (0-9).")]
Clients = Annotated[int, typer.Option(help="Number of clients.")]
Heterogeneity = Annotated[
    float | None,
    typer.Option(help="Half-width of the clients' sensitivities (adult, credit: relative); the case's own by default."),
]
Participation = Annotated[float, typer.Option(help="Share of clients asked per round, in (0, 1].")]
Rate = Annotated[
    float | None,
    typer.Option("--learning-rate", "--eta", help="Learning rate; the algorithm's own if not given."),
]
Window = Annotated[int, typer.Option("--window", "-H", help="Earlier deployments the Jacobian is estimated from.")]
Jacobian = Annotated[str, typer.Option(help=f"How df/dtheta is estimated: {', '.join(ESTIMATORS)}.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file as JSON.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Also plot risk against deployments (.png, .svg, .pdf).")]
SavePath = Annotated[Path | None, typer.Option("--save", help="Also save the whole run; read it back with profl.load.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no tables.")]


def parse_seeds(text: str) -> list[int]:
    """Seeds from "3", "0,1,5" or "0-9".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise checks.InputError(f"seeds must look like 3, 0,1,5 or 0-9, got {text!r}")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def make_case(name: str, clients: int, heterogeneity: float | None) -> Problem:
    extra = {} if heterogeneity is None else {"heterogeneity": heterogeneity}
    return get_case(name)(clients=clients, **extra)


def make_algorithm(name: str, learning_rate: float | None, window: int, jacobian: str) -> Method:
    """The named algorithm with those of the options that it takes."""
    function = get_algorithm(name)
    options: dict[str, Any] = {"learning_rate": learning_rate, "window": window, "jacobian": jacobian}
    known = inspect.signature(function).parameters
    return function(**{key: value for key, value in options.items() if key in known and value is not None})
