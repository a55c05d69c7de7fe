"""Independent runs at once: most of a short run is compilation, which keeps one core busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
_POOL = ThreadPoolExecutor(os.cpu_count())


def together(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """What the calls return, in their order; as many at a time as there are cores. Not for what reads a clock.

    Of runs that share compiled code the first should be over before the others begin: two at once both compile it. And
    at most one of them may decompose stacks of matrices, as sharing Jacobians does: XLA's threads on a CPU, of which
    there are as many as cores, wait inside each for another of them, and two such runs on two cores wait forever.

    >>> together([lambda: 1, lambda: 2])
    [1, 2]
    """
    return list(_POOL.map(lambda call: call(), calls))
