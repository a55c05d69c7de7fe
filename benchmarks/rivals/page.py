"""The table and the curves of ``docs/rivals.md``, from what ``python -m benchmarks rivals --json PATH`` wrote.

``python -m benchmarks.rivals.page PATH docs/rivals.png`` draws the picture and prints the tables as Markdown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Row
from benchmarks.rivals.bench import STRONGEST, ended, methods_of
from profl_papers.measures import panel
from profl_papers.panels import plot_panels

COLUMNS = 4
SHOWN = ("prm", STRONGEST, "botorch", "spsa", "switchback")


def panels(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Excess against deployments, one panel per row."""
    lines: dict[str, list[Any]] = {}
    for of_rows in methods_of(found["rows"]).values():
        for name, row in of_rows.items():
            lines.setdefault(name, []).append(row["line"])
    y = "excess in gaps (log scale)"
    return [panel(name, each, {"stable point (PS)": 1.0}, y, scale="log") for name, each in lines.items()]


def table(rows: Sequence[Row], figure: str, after: Sequence[int] = (10, 20, 30)) -> str:
    """A figure after some deployments, a line per problem and a column per method, as Markdown.

    >>> print(table([{"part": "a", "method": "prm", "line": {}, "left after 9": 0.5}], "left", [9]))
    | problem | `prm` |
    |---|---|
    | a | 0.5 |
    """
    of_method = methods_of(rows)
    names = [name for name in SHOWN if name in of_method]
    problems = dict.fromkeys(name for each in of_method.values() for name in each)
    text = [["problem", *(f"`{name}`" if name == "prm" else name for name in names)], ["---"] * (len(names) + 1)]
    for problem in problems:
        own = [of_method[name].get(problem, {}) for name in names]
        text.append([problem, *(", ".join(_short(each.get(f"{figure} after {k}")) for k in after) for each in own)])
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in text)


def settings_and_seconds(rows: Sequence[Row]) -> str:
    """Which setting was best how often, and the median CPU time of a seed."""
    lines = []
    for name, own in methods_of(rows).items():
        seconds = sorted(row["CPU seconds"] for row in own.values())
        counts: dict[str, int] = {}
        for row in own.values():
            counts[row["setting"]] = counts.get(row["setting"], 0) + 1
        best = ", ".join(f"{text} ({count})" for text, count in sorted(counts.items(), key=lambda each: -each[1]))
        lines.append(f"* {name}: {seconds[len(seconds) // 2]:.0f} s; {best}")
    return "\n".join(lines)


def losses(rows: Sequence[Row]) -> str:
    """The rows on which the strongest rival leaves less than ``prm``, or pays less."""
    of_method = methods_of(rows)
    lines = []
    for name, row in of_method.get(STRONGEST, {}).items():
        own = of_method["prm"][name]
        for figure in ("left", "regret"):
            if ended(row, figure) < ended(own, figure):
                lines.append(f"* {name}, {figure}: {_short(ended(own, figure))} against {_short(ended(row, figure))}")
    return "\n".join(lines)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def main(source: str, *pictures: str) -> None:
    (found,) = json.loads(Path(source).read_text(encoding="utf-8"))["items"]
    if pictures:
        plot_panels(panels(found), pictures, COLUMNS)
    for text in (table(found["rows"], "left"), table(found["rows"], "regret")):
        print(text, end="\n\n")
    print(settings_and_seconds(found["rows"]), losses(found["rows"]), sep="\n\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
