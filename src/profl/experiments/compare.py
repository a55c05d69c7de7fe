"""Several algorithms on one case, under the same budget of deployments and samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from profl.algorithms.method import Method
from profl.engines.compiled.simulate import simulate
from profl.problem.problem import Problem
from profl.results.record import Run


def compare(problem: Problem, algorithms: Iterable[Method], **settings: Any) -> list[Run]:
    """One run per algorithm, all with the same ``profl.simulate`` settings and seeds.

    >>> from profl.cases import housing
    >>> from profl.algorithms import pfl, pofl
    >>> runs = compare(housing(clients=2), [pfl(), pofl()], rounds=100, samples=50, seeds=[0], progress=False)
    >>> bool(runs[1].excess[0, -1] < runs[0].excess[0, -1])
    True
    """
    return [simulate(problem, algorithm, **settings) for algorithm in algorithms]
