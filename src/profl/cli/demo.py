"""``profl demo``: plain retraining, the performative gradient and ProFL, where all is well and where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from profl.cli import demo_runs as work
from profl.cli import outputs
from profl.cli.builders import parse_seeds
from profl.cli.compilation import compile_lightly
from profl.cli.console import fitting, print_table, say
from profl.cli.options import JsonPath, Quiet, Rounds, Seeds
from profl.results.cells import number
from profl.results.plots import plot_excess
from profl.results.record import Run
from profl.results.tables import figures

SEEDS = f"0-{max(work.SEEDS)}"
TROUBLE = f"{work.JUNK:.0%} junk, {work.HOSTILE:.0%} hostile"


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (.png, .svg, .pdf).")] = Path("out/demo.png"),
    picture: Annotated[bool, typer.Option(help="Draw it: needs matplotlib, pip install 'profl\\[report]'.")] = True,
    seeds: Seeds = SEEDS,
    rounds: Rounds = work.ROUNDS,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Retraining, the performative gradient and ProFL on two problems: clean, then with junk and hostile clients.

    Example: profl demo --json demo.json
    """
    files = outputs.check_files(json=json_path, out=out if picture else None)
    compile_lightly()
    console, aside = Console(quiet=quiet), Console(stderr=True, quiet=quiet)
    chosen, results, pressed = parse_seeds(seeds), dict[str, list[work.Found]](), False
    for name, problem in work.problems().items():
        gap = problem.risk(problem.stable) - problem.risk(problem.optimum)
        words = f"{name}: retraining leads to the stable point, whose risk is {number(gap)} above the optimum's"
        say(console, words, width=fitting(console))
    say(aside, "compiling ... (the second time it is there already)")
    try:
        for found in work.demo(seeds=chosen, rounds=rounds, progress=not quiet):
            results.setdefault(found.problem, []).append(found)
            say(aside, line(found), width=fitting(aside))
            if all(trial.problem != found.problem for trial in work.trials()[sum(map(len, results.values())) :]):
                show(console, found.problem, results[found.problem], len(chosen))
    except KeyboardInterrupt:
        pressed = True
    runs = [run for found in results.values() for each in found for run in (each.clean, each.trouble)]
    if runs:
        outputs.write_runs(json_path, "demo", runs)
        if picture:
            clean = {name: [each.clean for each in found] for name, found in results.items()}
            trouble = {name: [each.trouble for each in found] for name, found in results.items()}
            plot_excess({"clean": clean, TROUBLE: trouble}, out)
            say(console, f"Picture: {out}")
    if pressed:
        done = ", ".join(f"{each.clean.algorithm} on {name}" for name, found in results.items() for each in found)
        outputs.end(f"interrupted; finished: {done or 'nothing'}; {outputs.kept(files if runs else [])}")


def line(found: work.Found) -> str:
    clean, trouble = (number(figures(run)["tail_excess"]["mean"]) for run in (found.clean, found.trouble))
    return f"{found.problem}, {found.clean.algorithm}: {clean} above the optimum; with {TROUBLE} clients {trouble}"


def show(console: Console, name: str, found: Sequence[work.Found], seeds: int) -> None:
    """Both worlds side by side, and what the figures say."""
    header = ["method", "excess", "gap closed", f"excess, {TROUBLE}", "gap closed", "deployments"]
    rows = [
        [
            each.clean.algorithm,
            *_cells(each.clean),
            *_cells(each.trouble),
            work.deployments(each.clean),
        ]
        for each in found
    ]
    print_table(console, f"{name}: risk above the optimum, mean ± sd over {seeds} seeds", header, rows)
    say(console, work.told(found), width=fitting(console))
    say(console, "")


def _cells(run: Run) -> list[str]:
    tail = figures(run)["tail_excess"]
    return [f"{number(tail['mean'])} ± {number(tail['sd'])}", work.closed(run)]
