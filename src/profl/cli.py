"""The command line: ``profl demo``, ``run``, ``compare``, ``reproduce``, ``report``, ``cases``, ``data``, ``bench``."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

from profl import checks
from profl.algorithms import ALGORITHMS
from profl.algorithms import get as get_algorithm
from profl.algorithms.base import Algorithm
from profl.cases import CASES
from profl.cases import get as get_case
from profl.data import MissingDataError
from profl.data.commands import app as data_app
from profl.engines.commands import check_
from profl.engines.flower.commands import app as flower_app
from profl.engines.simulate import simulate
from profl.experiments import commands, jacobian, robust, speed
from profl.experiments.compare import compare as compare_algorithms
from profl.experiments.compare import demo as run_demo
from profl.experiments.console import parse_seeds, print_item
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.plots import plot_runs
from profl.results.record import Run
from profl.results.tables import comparison, figures
from profl.storage.atomic import atomic
from profl.storage.cache import cache_directory

BENCHMARKS: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
    "robust": (robust.bench, robust.PARTS),
    "jacobian": (jacobian.bench, jacobian.PARTS),
    "speed": (speed.speed, speed.SPEED_PARTS),
    "scale": (speed.scale, speed.SCALE_PARTS),
    "memory": (speed.memory, speed.MEMORY_PARTS),
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Performative federated learning: find the optimum when deploying the model changes the data.\n\n"
    "Start with `profl demo`, then `profl cases`, then `profl compare pricing`.",
)

app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.command("check")(check_)
commands.register(app)

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
Jacobian = Annotated[str, typer.Option(help="kalman, least_squares, paper, or exact (told).")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file as JSON.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Also draw risk against deployments (.png, .svg, .pdf).")]
SavePath = Annotated[Path | None, typer.Option("--save", help="Also save the whole run; read it back with profl.load.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no tables.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (.png, .svg, .pdf).")] = Path("out/demo.png"),
    seeds: Seeds = "0-9",
    rounds: Rounds = 200,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Plain retraining against the performative gradient, on two problems whose answers are known."""
    console = Console(quiet=quiet)
    results = {}
    for name, runs in run_demo(seeds=parse_seeds(seeds), rounds=rounds, progress=not quiet):
        results[name] = runs
        print_comparison(console, name, runs)
        stuck, found = runs[0], runs[-1]
        console.print(
            f"Retraining ({stuck.algorithm.upper()}) settles {stuck.tail_excess().mean():.3g} above the optimum, "
            f"the performative gradient ({found.algorithm.upper()}) {found.tail_excess().mean():.3g} above it.\n"
        )
    plot_runs(results, out)
    write_json(json_path, "demo", [run for runs in results.values() for run in runs])
    console.print(f"Picture: {out}")


@app.command()
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
    jacobian: Jacobian = "kalman",
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
    write_json(json_path, "run", [result])
    if not quiet:
        Console().print(result.summary(), markup=False, highlight=False)


@app.command()
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
    jacobian: Jacobian = "kalman",
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
    write_json(json_path, "compare", runs)
    if not quiet:
        print_comparison(Console(), problem.name, runs)


@app.command()
def cases(json_path: JsonPath = None, quiet: Quiet = False) -> None:
    """The case studies with their optimum, their stable point and the risk at each."""
    rows = [describe_case(name, function) for name, function in CASES.items()]
    if json_path:
        write_text(json_path, json.dumps({"cases": rows}, indent=2))
    if quiet:
        return
    table = Table(title="Cases (10 clients, default settings)", title_justify="left")
    for column in ("case", "what", "optimum PO", "risk at PO", "stable point PS", "risk at PS"):
        table.add_column(column, justify="right" if "risk" in column else "left", overflow="fold")
    for row in rows:
        points = [" ".join(f"{x:.3g}" for x in row[key] or ()) for key in ("optimum", "stable")]
        risks = ["" if row[key] is None else f"{row[key]:.4f}" for key in ("optimum_risk", "stable_risk")]
        table.add_row(row["case"], row["what"], points[0], risks[0], points[1], risks[1])
    Console().print(table)


# -- shared by the commands
# ------------------------------------------------------------------------------------------------


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"Which benchmark: {', '.join(BENCHMARKS)}.")],
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs that show the form and prove nothing.")] = False,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Measure what profl promises, as tables and claims; exits 1 where a claim does not hold."""
    run, parts = BENCHMARKS[checks.one_of("benchmark", name, BENCHMARKS)]
    with progress_bar(f"bench {name}", parts, not quiet) as advance:
        found = run(seeds=checks.positive_int("seeds", seeds), quick=quick, advance=advance)
    if json_path is not None:
        write_text(json_path, json.dumps({"items": [found]}, indent=2))
    if not quiet:
        print_item(Console(), found)
    if not all(claim["holds"] for claim in found["claims"]):
        raise typer.Exit(1)


def describe_case(name: str, function: Callable[..., Problem]) -> dict[str, Any]:
    """What a case is and its known answers; None where its data are not on this machine."""
    what = (inspect.getdoc(function) or "").splitlines()[0]
    keys = ("optimum", "optimum_risk", "stable", "stable_risk")
    try:
        problem = function()
    except MissingDataError:
        return {"case": name, "what": f"{what} (needs: profl data get {name})", **dict.fromkeys(keys)}
    points = (problem.optimum, problem.stable)
    answers = [value for point in points for value in (point.tolist(), problem.risk(point))]
    return {"case": name, "what": what, **dict(zip(keys, answers, strict=True))}


def make_case(name: str, clients: int, heterogeneity: float | None) -> Problem:
    extra = {} if heterogeneity is None else {"heterogeneity": heterogeneity}
    return get_case(name)(clients=clients, **extra)


def make_algorithm(name: str, learning_rate: float | None, window: int, jacobian: str) -> Algorithm:
    """The named algorithm with those of the options that it takes."""
    function = get_algorithm(name)
    options: dict[str, Any] = {"learning_rate": learning_rate, "window": window, "jacobian": jacobian}
    known = inspect.signature(function).parameters
    return function(**{key: value for key, value in options.items() if key in known and value is not None})


def print_comparison(console: Console, title: str, runs: Sequence[Run]) -> None:
    """The comparison as a table, with PO and PS in its title."""
    header, *rows = comparison(runs)
    known = f"optimum PO {runs[0].optimum_risk:.4f}, stable point PS {runs[0].stable_risk:.4f}"
    table = Table(title=f"{title}: {known}; mean over {len(runs[0].seeds)} seeds", title_justify="left")
    for i, column in enumerate(header):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for run in runs:
        for line in run.failures():
            console.print(f"{run.algorithm}: {line}", style="red")


def write_json(path: Path | None, command: str, runs: Sequence[Run]) -> None:
    if path:
        write_text(path, json.dumps({"command": command, "runs": [figures(run) for run in runs]}, indent=2))


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def keep_compiled() -> None:
    """Keep compiled code in the user's cache, so that a second start need not compile; JAX's own settings win."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or "JAX_ENABLE_COMPILATION_CACHE" in os.environ:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def main() -> None:
    """The entry point: errors that a person can act on are one line, not a traceback."""
    keep_compiled()
    try:
        app()
    except (checks.InputError, checks.DivergedError, checks.TooFewReports, checks.FailedError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
