"""Times that can be compared on a noisy machine: taken in turns, in one process, as medians of ratios within a turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def in_turns(functions: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of every function in every turn, after one call that compiles."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(turns):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - started)
    return times


def ratio(times: list[float], others: list[float]) -> float:
    """The median over turns of one time over another.

    >>> ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(times, others, strict=True))
