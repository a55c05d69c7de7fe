"""What a live run carries from round to round besides its history: incidents, filter alerts and the divergence guard.

The guard stops a run whose loss explodes; nobody knows the optimum of a live run. Its risk is the weighted median of
the losses that the clients of a round report: clients with less than half of the weight can neither stop a run that
goes well nor hide that it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from profl import checks
from profl.results.callbacks import Incident
from profl.results.record import Live
from profl.run.live.filter_alerts import FilterAlert
from profl.run.plan import Settings
from profl.run.round import distrusted_on_host
from profl.run.run_history import RunHistory, item_shapes, pack, unpack, with_unknown_records
from profl.run.totals import LOSS_MEDIAN, LOSS_RANGE
from profl.storage.checkpoints import Checkpoints

REFUSED = "sent a report that is not finite, outside the model space or absurdly far: refused"
LEAST_SCALE = 1e-3  # the scale of a risk that begins at zero
HIGH_ROUNDS = 3  # in a row with a risk far above the first: one may be an accident of its data


class Guard(NamedTuple):
    """The divergence guard."""

    first: float = math.nan  # estimated risk of the first round that had one
    high: int = 0  # rounds in a row in which it was far above that

    def update(self, history: RunHistory, limit: float) -> Guard:
        """The guard after one more round; the risk is high ``limit`` times its first scale above the first risk."""
        risk = history.latest[LOSS_MEDIAN]
        if not math.isfinite(risk):
            return self
        if not math.isfinite(self.first):
            return Guard(risk, 0)
        high = risk - self.first > limit * max(abs(self.first), LEAST_SCALE)
        return self._replace(high=self.high + 1 if high else 0)

    def check(self, round_: int, limit: float) -> None:
        """Raise ``DivergedError`` after HIGH_ROUNDS rounds in a row."""
        if self.high >= HIGH_ROUNDS:
            raise checks.DivergedError(
                f"round {round_}: the estimated risk has been {limit:g} times its first scale above its first value "
                f"({self.first:.4g}) for three rounds; try a smaller learning_rate, more samples, or a larger guard"
            )


class LiveState(NamedTuple):
    """A live run after some of its rounds."""

    history: RunHistory
    guard: Guard = Guard()
    incidents: tuple[Incident, ...] = ()
    alerts: tuple[FilterAlert, ...] = ()

    @property
    def all_incidents(self) -> tuple[Incident, ...]:
        """All incidents, including filter alerts, ordered by round."""
        return tuple(sorted((*self.incidents, *(alert.incident for alert in self.alerts)), key=lambda one: one[0]))

    def save(self, checkpoints: Checkpoints) -> None:
        """Write what the next round of a Flower server needs, and what is new in the history."""
        arrays, lists = pack(self.history)
        notes = {"alerts": [plain_numbers(alert) for alert in self.alerts], "guard": plain_numbers(self.guard)}
        checkpoints.save(self.history.round, arrays, {**lists, "incidents": self.incidents}, notes)

    def restore(self, checkpoints: Checkpoints, rounds: int) -> LiveState:
        """The state in the newest checkpoint; this state if there is none."""
        with checkpoints.closed_on_failure():
            checkpoint = checkpoints.newest(
                pack(self.history)[0], {**item_shapes(self.history), "incidents": (0, 0, "")}
            )
            if checkpoint is None:
                return self
            if checkpoint.round > rounds:
                raise checks.InputError(
                    f"{checkpoints.folder} holds round {checkpoint.round}, asked for {rounds} rounds"
                )
        known = [one for one in checkpoint.lists["incidents"] if one is not None]
        incidents = tuple((int(r), int(c), str(what)) for r, c, what in known)
        alerts = tuple(FilterAlert(*alert) for alert in checkpoint.notes["alerts"])
        history = unpack(checkpoint.round, checkpoint.state, with_unknown_records(self.history, checkpoint.lists))
        return LiveState(history, Guard(*checkpoint.notes["guard"]), incidents, alerts)


def refused_reports(before: RunHistory, after: RunHistory) -> tuple[Incident, ...]:
    """An incident for every client whose report was refused in the last round."""
    new = np.asarray(after.carry.refused) > np.asarray(before.carry.refused)
    return tuple((after.round, client, REFUSED) for client in np.flatnonzero(new).tolist())


def newly_distrusted(settings: Settings, before: RunHistory, after: RunHistory) -> tuple[Incident, ...]:
    """An incident for every client that the aggregation rule distrusts since the last round, with the reason."""
    then, now = (distrusted_on_host(settings, history.carry.server) for history in (before, after))
    return tuple(
        (after.round, client, f"counts less from now on: {why}")
        for why in now
        for client in np.flatnonzero((then[why] < 0) & (now[why] >= 0)).tolist()
    )


def live_figures(history: RunHistory) -> Live:
    """The estimates of a live run in place of exact figures, shape (1, records); NaN at the start."""

    def series(name: str) -> np.ndarray:
        later = [float(totals_.latest.get(name, np.nan)) for totals_ in history.totals]
        return np.array([np.nan, *later])[None]

    absent = np.array([0, *(int(totals_.absent) for totals_ in history.totals)])[None]
    return Live(series("loss"), series("jacobian_error"), absent, *map(series, LOSS_RANGE))


def plain_numbers(values: Iterable[Any]) -> list[Any]:
    """The values as Python numbers, for JSON."""
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]
