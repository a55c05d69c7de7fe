"""What a benchmark or a reproduced figure hands over: rows for a table, and claims with what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from profl.experiments.plain import plain

Advance = Callable[[int], None]
"""Told how many parts are done: a progress bar."""


def nothing(steps: int) -> None:
    """No progress bar."""


class Claim(NamedTuple):
    """``measured`` is at most ``threshold`` (or at least, where ``at_least``); ``paper`` is what the paper reports."""

    claim: str
    expected: str
    measured: float
    threshold: float
    holds: bool
    paper: str = ""


def at_most(claim: str, measured: Any, threshold: float, unit: str = "", paper: str = "") -> Claim:
    """A claim that a figure does not exceed a threshold.

    >>> at_most("two and two", 4.0, 5.0).holds
    True
    """
    value = float(np.asarray(measured))
    return Claim(claim, f"at most {threshold:.4g}{unit}", value, float(threshold), bool(value <= threshold), paper)


def at_least(claim: str, measured: Any, threshold: float, unit: str = "", paper: str = "") -> Claim:
    """A claim that a figure reaches a threshold."""
    value = float(np.asarray(measured))
    return Claim(claim, f"at least {threshold:.4g}{unit}", value, float(threshold), bool(value >= threshold), paper)


class Part(NamedTuple):
    rows: list[dict[str, Any]]
    claims: list[Claim]


def item(name: str, seeds: int, parts: list[Callable[[], Part]], advance: Advance) -> dict[str, Any]:
    """Run the parts one after the other; what they found in the form that ``--json`` writes, as plain data."""
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    claims: list[dict[str, Any]] = []
    for part in parts:
        found = part()
        rows += found.rows
        claims += [claim._asdict() for claim in found.claims]
        advance(1)
    seconds = time.perf_counter() - started
    return plain({"item": name, "seeds": seeds, "seconds": seconds, "rows": rows, "claims": claims})
