"""Results as tables in a terminal, and figures as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from profl.results.cells import cell, changed, verdict
from profl.results.record import Run
from profl.results.tables import comparison, figures
from profl.storage.atomic import write_json

UNSHOWN = ("part", "per seed", "line")
"""What a row holds that its table does not show: what it is a table of, and what only the file has."""


def print_item(console: Console, found: dict[str, Any]) -> None:
    """The rows of an item, one table per part, and its claims."""
    for part in dict.fromkeys(row.get("part", found["item"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if row.get("part", found["item"]) == part]
        columns = list(dict.fromkeys(key for row in rows for key in row if key not in UNSHOWN))
        table = Table(title=part, title_justify="left")
        for column in columns:
            table.add_column(
                column, justify="right" if any(not isinstance(row.get(column, 0), str) for row in rows) else "left"
            )
        for row in rows:
            table.add_row(*[cell(row.get(column, "")) for column in columns])
        console.print(table)
    print_claims(console, [found])
    for text in (found.get("finding"), found.get("why"), changed(found)):
        if text:
            console.print(text, markup=False, highlight=False)
    console.print(f"{found['seeds']} seeds, {found['seconds']:.0f} s")


def print_claims(console: Console, items: Sequence[dict[str, Any]]) -> None:
    """Every claim of some items: what was expected, what was measured, and whether it holds."""
    several = len(items) > 1
    table = Table(title="claims", title_justify="left")
    for column in (*(["item"] if several else []), "claim", "expected", "measured", "holds"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    for found in items:
        for claim in found["claims"]:
            cells = [claim["claim"], claim["expected"], cell(claim["measured"]), verdict(claim).replace("no", "NO")]
            table.add_row(*([found["item"]] if several else []), *cells)
    console.print(table)


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


def write_runs(path: Path | None, command: str, runs: Sequence[Run]) -> None:
    """The figures of runs as JSON, where a path is given."""
    if path:
        write_json(path, {"command": command, "runs": [figures(run) for run in runs]})
