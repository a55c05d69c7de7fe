"""Independent runs at once: most of a short run is compilation, which keeps one core busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def together(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """What the calls return, in their order; as many at a time as there are cores. Not for what reads a clock.

    Runs that share compiled code belong into one call: two that begin at once would compile it twice.

    >>> together([lambda: 1, lambda: 2])
    [1, 2]
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda call: call(), calls))
