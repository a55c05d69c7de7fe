"""Case studies with known answers. ``CASES`` maps a name to the function that makes the problem."""

from __future__ import annotations

from collections.abc import Callable

from profl import checks
from profl.cases.group_pricing import group_pricing
from profl.cases.housing import housing
from profl.cases.pricing import pricing
from profl.cases.real import adult, credit
from profl.cases.retail import retail
from profl.cases.strategic import strategic
from profl.problem.problem import Problem

CASES: dict[str, Callable[..., Problem]] = {
    function.__name__: function for function in (pricing, group_pricing, strategic, housing, retail, adult, credit)
}


def get(name: str) -> Callable[..., Problem]:
    """The case called ``name``; an unknown name gets an error that suggests the nearest."""
    return CASES[checks.one_of("case", name, CASES)]


__all__ = ["CASES", "adult", "credit", "get", "group_pricing", "housing", "pricing", "retail", "strategic"]
