"""Results as Markdown: the tables of the documentation and of the README are made here, not typed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profl.results.cells import cell, changes_note, claims_summary, verdict
from profl_papers.both_forms import side_by_side
from profl_papers.profl2024.printed import WORK

Result = dict[str, Any]


def summary(results: Sequence[Result]) -> str:
    """How many claims hold, one line per item, and those that do not or only in direction, with what was measured."""
    lines = [
        [result["item"], result["title"], claims_summary(result["claims"]).replace(" claims hold", "")]
        for result in results
    ]
    text = claims_summary(claim for result in results for claim in result["claims"])
    text += ".\n\n" + table(["item", "what it shows", "claims that hold"], lines)
    return "\n\n".join(
        [text, *misses([(f"{result['item']}, ", claim) for result in results for claim in result["claims"]])]
    )


def misses(named: Sequence[tuple[str, Result]]) -> list[str]:
    """Claims that hold in direction only, and those that do not; ``named`` has what stands before a claim, and it."""
    far = [
        f"- {item}{claim['claim']}: {cell(claim['measured'])}, {claim['far']} "
        f"({'printed: ' + claim['paper'] if claim['paper'] else 'expected ' + claim['expected']})"
        for item, claim in named
        if verdict(claim).startswith("in direction")
    ]
    failed = [
        f"- {item}{claim['claim']}: {cell(claim['measured'])}, expected {claim['expected']}"
        for item, claim in named
        if not claim["holds"]
    ]
    said = [("These hold in direction, far from the figure:", far), ("These do not hold:", failed)]
    return [f"{line}\n\n" + "\n".join(claims) for line, claims in said if claims]


def papers(results: Sequence[Result]) -> str:
    """One line per paper: how many of its claims hold, hold in direction, do not, and whether any were changed."""
    lines = []
    for work in by_paper(results):
        verdicts = [verdict(claim) for result in work for claim in result["claims"]]
        far = sum(each.startswith("in direction") for each in verdicts)
        counts = [f"{verdicts.count('yes')} of {len(verdicts)}", str(far or ""), str(verdicts.count("no") or "")]
        lines.append([work[0]["work"], work[0]["citation"], *counts])
    return table(["name", "paper", "claims that hold", "in direction", "not"], lines)


def field(results: Sequence[Result]) -> str:
    """Every paper under its citation: what came out, what was changed, what does not hold, a picture, and its rows."""
    return "\n\n".join(
        "\n\n".join(
            text
            for text in (
                f"### {result['citation']}",
                f"`profl reproduce {result['item']}`: {claims_summary(result['claims'])}.",
                result["finding"],
                changes_note(result),
                *misses([("", claim) for claim in result["claims"]]),
                f"![{result['title']}](figures/{result['item']}.png)",
                item(result),
            )
            if text
        )
        for result in results
    )


def by_paper(results: Sequence[Result]) -> list[list[Result]]:
    """Results by the paper they are from, in their order."""
    names = dict.fromkeys(result["work"] for result in results)
    return [[result for result in results if result["work"] == name] for name in names]


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


def both_forms(results: Sequence[Result]) -> str:
    """Every claim of the ProFL paper with profl's parts and as printed; how many hold each way above it."""
    pairs = side_by_side(results)
    counts = {
        label: claims_summary(
            claim for result in results if (result["work"] == WORK) == is_printed for claim in result["claims"]
        )
        for label, is_printed in (("with profl's parts", False), ("as printed", True))
    }
    told = "; ".join(f"{label} {text}" for label, text in counts.items())
    return f"{told}.\n\n" + table(list(pairs[0]), [list(map(cell, pair.values())) for pair in pairs])


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
