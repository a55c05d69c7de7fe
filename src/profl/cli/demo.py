"""``profl demo``: plain retraining against the performative gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from profl.cli.console import print_comparison, write_runs
from profl.cli.options import JsonPath, Quiet, Rounds, Seeds, parse_seeds
from profl.experiments.compare import demo as run_demo
from profl.results.plots import plot_runs


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
    write_runs(json_path, "demo", [run for runs in results.values() for run in runs])
    console.print(f"Picture: {out}")
