"""How values look in the cell of a table, wherever the table is: a terminal, Markdown, a page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def cell(value: Any) -> str:
    """Any value: four significant figures, a dash for None, lists and dicts in one line.

    >>> cell(0.123456), cell(200), cell(None), cell("PFL"), cell([0, 0.5]), cell({"PFL": 0.01})
    ('0.1235', '200', '-', 'PFL', '0, 0.5', 'PFL 0.01')
    """
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def number(value: float | None) -> str:
    """A measured number: four significant figures, a dash where nothing finite was measured.

    >>> number(0.123456), number(123456.0), number(float("nan")), number(None)
    ('0.1235', '1.235e+05', '-', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def verdict(claim: dict[str, Any]) -> str:
    """Whether a claim holds: yes, in direction but far from the printed figure, or no.

    >>> verdict({"holds": True}), verdict({"holds": True, "far": "55 times smaller"}), verdict({"holds": False})
    ('yes', 'in direction, 55 times smaller', 'no')
    """
    if not claim["holds"]:
        return "no"
    return f"in direction, {claim['far']}" if claim.get("far") else "yes"


def claims_summary(claims: Iterable[dict[str, Any]]) -> str:
    """How many claims hold, and how many of the others do in direction.

    >>> claims_summary([{"holds": True}, {"holds": True, "far": "55 times smaller"}, {"holds": False}])
    '1 of 3 claims hold, 1 in direction'
    """
    verdicts = [verdict(claim) for claim in claims]
    far = sum(text.startswith("in direction") for text in verdicts)
    return f"{verdicts.count('yes')} of {len(verdicts)} claims hold" + (f", {far} in direction" if far else "")


def changes_note(result: dict[str, Any]) -> str:
    """What was changed in a reproduced result's claims once results had been seen; nothing where all was fixed before.

    >>> changes_note({"changed": "A tolerance, from 1 to 2."}), changes_note({})
    ('Changed after results had been seen: A tolerance, from 1 to 2.', '')
    """
    return f"Changed after results had been seen: {result['changed']}" if result.get("changed") else ""


def count(value: float) -> str:
    """A number of things: whole, with separators.

    >>> count(48842), count(1e6)
    ('48,842', '1,000,000')
    """
    return f"{value:,.0f}"
