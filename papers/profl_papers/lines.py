"""Lines of a figure from plain arrays: what ``profl_papers.measures`` does for runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profl_papers.measures import drawn


def line(label: str, method: str, x: Sequence[float] | np.ndarray, values: Any) -> dict[str, Any]:
    """Mean, lowest and highest over seeds of ``values``, (seeds, points).

    >>> line("RGD", "rgd", [0, 1], [[1.0, 2.0], [3.0, 2.0]])["mean"]
    [2.0, 2.0]
    """
    series = np.asarray(values, float)
    numbers = {"x": x, "mean": series.mean(0), "low": series.min(0), "high": series.max(0)}
    return {"label": label, "method": method} | {key: [drawn(v) for v in array] for key, array in numbers.items()}
