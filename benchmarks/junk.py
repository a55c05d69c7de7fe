"""Junk among the samples of a run (Figure 2a): what it costs with the filter and without."""

from __future__ import annotations

from typing import Any

from profl.cases import pricing, strategic
from profl.methods import profl
from profl.parts.filters import RobustFilter
from profl.problem.contamination import contaminate
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_most

SAMPLES = 500
SHARES, DISTANCE = (0.1, 0.2, 0.4), 10
"""The paper's shares of junk; it gives no distance."""
FILTERS = {"robust": RobustFilter(at_most=0.45, core=0.9), "none": "none"}
"""Up to 40 % are junk here, and whoever knows says so: by default the filter drops a third at most."""
TIMES, MORE = 1.5, 0.01
"""The bar of Figure 2a: at most TIMES the excess of the clean run plus MORE, for a clean excess near zero."""
FLIPPED, RATE = 0.2, 0.1
"""A fifth of the labels, and strategic's own learning rate."""
POINTS = 1.0
"""Of accuracy that may be lost, in percent."""


def junk(source: str, settings: dict[str, Any]) -> Part:
    """Pricing with junk of one kind, filtered and not: shares of it, none among them, have a program in common."""
    clean = _excess(settings, 0.0, source, "robust")
    rows, claims = [_row("pricing", source, 0.0, "robust", excess=clean)], []
    for share in SHARES:
        for name in FILTERS:
            excess = _excess(settings, share, source, name)
            rows.append(_row("pricing", source, share, name, excess=excess))
            if name == "robust":
                claim = f"pricing, {share:.0%} {source}: tail excess with the filter"
                claims.append(at_most(claim, excess, TIMES * clean + MORE))
    return Part(rows, claims)


def _excess(settings: dict[str, Any], share: float, source: str, filter: str) -> float:
    case = contaminate(pricing(), share, source, distance=DISTANCE)
    return simulate(case, profl(filter=FILTERS[filter]), samples=SAMPLES, **settings).tail_excess().mean()


def flipped(settings: dict[str, Any]) -> Part:
    """Strategic classification with a fifth of the labels flipped."""
    found = [_accuracies(settings, name) for name in FILTERS]
    honest = found[0][0]
    lost = {name: 100 * (honest - accuracy) for name, (_, accuracy) in zip(FILTERS, found, strict=True)}
    rows = [_row("strategic", "label_flip", FLIPPED, name, **{"points lost": points}) for name, points in lost.items()]
    claim = f"strategic, {FLIPPED:.0%} labels flipped: accuracy lost with the filter"
    return Part(rows, [at_most(claim, lost["robust"], POINTS, " points")])


def _accuracies(settings: dict[str, Any], filter: str) -> list[float]:
    """With no labels flipped, and with a fifth of them."""
    cases = [contaminate(strategic(), share, "label_flip") for share in (0.0, FLIPPED)]
    runs = [simulate(case, profl(RATE, filter=FILTERS[filter]), samples=SAMPLES, **settings) for case in cases]
    return [float(run.tail("accuracy").mean()) for run in runs]


def _row(case: str, source: str, share: float, name: str, **figure: float) -> dict[str, Any]:
    return {"part": "junk", "case": case, "source": source, "share": share, "filter": name, **figure}
