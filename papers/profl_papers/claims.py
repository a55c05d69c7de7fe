"""What a benchmark or a reproduced figure hands over: rows for a table, and claims with what was measured.

A claim has one of three verdicts: it holds; it holds in direction, but what was measured is far from the figure that a
paper prints (``far`` says by how much); it does not hold. ``profl.results.cells.verdict`` says which.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

FAR = 2.0
"""From how many times a printed figure on, or from what part of it, a measured one is far from it."""


class Claim(NamedTuple):
    """``measured`` is at most ``threshold`` (or at least, where ``at_least``); ``paper`` is what the paper reports.

    ``far`` is how far that is from what was measured, where it is far; else nothing.
    """

    claim: str
    expected: str
    measured: float
    threshold: float
    holds: bool
    paper: str = ""
    far: str = ""


def at_most(
    claim: str, measured: Any, threshold: float, unit: str = "", paper: str = "", printed: float | None = None
) -> Claim:
    """A claim that a figure does not exceed a threshold; ``printed``, where a paper has a figure for the same.

    >>> at_most("two and two", 4.0, 5.0).holds
    True
    """
    value = float(np.asarray(measured))
    stated = f"at most {threshold:.4g}{unit}", value, float(threshold), bool(value <= threshold)
    return Claim(claim, *stated, paper or shown(printed), distance(value, printed))


def at_least(
    claim: str, measured: Any, threshold: float, unit: str = "", paper: str = "", printed: float | None = None
) -> Claim:
    """A claim that a figure reaches a threshold.

    >>> at_least("a bias", 0.01, 0.005, printed=0.55).far
    '55 times smaller'
    """
    value = float(np.asarray(measured))
    stated = f"at least {threshold:.4g}{unit}", value, float(threshold), bool(value >= threshold)
    return Claim(claim, *stated, paper or shown(printed), distance(value, printed))


def close(claim: str, measured: Any, figure: float, within: float, direction: bool = False, paper: str = "") -> Claim:
    """A claim that a figure is this one; ``direction``, whether it holds in direction where the figure is another.

    >>> close("pi", 3.1, 3.14159, 0.01).holds, close("pi", 3.1, 3.14159, 0.01, direction=True).far
    (False, 'off by 0.0416')
    """
    value = float(np.asarray(measured))
    near = bool(abs(value - figure) <= within)
    far = "" if near else distance(value, figure) or f"off by {abs(value - figure):.3g}"
    expected = f"{figure:.7g} within {within:.2g}"
    return Claim(claim, expected, value, float(within), near or bool(direction), paper, far)


def distance(measured: float, printed: float | None) -> str:
    """By how much a figure is far from the printed one; nothing where it is not, or where none is printed.

    >>> distance(0.5, 0.4), distance(0.5, -0.5)
    ('', '0.5 instead of -0.5')
    """
    if printed is None or not np.isfinite(measured):
        return ""
    if measured * printed <= 0:
        return f"{measured:.3g} instead of {printed:.3g}"
    ratio = measured / printed
    if 1 / FAR <= ratio <= FAR:
        return ""
    return f"{ratio:.2g} times larger" if ratio > 1 else f"{1 / ratio:.2g} times smaller"


def shown(printed: float | None) -> str:
    return "" if printed is None else f"{printed:.4g}"


class Part(NamedTuple):
    """What a part of a benchmark found."""

    rows: list[dict[str, Any]]
    claims: list[Claim]
