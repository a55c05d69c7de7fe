"""Intervals for the optimum and for what it gains, from a state of a campaign."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from profl.campaign.fold import Fold, State
from profl.results.forecast import Intervals, check_level, intervals_of
from profl.run.round import posterior_on_host


def intervals_at(fold: Fold, state: State, names: Sequence[str], level: float) -> Intervals | None:
    """The intervals after the last closed round; None before the first, and where the method states nothing."""
    check_level(level)
    history, settings = state.live.history, fold.plan.settings
    known = posterior_on_host(settings, history.carry.server) if history.round else None
    return None if known is None else intervals_of(known, jax.tree.map(np.asarray, history.carry.theta), level, names)
