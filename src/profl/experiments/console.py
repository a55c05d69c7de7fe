"""What the commands share: seeds as people write them, and results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from profl import checks


def parse_seeds(text: str) -> list[int]:
    """Seeds from "3", "0,1,5" or "0-9".

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise checks.InputError(f"seeds must look like 3, 0,1,5 or 0-9, got {text!r}")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def print_item(console: Console, found: dict[str, Any]) -> None:
    """The rows of an item, one table per part, and its claims."""
    for part in dict.fromkeys(row.get("part", found["item"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if row.get("part", found["item"]) == part]
        columns = list(dict.fromkeys(key for row in rows for key in row if key != "part"))
        table = Table(title=part, title_justify="left")
        for column in columns:
            table.add_column(
                column, justify="right" if any(not isinstance(row.get(column, 0), str) for row in rows) else "left"
            )
        for row in rows:
            table.add_row(*[cell(row.get(column, "")) for column in columns])
        console.print(table)
    print_claims(console, [found])
    console.print(f"{found['seeds']} seeds, {found['seconds']:.0f} s")


def print_claims(console: Console, items: Sequence[dict[str, Any]]) -> None:
    """Every claim of some items: what was expected, what was measured, and whether it holds."""
    several = len(items) > 1
    table = Table(title="claims", title_justify="left")
    for column in (*(["item"] if several else []), "claim", "expected", "measured", "holds"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    for found in items:
        for claim in found["claims"]:
            cells = [claim["claim"], claim["expected"], cell(claim["measured"]), "yes" if claim["holds"] else "NO"]
            table.add_row(*([found["item"]] if several else []), *cells)
    console.print(table)


def cell(value: Any) -> str:
    """A value for a table.

    >>> cell(0.123456), cell(None), cell("PFL")
    ('0.1235', '-', 'PFL')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
