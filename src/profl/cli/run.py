"""``profl run`` and ``profl compare``: algorithms on one case."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from profl.algorithms import ALGORITHMS
from profl.cli.console import print_comparison, write_runs
from profl.cli.options import (
    CaseName,
    Clients,
    Heterogeneity,
    Jacobian,
    JsonPath,
    LocalSteps,
    Participation,
    PlotPath,
    Quiet,
    Rate,
    Rounds,
    Samples,
    SavePath,
    Seeds,
    Window,
    make_algorithm,
    make_case,
    parse_seeds,
)
from profl.engines.compare import compare as compare_algorithms
from profl.engines.compiled.simulate import simulate
from profl.results.plots import plot_runs


def run(
    case: CaseName,
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help=f"One of {', '.join(ALGORITHMS)}.")] = "pofl",
    rounds: Rounds = 200,
    local_steps: LocalSteps = 5,
    samples: Samples = 500,
    seeds: Seeds = "0-9",
    clients: Clients = 10,
    heterogeneity: Heterogeneity = None,
    participation: Participation = 1.0,
    learning_rate: Rate = None,
    window: Window = 20,
    jacobian: Jacobian = "tracking",
    json_path: JsonPath = None,
    plot: PlotPath = None,
    save: SavePath = None,
    quiet: Quiet = False,
) -> None:
    """One algorithm on one case, measured against the exact optimum.

    Example: profl run housing --algorithm pofl --seeds 0-9 --plot housing.png
    """
    result = simulate(
        make_case(case, clients, heterogeneity),
        make_algorithm(algorithm, learning_rate, window, jacobian),
        rounds=rounds,
        local_steps=local_steps,
        samples=samples,
        seeds=parse_seeds(seeds),
        participation=participation,
        progress=not quiet,
    )
    if save:
        result.save(save)
    if plot:
        result.plot(plot)
    write_runs(json_path, "run", [result])
    if not quiet:
        Console().print(result.summary(), markup=False, highlight=False)


def compare(
    case: CaseName,
    algorithms: Annotated[str, typer.Option("--algorithms", "-a", help="Names, separated by commas.")] = "pfl,pg,pofl",
    rounds: Rounds = 200,
    local_steps: LocalSteps = 5,
    samples: Samples = 500,
    seeds: Seeds = "0-9",
    clients: Clients = 10,
    heterogeneity: Heterogeneity = None,
    participation: Participation = 1.0,
    learning_rate: Rate = None,
    window: Window = 20,
    jacobian: Jacobian = "tracking",
    json_path: JsonPath = None,
    plot: PlotPath = None,
    quiet: Quiet = False,
) -> None:
    """Several algorithms on one case, side by side, with the same seeds and budget.

    Example: profl compare strategic --algorithms pfl,pofl --plot strategic.png
    """
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    problem = make_case(case, clients, heterogeneity)
    runs = compare_algorithms(
        problem,
        [make_algorithm(name, learning_rate, window, jacobian) for name in names],
        rounds=rounds,
        local_steps=local_steps,
        samples=samples,
        seeds=parse_seeds(seeds),
        participation=participation,
        progress=not quiet,
    )
    if plot:
        plot_runs({problem.name: runs}, plot)
    write_runs(json_path, "compare", runs)
    if not quiet:
        print_comparison(Console(), problem.name, runs)
