"""Case studies with known answers.

``CASES`` maps a name to the function that makes the problem; add your own to it. ``profl.cases.NAME`` is found in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from profl import checks
from profl.cases.gmsc import gmsc3, gmsc10
from profl.cases.group_pricing import group_pricing
from profl.cases.housing import housing
from profl.cases.izzo import logistic_shift, mixture, nonlinear
from profl.cases.mean_estimation import mean_estimation
from profl.cases.network import network
from profl.cases.orange_juice import orange_juice
from profl.cases.pricing import pricing
from profl.cases.real import adult, credit
from profl.cases.regression_shift import regression_shift
from profl.cases.retail import retail
from profl.cases.sales import choice, sales
from profl.cases.strategic import strategic
from profl.cases.unified_pricing import unified_pricing
from profl.problem.problem import Problem

__all__ = [
    "CASES",
    "adult",
    "choice",
    "credit",
    "get",
    "gmsc3",
    "gmsc10",
    "group_pricing",
    "housing",
    "logistic_shift",
    "mean_estimation",
    "mixture",
    "network",
    "nonlinear",
    "orange_juice",
    "pricing",
    "regression_shift",
    "retail",
    "sales",
    "strategic",
    "unified_pricing",
]

CASES: dict[str, Callable[..., Problem]] = {
    "pricing": pricing,
    "group_pricing": group_pricing,
    "unified_pricing": unified_pricing,
    "strategic": strategic,
    "housing": housing,
    "retail": retail,
    "orange_juice": orange_juice,
    "sales": sales,
    "choice": choice,
    "network": network,
    "mean_estimation": mean_estimation,
    "regression_shift": regression_shift,
    "nonlinear": nonlinear,
    "mixture": mixture,
    "logistic_shift": logistic_shift,
    "adult": adult,
    "credit": credit,
    "gmsc3": gmsc3,
    "gmsc10": gmsc10,
}


def get(name: str) -> Callable[..., Problem]:
    """The case called ``name``; an unknown name gets an error that suggests the nearest."""
    return CASES[checks.one_of("case", name, CASES)]


if not TYPE_CHECKING:  # lest a type checker take every name for a case

    def __getattr__(name: str) -> Callable[..., Problem]:
        """A case that was added to ``CASES``."""
        if name in CASES:
            return CASES[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
