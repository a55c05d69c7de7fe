"""Results as Markdown: the tables of the documentation and of the README are made here, not typed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profl.results.cells import cell, tally, verdict

Result = dict[str, Any]


def summary(results: Sequence[Result]) -> str:
    """How many claims hold, one line per item, and those that do not or only in direction, with what was measured."""
    lines = [
        [result["item"], result["title"], tally(result["claims"]).replace(" claims hold", "")] for result in results
    ]
    text = tally(claim for result in results for claim in result["claims"])
    text += ".\n\n" + table(["item", "what it shows", "claims that hold"], lines)
    named = [(result["item"], claim) for result in results for claim in result["claims"]]
    far = [
        f"- {item}, {claim['claim']}: {cell(claim['measured'])}, {claim['far']} (printed: {claim['paper'] or '-'})"
        for item, claim in named
        if verdict(claim).startswith("in direction")
    ]
    failed = [
        f"- {item}, {claim['claim']}: {cell(claim['measured'])}, expected {claim['expected']}"
        for item, claim in named
        if not claim["holds"]
    ]
    text += "\n\nThese hold in direction, far from the printed figure:\n\n" + "\n".join(far) if far else ""
    return text + ("\n\nThese do not hold:\n\n" + "\n".join(failed) if failed else "")


def claims(results: Sequence[Result]) -> str:
    """Every claim: what the paper says, what was measured, whether it holds."""
    lines = [
        [
            result["item"],
            claim["claim"],
            claim.get("paper") or "-",
            cell(claim["measured"]),
            claim["expected"],
            "**no**" if verdict(claim) == "no" else verdict(claim),
        ]
        for result in results
        for claim in result["claims"]
    ]
    return table(["item", "claim", "paper", "measured", "expected", "holds"], lines)


def item(result: Result) -> str:
    """One item: its rows, its settings beside the paper's, and why they differ."""
    names = list(dict.fromkeys([*result["paper_row"], *result["settings"]]))
    settings = [[name, cell(result["paper_row"].get(name)), cell(result["settings"].get(name))] for name in names]
    return "\n\n".join(
        [
            f"{result['title']}.",
            rows(result["rows"]),
            f"{result['why']} ({result['seeds']} seeds, {result['seconds']:.0f} s)",
            table(["setting", "the paper's row", "here"], settings),
        ]
    )


def rows(entries: Sequence[dict[str, Any]]) -> str:
    """
    >>> print(rows([{"n": 5, "excess": 0.25}]))
    | n | excess |
    |---|---|
    | 5 | 0.25 |
    """
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    return table(columns, [[cell(entry.get(column)) for column in columns] for entry in entries])


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """
    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    head, *body = ["| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |" for line in (columns, *lines)]
    return "\n".join([head, "|" + "---|" * len(columns), *body])
