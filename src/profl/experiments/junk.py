"""Junk among the samples of a run (Figure 2a): what it costs with the filter and without."""

from __future__ import annotations

from typing import Any

from profl.algorithms import profl
from profl.cases import pricing, strategic
from profl.engines.compiled.simulate import simulate
from profl.experiments.claims import Part, at_most
from profl.problem.contamination import contaminate
from profl.results.record import Run

SAMPLES = 500
SHARES, DISTANCE = (0.1, 0.2, 0.4), 10
"""The paper's shares of junk; it gives no distance."""
FILTERS = ("robust", "none")
TIMES, MORE = 1.5, 0.01
"""The bar of Figure 2a: at most TIMES the excess of the clean run plus MORE, for a clean excess near zero."""
FLIPPED, RATE = 0.2, 0.1
"""A fifth of the labels, and strategic's own learning rate."""
POINTS = 1.0
"""Of accuracy that may be lost, in percent."""


def junk(settings: dict[str, Any], source: str) -> Part:
    """Pricing with junk of one kind, filtered and not."""

    def excess(case: Any, filter: str) -> float:
        return simulate(case, profl(filter=filter), samples=SAMPLES, **settings).tail_excess().mean()

    clean = excess(pricing(), "robust")
    rows = [_row("pricing", source, 0.0, "robust", excess=clean)]
    claims = []
    for share in SHARES:
        case = contaminate(pricing(), share, source, distance=DISTANCE)
        found = {name: excess(case, name) for name in FILTERS}
        rows += [_row("pricing", source, share, name, excess=value) for name, value in found.items()]
        name = f"pricing, {share:.0%} {source}: tail excess with the filter"
        claims.append(at_most(name, found["robust"], TIMES * clean + MORE))
    return Part(rows, claims)


def flipped(settings: dict[str, Any]) -> Part:
    """Strategic classification with a fifth of the labels flipped."""
    honest = _accuracy(simulate(strategic(), profl(RATE), samples=SAMPLES, **settings))
    case = contaminate(strategic(), FLIPPED, "label_flip")
    lost = {
        name: 100 * (honest - _accuracy(simulate(case, profl(RATE, filter=name), samples=SAMPLES, **settings)))
        for name in FILTERS
    }
    rows = [_row("strategic", "label_flip", FLIPPED, name, **{"points lost": points}) for name, points in lost.items()]
    claim = f"strategic, {FLIPPED:.0%} labels flipped: accuracy lost with the filter"
    return Part(rows, [at_most(claim, lost["robust"], POINTS, " points")])


def _row(case: str, source: str, share: float, name: str, **figure: float) -> dict[str, Any]:
    return {"part": "junk", "case": case, "source": source, "share": share, "filter": name, **figure}


def _accuracy(run: Run) -> float:
    return float(run.tail("accuracy").mean())
