"""``python -m benchmarks.wild.show --first 0 --count 40 --method prm``: one line per drawn problem, the worst first."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import typer

from benchmarks.wild.draw import by_shape, draw
from benchmarks.wild.outcome import BEYOND, METHODS, compare_on
from benchmarks.wild.solver import solve
from profl import checks


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


def main(
    first: Annotated[int, typer.Option(help="The first seed; those below 1,000 are for tuning.")] = 0,
    count: Annotated[int, typer.Option(help="How many problems.")] = 20,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "prm",
) -> None:
    """Run a method on drawn problems; lines come as they are done, and again, the worst first, at the end."""
    checks.one_of("method", method, METHODS)
    rows: list[dict[str, Any]] = []
    for seeds in by_shape(range(first, first + count)).values():
        for seed in seeds:
            drawn = draw(seed)
            row = {"seed": seed, "problem": drawn.text}
            rows.append(row | compare_on(drawn.problem, solve(drawn.problem), drawn.samples, [method]))
            print(line(rows[-1], method), flush=True)
        jax.clear_caches()
    print("\nworst first")
    for row in sorted(rows, key=lambda each: -each[f"{method}: left"]):
        print(line(row, method))


if __name__ == "__main__":
    typer.run(main)
