"""Named methods, each a recipe over the same parts. ``ALGORITHMS`` maps a name to the function that makes it."""

from __future__ import annotations

from collections.abc import Callable

from profl import checks
from profl.algorithms.base import Algorithm
from profl.algorithms.pfl import pfl, rgd, rrm
from profl.algorithms.pofl import pg, pofl
from profl.algorithms.profl import profl

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    function.__name__: function for function in (pfl, pofl, profl, pg, rgd, rrm)
}


def get(name: str) -> Callable[..., Algorithm]:
    """The algorithm called ``name``; an unknown name gets an error that suggests the nearest."""
    return ALGORITHMS[checks.one_of("algorithm", name, ALGORITHMS)]


__all__ = ["ALGORITHMS", "Algorithm", "get", "pfl", "pg", "pofl", "profl", "rgd", "rrm"]
