"""The demo: several methods on two cases, under the same budget of deployments and samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from profl.algorithms import pfl, pg, pofl
from profl.cases import housing, pricing
from profl.engines.compare import compare
from profl.results.record import Run

ETA, R, H, N = 0.01, 5, 20, 500
"""Of the demo, in the paper's letters: the settings of its Figures 3, with a rate at which 200 rounds arrive."""


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
