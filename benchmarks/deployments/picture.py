"""Excess against deployments, one panel per problem: the picture of what the benchmark ``deployments`` has measured.

``python -m benchmarks.deployments.picture BENCH.json PICTURE.png`` draws it from what ``--json`` wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from profl_papers.measures import panel
from profl_papers.panels import plot_panels

COLUMNS = 4
SEEN = 1e-6
"""A stable point's excess below this is not drawn: it is the optimum."""


def panels(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One per problem, from the item that the benchmark hands over."""
    made = []
    for name in dict.fromkeys(row["part"] for row in found["rows"] if "line" in row):
        rows = [row for row in found["rows"] if row["part"] == name]
        stable = next(row["excess"] for row in rows if row.get("method") == "stable point")
        lines: dict[str, Any] = {}
        for row in rows:
            if "line" in row:
                lines.setdefault(row["method"], row["line"])  # the first: a longer run of the same method is no other
        levels = {"stable point (PS)": stable} if stable > SEEN else {}
        y = "excess over the optimum (log scale)"
        made.append(panel(name, list(lines.values()), levels, y, scale="log"))
    return made


def draw(source: str, *pictures: str) -> None:
    (found,) = json.loads(Path(source).read_text(encoding="utf-8"))["items"]
    plot_panels(panels(found), pictures, COLUMNS)


if __name__ == "__main__":
    draw(*sys.argv[1:])
