"""Named methods, one file each.

``ALGORITHMS`` maps a name to what makes the method; add your own to it. ``profl.NAME`` is found in it.
"""

from __future__ import annotations

from collections.abc import Callable

from profl import checks
from profl.algorithms.dfo import DerivativeFree as dfo
from profl.algorithms.dfo_lambda import ForgettingDFO as dfo_lambda
from profl.algorithms.lazy import lazy
from profl.algorithms.method import Method
from profl.algorithms.pfl import pfl, rgd, rrm
from profl.algorithms.pofl import pg, pofl
from profl.algorithms.prm import prm
from profl.algorithms.profl import profl
from profl.algorithms.two_stage import TwoStage as two_stage

ALGORITHMS: dict[str, Callable[..., Method]] = {
    "pfl": pfl,
    "pofl": pofl,
    "profl": profl,
    "prm": prm,
    "pg": pg,
    "rgd": rgd,
    "rrm": rrm,
    "lazy": lazy,
    "dfo": dfo,
    "dfo_lambda": dfo_lambda,
    "two_stage": two_stage,
}


def get(name: str) -> Callable[..., Method]:
    """The algorithm called ``name``; an unknown name gets an error that suggests the nearest."""
    return ALGORITHMS[checks.one_of("algorithm", name, ALGORITHMS)]
