"""The share of samples that the robust filter would drop, or that it cannot decide on, with a histogram."""

from __future__ import annotations

import numpy as np

from profl.parts.filters import RobustFilter
from profl.parts.trusted_samples import ALARMING_SHARE
from profl.problem.families import Family
from profl.problem.problem import Problem
from profl.run.diagnostics.subject import Finding
from profl.run.undecided import HALF, NARROWER, NO_SPREAD, columns_of, dropped_samples, farthest
from profl.typing import Batch, Theta

SOUND = 0.97  # kept by the filter: of clean data it keeps 99.5 % and more (tests/test_filters.py)
IF_JUNK = "; if that is junk, profl.profl and profl.prm(filter='robust') train without it"
IF_MUCH = (
    ": so much may be a second kind of customer and not junk. Look at who they are. If it is junk, give the filter a "
    "vetted sample, RobustFilter(reference=...); if not, train with filter='none', or set a limit, at_most=..."
)
UNDECIDED = (
    "; a group of {share:.1%} lies apart, more than it may drop: undecided, so it stays. A vetted sample decides, "
    "RobustFilter(reference=...), or a limit for those who know that it is junk, at_most=..."
)
ORDINARY = "; {0:.0%} of {1} are {2} and apart from the rest: the family takes them for ordinary"
APART = 3.0  # standard deviations of the rest
BINS = 12
WIDTH = 44  # columns of the longest bar
KEPT, DROPPED = "█", "░"


def junk(world: Problem, theta: Theta, batch: Batch) -> Finding:
    """How many samples the robust filter would drop."""
    after, wider = (
        dropped_samples(world.functions, rule, theta, batch)
        for rule in (RobustFilter(), RobustFilter(at_most=HALF, core=NARROWER))
    )
    share, apart = float(after.mean()), float(wider.mean())
    undecided = apart > share + 1 - SOUND
    verdict, hint = ("ok", "") if share <= 1 - SOUND else ("warn", IF_JUNK if share < ALARMING_SHARE else IF_MUCH)
    verdict, hint = ("warn", hint + UNDECIDED.format(share=apart)) if undecided else (verdict, hint)
    picture = _picture(batch, wider if undecided else after, "apart, undecided" if undecided else "dropped")
    ordinary = _ordinary(world.family, batch)
    return Finding("junk", verdict, f"the filter would drop {share:.1%} of the samples{hint}{ordinary}", picture)


def _ordinary(family: Family, batch: Batch) -> str:
    """What is to be said of the coordinate with the most values that are ordinary to the family, zeros mostly, and lie
    apart from its other ones; "" for none."""
    names, points = columns_of(batch)
    known, found = columns_of(family.ordinary(batch))[1] > 0, []
    for name, values, usual in zip(names, points.T, known.T, strict=True):
        rest = values[~usual]
        if 0 < rest.size < values.size and abs(rest.mean()) > APART * max(rest.std(), NO_SPREAD):
            found.append((1 - rest.size / values.size, name, "exactly zero" if not values[usual].any() else "ordinary"))
    return ORDINARY.format(*max(found)) if found else ""


def _picture(batch: Batch, dropped: np.ndarray, word: str) -> str:
    """A histogram of the coordinate in which the dropped samples lie farthest from the mean of the kept ones."""
    if not dropped.any() or dropped.all():
        return ""
    return histogram(*farthest(batch, dropped), dropped, word)


def histogram(name: str, values: np.ndarray, dropped: np.ndarray, word: str = "dropped") -> str:
    """The histogram as text, one line per bin. Dropped samples that lie far outside are in the outermost bins.

    >>> print(histogram("z", np.array([0.0, 1, 1, 2, 3, 99]), np.arange(6) == 5).replace("█" * 22, "█..█"))
    z from 0 to 99: █ 5 kept, ░ 1 dropped
        0 │█..█ 1
      0.5 │
        1 │█..██..█ 2
      1.5 │
        2 │█..█ 1
      2.5 │
        3 │█..█ 1
      3.5 │
        4 │
      4.5 │
        5 │
    > 5.5 │░░░░░░░░░░░░░░░░░░░░░░ + 1
    """
    rest = values[~dropped]
    span = np.ptp(rest) if np.ptp(rest) > 0 else np.ptp(values)
    low, high = max(values.min(), rest.min() - span), min(values.max(), rest.max() + span)
    clipped = np.clip(values, low, high)
    edges = np.histogram_bin_edges(clipped, BINS)
    stays, goes = (np.histogram(clipped[rows], edges)[0].tolist() for rows in (~dropped, dropped))
    labels = [f"{edge:.3g}" for edge in edges[:-1]]
    labels[0] = f"< {edges[1]:.3g}" if low > values.min() else labels[0]
    labels[-1] = f"> {labels[-1]}" if high < values.max() else labels[-1]
    margin, unit = max(map(len, labels)), WIDTH / max(map(sum, zip(stays, goes, strict=True)))
    numbers = f"{KEPT} {rest.size} kept, {DROPPED} {dropped.sum()} {word}"
    lines = [f"{name} from {values.min():.4g} to {values.max():.4g}: {numbers}"]
    for label, stay, go in zip(labels, stays, goes, strict=True):
        bar = KEPT * _columns(stay, unit) + DROPPED * _columns(go, unit)
        lines.append(f"{label:>{margin}} │{bar}{f' {stay}' if stay else ''}{f' + {go}' if go else ''}")
    return "\n".join(lines)


def _columns(count: int, unit: float) -> int:
    """The columns of a bar; at least one for any count above zero."""
    return max(round(count * unit), 1) if count else 0
