"""The divergence guard of a live run: nobody knows the optimum, but everybody can see the loss explode.

The risk it looks at is the weighted median of the losses that the clients of a round stated: those with less than half
of the weight, whatever they state, can neither stop a run that goes well nor hide that it does not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from profl.run.run_history import Ledger
from profl.run.tally import MIDDLE

LEAST = 1e-3  # the scale of a risk that begins at zero


class Guard(NamedTuple):
    first: float = math.nan  # estimated risk of the first round that had one
    high: int = 0  # rounds in a row in which it was far above that


def guarded(guard: Guard, ledger: Ledger, limit: float) -> Guard:
    """The guard after one more round: has the risk risen by more than ``limit`` times its first scale?"""
    risk = ledger.latest[MIDDLE]
    if not math.isfinite(risk):
        return guard
    if not math.isfinite(guard.first):
        return Guard(risk, 0)
    high = risk - guard.first > limit * max(abs(guard.first), LEAST)
    return guard._replace(high=guard.high + 1 if high else 0)
