"""Results as tables: the rows and claims of an item, and runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from profl.cli.console import line_width, print_table, say
from profl.results.cells import cell, changes_note, verdict
from profl.results.record import Run
from profl.results.tables import baseline, comparison

HIDDEN_COLUMNS = ("part", "per seed", "line")
"""What a row holds that its table does not show: what it is a table of, and what only the file has."""


def print_item(console: Console, result: dict[str, Any]) -> None:
    """Print the rows of an item, one table per part, and its claims."""
    for part in dict.fromkeys(row.get("part", result["item"]) for row in result["rows"]):
        rows = [row for row in result["rows"] if row.get("part", result["item"]) == part]
        columns = list(dict.fromkeys(key for row in rows for key in row if key not in HIDDEN_COLUMNS))
        text = [column for column in columns if not all(_is_number(row.get(column)) for row in rows)]
        print_table(console, part, columns, [[cell(row.get(column, "")) for column in columns] for row in rows], text)
    print_claims(console, [result])
    for words in (result.get("finding"), result.get("why"), changes_note(result)):
        if words:
            say(console, words, width=line_width(console))
    say(console, f"{result['seeds']} seeds, {result['seconds']:.0f} s")


def print_claims(console: Console, items: Sequence[dict[str, Any]]) -> None:
    """Print every claim of the items: what was expected, what was measured, and whether it holds."""
    several = len(items) > 1
    header = [*(["item"] if several else []), "claim", "expected", "measured", "holds"]
    rows, styles = [], []
    for result in items:
        for claim in result["claims"]:
            cells = [claim["claim"], claim["expected"], cell(claim["measured"]), verdict(claim).replace("no", "NO")]
            rows.append([*([result["item"]] if several else []), *cells])
            styles.append("" if claim["holds"] else "red")
    print_table(console, "claims", header, rows, header, styles=styles)


def print_comparison(console: Console, title: str, runs: Sequence[Run], wide: bool = False) -> None:
    """Print a comparison as a table, with the risks at PO and PS above it and the meaning of its columns below."""
    header, *rows = comparison(runs, wide)
    risks = f"risk at the optimum (PO) {runs[0].optimum_risk:.4f}, at the stable point (PS) {runs[0].stable_risk:.4f}"
    seeds = f"mean over {len(runs[0].seeds)} seeds" if len(runs[0].seeds) > 1 else f"seed {runs[0].seeds[0]}"
    print_table(console, f"{title}: {risks}; {seeds}", header, rows)
    width = line_width(console)
    say(console, caption(runs), "dim", width)
    for run in runs:
        for line in run.failures():
            say(console, f"{run.algorithm}: {line}", "red", width)


def caption(runs: Sequence[Run]) -> str:
    """The meaning of the columns of a comparison."""
    of = "PFL's" if baseline(runs) else "the stable point's"
    excess = "excess: risk above PO in the last 10 % of the rounds, ± standard deviation over seeds"
    return f"{excess}; gap closed: 1 - excess / {of}; deployments: per client"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
