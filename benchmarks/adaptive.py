"""A sample size that follows the noise (Figure 2c): samples, excess and time against a fixed one."""

from __future__ import annotations

from functools import partial
from typing import Any

from profl.cases import pricing
from profl.methods import profl
from profl.parts.sample_size import AdaptiveSamples
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_most

FEWEST, MOST = 50, 1000
TOLERANCES = (0.05, 0.1)
FEWER = 0.5
"""The share of the samples of fixed n that may be drawn: what the paper's "significantly fewer" is taken to mean."""
NO_SLOWER = 0.7
"""Of the time of fixed n: a tenth of the samples, and choosing how many, must cost less than drawing all of them."""

TURNS = 2
"""Runs of each, of which the faster counts: the other may have been disturbed."""


def adaptive(settings: dict[str, Any]) -> Part:
    """At most 1000 samples, tolerances 0.05 and 0.1."""
    sizes = [None, *(AdaptiveSamples(tolerance, FEWEST, MOST) for tolerance in TOLERANCES)]
    runs = [partial(simulate, pricing(), profl(filter="none", samples=n), samples=MOST, **settings) for n in sizes]
    for compiling in runs:
        compiling()
    fixed, *found = (min((run() for _ in range(TURNS)), key=lambda run: run.seconds) for run in runs)
    rows, claims = [_row(f"fixed {MOST}", fixed)], []
    for tolerance, run in zip(TOLERANCES, found, strict=True):
        rows.append(_row(f"tolerance {tolerance}", run))
        used = run.samples[:, -1].sum() / fixed.samples[:, -1].sum()
        name = f"adaptive n, tolerance {tolerance}"
        claims += [
            at_most(f"{name}: share of the samples of fixed {MOST}", used, FEWER),
            at_most(f"{name}: tail excess", run.tail_excess().mean(), tolerance),
            at_most(f"{name}: time over that of fixed {MOST}", run.seconds / fixed.seconds, NO_SLOWER),
        ]
    return Part(rows, claims)


def _row(name: str, run: Run) -> dict[str, Any]:
    mean = run.samples[:, -1].sum() / run.deployments[:, -1].sum()
    excess = run.tail_excess().mean()
    return {"part": "adaptive n", "n": name, "mean n": mean, "excess": excess, "seconds": run.seconds}
