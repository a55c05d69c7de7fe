"""Alerts where the filter drops much at a client, or clearly more than before: one alert, however long it lasts.

A client's share in a round (a mean over its batches) is high where it is above ``ALARMING_SHARE``, or above its
usual share p, the mean of at least five batches before, by more than

    max(0.05, 5 sqrt(p (1 - p) / n)),        n the samples of a round.

Rounds in a row, of those in which the client took part, are one alert. What is unusual for long becomes usual.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from profl.parts.trusted_samples import ALARMING_SHARE
from profl.run.plan import CompiledPlan, Settings
from profl.run.run_history import RunHistory
from profl.run.totals import mean_dropped_share

BATCHES = 5  # that a usual share is a mean of
LEAST = 0.05  # above the usual share: less is not worth an alert
ERRORS = 5.0  # standard errors: by chance once in three million batches, if samples are dropped independently


class FilterAlert(NamedTuple):
    """Rounds in a row in which the filter dropped too much at a client."""

    client: int
    round: int  # the first one
    rounds: int
    dropped: float  # mean share over them
    usual: float  # before the first one; NaN where too little was known
    ended: bool = False

    def extend(self, share: float) -> FilterAlert:
        """The alert with one more round."""
        return self._replace(rounds=self.rounds + 1, dropped=self.dropped + (share - self.dropped) / (self.rounds + 1))

    @property
    def incident(self) -> tuple[int, int, str]:
        """(round, client, what happened), as for every incident."""
        length = f", in {self.rounds} rounds in a row" if self.rounds > 1 else ""
        before = "" if math.isnan(self.usual) else f" ({self.usual:.1%} before)"
        return self.round, self.client, f"lost {self.dropped:.1%} of its samples to the filter{before}{length}"


def update_alerts(
    alerts: tuple[FilterAlert, ...], plan: CompiledPlan, before: RunHistory, after: RunHistory
) -> tuple[tuple[FilterAlert, ...], tuple[FilterAlert, ...]]:
    """(all alerts after one more round, the new ones among them)."""
    old, new = before.carry.dropped, after.carry.dropped
    if old is None or new is None:
        return alerts, ()
    took_part = np.asarray(new.rounds) > np.asarray(old.rounds)
    share = np.asarray(np.asarray(new.total) - np.asarray(old.total), float)
    usual = np.where(np.asarray(old.rounds) * plan.settings.local_steps >= BATCHES, mean_dropped_share(old), np.nan)
    error = np.sqrt(usual * (1 - usual) / _samples(plan.settings, np.asarray(plan.population.counts)))
    high = took_part & ((share > ALARMING_SHARE) | (share > usual + np.maximum(LEAST, ERRORS * error)))

    def update(alert: FilterAlert) -> FilterAlert:
        if alert.ended or not took_part[alert.client]:
            return alert
        return alert.extend(float(share[alert.client])) if high[alert.client] else alert._replace(ended=True)

    active = {alert.client for alert in alerts if not alert.ended}
    fresh = tuple(
        FilterAlert(client, after.round, 1, float(share[client]), float(usual[client]))
        for client in np.flatnonzero(high).tolist()
        if client not in active
    )
    return (*map(update, alerts), *fresh), fresh


def _samples(settings: Settings, counts: np.ndarray) -> np.ndarray:
    """The samples of each client in a round, or the fewest that there may be."""
    return settings.local_steps * (counts if settings.method.sizes is None else np.full_like(counts, settings.sizes[0]))
