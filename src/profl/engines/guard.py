"""The divergence guard of a live run: nobody knows the optimum, but everybody can see the loss explode."""

from __future__ import annotations

import math
from typing import NamedTuple

from profl.engines.rounds import Server


class Guard(NamedTuple):
    first: float = math.nan  # estimated risk of the first round that had one
    high: int = 0  # rounds in a row in which it was far above that


def watch(guard: Guard, server: Server, limit: float) -> Guard:
    """The guard after one more round: has the risk risen by more than ``limit`` times max(|first|, 1e-3)?"""
    tally = server.since if server.since.deployments else server.tallies[-1]
    if not math.isfinite(tally.risk):
        return guard
    if not math.isfinite(guard.first):
        return Guard(tally.risk, 0)
    rise = tally.risk - guard.first
    return guard._replace(high=guard.high + 1 if rise > limit * max(abs(guard.first), 1e-3) else 0)
