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
from profl.cli.console import line_width, print_table, say
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
    chosen, results, pressed = parse_seeds(seeds), dict[str, list[work.TrialResult]](), False
    for name, problem in work.problems().items():
        gap = problem.risk(problem.stable) - problem.risk(problem.optimum)
        words = f"{name}: retraining leads to the stable point, whose risk is {number(gap)} above the optimum's"
        say(console, words, width=line_width(console))
    say(aside, "compiling ... (the second time it is there already)")
    try:
        for result in work.demo(seeds=chosen, rounds=rounds, progress=not quiet):
            results.setdefault(result.problem, []).append(result)
            say(aside, result_line(result), width=line_width(aside))
            if all(trial.problem != result.problem for trial in work.trials()[sum(map(len, results.values())) :]):
                print_results(console, result.problem, results[result.problem], len(chosen))
    except KeyboardInterrupt:
        pressed = True
    runs = [run for group in results.values() for one in group for run in (one.clean, one.trouble)]
    if runs:
        outputs.write_runs(json_path, "demo", runs)
        if picture:
            clean = {name: [one.clean for one in group] for name, group in results.items()}
            trouble = {name: [one.trouble for one in group] for name, group in results.items()}
            plot_excess({"clean": clean, TROUBLE: trouble}, out)
            say(console, f"Picture: {out}")
    if pressed:
        finished = ", ".join(f"{each.clean.algorithm} on {name}" for name, result in results.items() for each in result)
        outputs.exit_interrupted(
            f"interrupted; finished: {finished or 'nothing'}; {outputs.saved_files_note(files if runs else [])}"
        )


def result_line(result: work.TrialResult) -> str:
    """One line on a finished trial."""
    clean, trouble = (number(figures(run)["tail_excess"]["mean"]) for run in (result.clean, result.trouble))
    return f"{result.problem}, {result.clean.algorithm}: {clean} above the optimum; with {TROUBLE} clients {trouble}"


def print_results(console: Console, name: str, results: Sequence[work.TrialResult], seeds: int) -> None:
    """Print the runs on clean and on contaminated data side by side, and one sentence on them."""
    header = ["method", "excess", "gap closed", f"excess, {TROUBLE}", "gap closed", "deployments"]
    rows = [
        [
            each.clean.algorithm,
            *_cells(each.clean),
            *_cells(each.trouble),
            work.deployments(each.clean),
        ]
        for each in results
    ]
    print_table(console, f"{name}: risk above the optimum, mean ± sd over {seeds} seeds", header, rows)
    say(console, work.summary_sentence(results), width=line_width(console))
    say(console, "")


def _cells(run: Run) -> list[str]:
    """The excess and the closed gap of a run, as table cells."""
    tail = figures(run)["tail_excess"]
    return [f"{number(tail['mean'])} ± {number(tail['sd'])}", work.format_gap_closed(run)]
