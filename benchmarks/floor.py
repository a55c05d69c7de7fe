"""``make floor``: fails where speed, size or memory is worse than the figures in ``floors.toml``.

Sizes and numbers of programs are exact: one instruction more fails. A time may be over its floor by ``TIME_MARGIN``,
peak memory by ``MEMORY_MARGIN``; times over it are measured again, twice, and the best counts. ``make floor UPDATE=1``
writes what was measured as the new floors, ``make floor HISTORY=1`` adds it to ``history.jsonl`` and its plot.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from benchmarks import floor_figures, track
from benchmarks.floor_figures import Figures

FLOORS = Path(__file__).parent / "floors.toml"
TIME_MARGIN, MEMORY_MARGIN = 0.4, 0.1
"""Shares: a median of turns on a busy machine moves by a tenth or two; what is to be caught is a doubling."""
MARGINS = {"time": TIME_MARGIN, "memory": MEMORY_MARGIN, "instructions": 0.0, "programs": 0.0}
RETRIES = 2
UPDATE = "`make floor UPDATE=1` makes these figures the floors"


def main(
    update: Annotated[bool, typer.Option("--update", help="Write what is measured as the floors.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Add a line to history.jsonl, and plot it.")] = False,
) -> None:
    """Measure, compare with the floors, and exit 1 where something is worse."""
    started, floors = time.perf_counter(), tomllib.loads(FLOORS.read_text()) if FLOORS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "dump", floors)
    if floors.get("versions", {}).get("jax") != jax.__version__:
        print(f"the floors are of jax {floors.get('versions', {}).get('jax')}, this is {jax.__version__}")
    print(table(figures, floors), f"\nmeasured in {time.perf_counter() - started:.0f} s")
    if history:
        track.append(as_benchmark(figures, time.perf_counter() - started), quick=False)
    if update:
        FLOORS.write_text(as_toml(figures))
    elif worse := over(figures, floors):
        print("\n".join([*worse, f"where that is meant, {UPDATE}"]), file=sys.stderr)
        raise typer.Exit(1)
    elif lower := exactly_below(figures, floors):
        print(f"{', '.join(lower)}: below the floor; {UPDATE}")


def measure(dump: Path, floors: Figures) -> Figures:
    """All figures. The times that are over their floors are taken again, up to ``RETRIES`` times; the best count."""
    floor_figures.dump_programs(dump)
    figures = floor_figures.exact(dump) | floor_figures.times()
    for _ in range(RETRIES):
        if not over({"time": figures["time"]}, floors):
            break
        again = floor_figures.times()["time"]
        figures["time"] = {name: min(value, again[name]) for name, value in figures["time"].items()}
    return figures | floor_figures.memory()


def over(figures: Figures, floors: Figures) -> list[str]:
    """A line for each figure that is worse than its floor allows.

    >>> over({"time": {"pofl": 1.9}, "programs": {"pfl": 12}}, {"time": {"pofl": 1.4}, "programs": {"pfl": 11}})
    ['programs, pfl: 12, the floor is 11']
    >>> over({"time": {"pofl": 2.0}, "memory": {}}, {"time": {"pofl": 1.4}})
    ['time, pofl: 2, the floor is 1.4 and 40 % are allowed on it']
    """
    lines = []
    for kind, values in figures.items():
        margin = MARGINS[kind]
        for name, value in values.items():
            floor = floors.get(kind, {}).get(name, float("inf"))
            if value > floor * (1 + margin):
                allowed = f" and {margin:.0%} are allowed on it".replace("%", " %") if margin else ""
                lines.append(f"{kind}, {name}: {value:.4g}, the floor is {floor:.4g}{allowed}")
    return lines


def exactly_below(figures: Figures, floors: Figures) -> list[str]:
    """The exact figures that are better than their floors.

    >>> exactly_below({"programs": {"pfl": 10}, "time": {"pfl": 1.0}}, {"programs": {"pfl": 11}, "time": {"pfl": 1.4}})
    ['programs, pfl']
    """
    exact = [kind for kind in figures if MARGINS[kind] == 0]
    return [
        f"{kind}, {name}"
        for kind in exact
        for name, value in figures[kind].items()
        if value < floors.get(kind, {}).get(name, 0)
    ]


def table(figures: Figures, floors: Figures) -> str:
    """Every figure beside its floor."""
    rows = [
        (kind, name, value, floors.get(kind, {}).get(name)) for kind in figures for name, value in figures[kind].items()
    ]
    return "\n".join(
        f"{kind:13}{name:28}{value:10.4g}   floor {'none' if floor is None else f'{floor:.4g}'}"
        for kind, name, value, floor in rows
    )


def as_toml(figures: Figures) -> str:
    """The text of ``floors.toml``.

    >>> print(as_toml({"programs": {"pfl": 11}}).split("[programs]")[1].strip())
    "pfl" = 11
    """
    lines = ["# Written by `make floor UPDATE=1`: see benchmarks/floor.py.", "", "[versions]"]
    lines.append(f"jax = {json.dumps(jax.__version__)}")
    for kind, values in figures.items():
        lines.append(f"\n[{kind}]")
        lines += [
            f"{json.dumps(name)} = {value if MARGINS[kind] == 0 else round(value, 3)}" for name, value in values.items()
        ]
    return "\n".join(lines) + "\n"


def as_benchmark(figures: Figures, seconds: float) -> dict[str, Any]:
    """The figures in the form of a benchmark's result, as the history keeps them."""
    claims = [
        {"claim": f"{kind}, {name}", "measured": value} for kind in figures for name, value in figures[kind].items()
    ]
    return {"item": "floor", "seconds": seconds, "rows": [], "claims": claims}


if __name__ == "__main__":
    typer.run(main)
