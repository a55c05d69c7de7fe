"""A histogram in plain text, within 80 columns: samples that a filter would keep, and those that it would drop."""

from __future__ import annotations

import numpy as np

BINS = 12
WIDTH = 44  # columns of the longest bar
KEPT, DROPPED = "█", "░"


def histogram(name: str, values: np.ndarray, dropped: np.ndarray) -> str:
    """One line per bin, upwards. Dropped samples farther off than the kept ones are wide are in the outermost bins.

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
    kept = values[~dropped]
    span = np.ptp(kept) if np.ptp(kept) > 0 else np.ptp(values)
    low, high = max(values.min(), kept.min() - span), min(values.max(), kept.max() + span)
    shown = np.clip(values, low, high)
    edges = np.histogram_bin_edges(shown, BINS)
    stays, goes = (np.histogram(shown[chosen], edges)[0].tolist() for chosen in (~dropped, dropped))
    labels = [f"{edge:.3g}" for edge in edges[:-1]]
    labels[0] = f"< {edges[1]:.3g}" if low > values.min() else labels[0]
    labels[-1] = f"> {labels[-1]}" if high < values.max() else labels[-1]
    margin, unit = max(map(len, labels)), WIDTH / max(map(sum, zip(stays, goes, strict=True)))
    numbers = f"{KEPT} {kept.size} kept, {DROPPED} {dropped.sum()} dropped"
    lines = [f"{name} from {values.min():.4g} to {values.max():.4g}: {numbers}"]
    for label, stay, go in zip(labels, stays, goes, strict=True):
        bar = KEPT * _columns(stay, unit) + DROPPED * _columns(go, unit)
        lines.append(f"{label:>{margin}} │{bar}{f' {stay}' if stay else ''}{f' + {go}' if go else ''}")
    return "\n".join(lines)


def _columns(count: int, unit: float) -> int:
    """Whatever there is shows."""
    return max(round(count * unit), 1) if count else 0
