"""``python -m benchmarks.wild.show --first 0 --count 40 --method prm``: one line per drawn problem, the worst first."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from benchmarks.wild.bench import summary
from benchmarks.wild.outcome import BEYOND, METHODS, compare_on
from profl import checks
from profl_papers.drawn.draw import by_shape, draw
from profl_papers.drawn.solver import solve
from profl_papers.plain import plain

Rows = list[dict[str, Any]]


def line(row: dict[str, Any], name: str) -> str:
    """Seed, share left, forecast, what is wrong, and the problem."""
    marks = "ABOVE START " if row[f"{name}: over its start"] > BEYOND else ""
    forecast = ""
    if f"{name}: covered" in row:
        forecast = f"forecast {row[f'{name}: forecast']:9.3g} +- {row[f'{name}: error']:8.2g} "
        marks += "" if row[f"{name}: covered"] else "NOT COVERED "
    scale = "of the gap  " if row["judged"] else "of the start"
    left = f"left {row[f'{name}: left']:10.4g} {scale} from {row['start']:8.3g}"
    return f"{row['seed']:6d} {left} {forecast}{marks}| {row['problem']}"


def rows_of(seeds: list[int], methods: list[str]) -> Rows:
    """The rows of problems that share a shape, and so their programs."""
    rows = []
    for seed in seeds:
        drawn = draw(seed)
        row = {"seed": seed, "problem": drawn.text}
        rows.append(row | compare_on(drawn.problem, solve(drawn.problem), drawn.samples, methods))
    jax.clear_caches()
    return rows


def main(
    first: Annotated[int, typer.Option(help="The first seed; those below 1,000 are for tuning.")] = 0,
    count: Annotated[int, typer.Option(help="How many problems.")] = 20,
    method: Annotated[str, typer.Option(help=f"One or more of {', '.join(METHODS)}, with commas.")] = "prm",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    json_path: Annotated[str, typer.Option("--json", help="A file for the rows.")] = "",
) -> None:
    """Run methods on drawn problems; lines come as they are done, and again, the worst first, at the end."""
    methods = method.split(",")
    for name in methods:
        checks.one_of("method", name, METHODS)
    rows: Rows = []
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        groups = sorted(by_shape(range(first, first + count)).values(), key=len, reverse=True)
        for done in as_completed([pool.submit(rows_of, seeds, methods) for seeds in groups]):
            rows += done.result()
            for row in done.result():
                print(*[line(row, name) for name in methods], sep="\n", flush=True)
            if json_path:
                Path(json_path).write_text(json.dumps(plain(rows)))
    for name in methods:
        print(f"\n{name}, worst first")
        for row in sorted(rows, key=lambda each: -each[f"{name}: left"]):
            print(line(row, name))
        print(summary(rows, name))


if __name__ == "__main__":
    typer.run(main)
