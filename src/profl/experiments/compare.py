"""Several algorithms on one case, under the same budget of deployments and samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from profl.algorithms import pfl, pg, pofl
from profl.algorithms.method import Method
from profl.cases import housing, pricing
from profl.engines.compiled.simulate import simulate
from profl.problem.problem import Problem
from profl.results.record import Run

ETA, R, H, N = 0.01, 5, 20, 500
"""Of the demo, in the paper's letters: the settings of its Figures 3, with a rate at which 200 rounds arrive."""


def compare(problem: Problem, algorithms: Iterable[Method], **settings: Any) -> list[Run]:
    """One run per algorithm, all with the same ``profl.simulate`` settings and seeds.

    >>> from profl.cases import housing
    >>> from profl.algorithms import pfl, pofl
    >>> runs = compare(housing(clients=2), [pfl(), pofl()], rounds=100, samples=50, seeds=[0], progress=False)
    >>> bool(runs[1].excess[0, -1] < runs[0].excess[0, -1])
    True
    """
    return [simulate(problem, algorithm, **settings) for algorithm in algorithms]


def demo(
    *, seeds: Sequence[int] = range(10), rounds: int = 200, progress: bool = True
) -> Iterator[tuple[str, list[Run]]]:
    """PFL, PG and PoFL on pricing, then on housing (eta = 0.01, R = 5, H = 20, n = 500, ten different clients)."""
    methods = [pfl(ETA), pg(ETA, window=H), pofl(ETA, window=H)]
    settings: dict[str, Any] = {
        "rounds": rounds,
        "local_steps": R,
        "samples": N,
        "seeds": seeds,
        "progress": progress,
    }
    for case in (pricing, housing):
        problem = case()
        yield problem.name, compare(problem, methods, **settings)
