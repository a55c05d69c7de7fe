"""Named methods, one file each.

``ALGORITHMS`` maps a name to what makes the method; add your own to it. ``profl.NAME`` is found in it.
"""

from __future__ import annotations

from collections.abc import Callable

from profl import checks
from profl.methods.chain import Chain, chain
from profl.methods.dfo import DerivativeFree as dfo
from profl.methods.literal import literal
from profl.methods.method import Arrival, Forecast, Method
from profl.methods.pfl import pfl, rgd, rrm
from profl.methods.pofl import pg, pofl
from profl.methods.prm import PastDeployments, past_deployments, prm
from profl.methods.profl import profl
from profl.methods.stopping import StopWhenSettled
from profl.methods.two_stage import TwoStage as two_stage

__all__ = [
    "ALGORITHMS",
    "Arrival",
    "Chain",
    "Forecast",
    "Method",
    "PastDeployments",
    "StopWhenSettled",
    "chain",
    "dfo",
    "get",
    "literal",
    "past_deployments",
    "pfl",
    "pg",
    "pofl",
    "prm",
    "profl",
    "rgd",
    "rrm",
    "two_stage",
]

ALGORITHMS: dict[str, Callable[..., Method]] = {
    "pfl": pfl,
    "pofl": pofl,
    "profl": profl,
    "prm": prm,
    "pg": pg,
    "rgd": rgd,
    "rrm": rrm,
    "dfo": dfo,
    "two_stage": two_stage,
    "literal": literal,
}


def get(name: str) -> Callable[..., Method]:
    """The algorithm called ``name``; an unknown name gets an error that suggests the nearest."""
    return ALGORITHMS[checks.one_of("algorithm", name, ALGORITHMS)]
