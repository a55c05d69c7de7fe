"""A campaign's log at work: what has happened, the state that follows from it, and which events come next.

Each change is decided from the log as it is, and appended in one transaction. Where another process has appended in the
meantime, what is new is read and the decision made again: nobody waits for a lock while models are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import jax
import numpy as np

from profl import trees
from profl.campaign.deployment import purpose
from profl.campaign.events import Arrays, Draft, Event, seal
from profl.campaign.fold import Fold, State, forecast_of, outcomes_of
from profl.campaign.ledger import Entry, Ledger
from profl.campaign.store import Conflict, DatabaseError, Store
from profl.methods.stopping import REASONS
from profl.run.live.batches import Failure
from profl.server.entries import Report
from profl.storage import archive
from profl.storage.archive import DamagedFile
from profl.typing import Theta

REFOLDED = 0.01
"""The share of its rounds that a campaign makes again when it is opened, at most: a snapshot is as long as the campaign
is, so one each round would cost more and more."""
TURNS = 50
"""How often a decision is made anew because others write; each time another process has made progress."""


class Journal:
    """The log of one campaign in one process.

    Args:
      store: where the log is kept.
      fold: makes states of events.
      clients: their names, in the order of the problem's clients.
      deadline: how long a deployment's data are awaited.
      rounds: after so many nothing more is asked; None: no limit.
      clock: the time now, in UTC.
      with_history: what makes states once the log tells of past deployments, from the data of that event; None for a
        log that is only read.
    """

    def __init__(
        self,
        store: Store,
        fold: Fold,
        clients: Sequence[str],
        deadline: timedelta | None,
        rounds: int | None,
        clock: Callable[[], datetime],
        with_history: Callable[[Arrays], Fold] | None = None,
    ) -> None:
        self.with_history = with_history
        self.store, self.fold, self.clients, self.deadline = store, fold, list(clients), deadline
        self.rounds, self.clock = rounds, clock
        self.numbers = {name: number for number, name in enumerate(self.clients)}
        self.lock = threading.RLock()
        self.ledger = Ledger()
        self.events: list[Event] = []
        self._state: State | None = None
        self._between: State | None = None  # after the round that this process closed last
        self._kept = 0  # the round of the newest snapshot

    # -- reading -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what has been appended since."""
        for event in self.store.read(self.ledger.seq):
            self._take(event)

    def state(self) -> State:
        """The state after all events."""
        state = self._state or self._snapshot() or self.fold.first
        new = self.events[state.seq :]
        data = self.store.data(event for event in new if event.kind in ("asked", "told") or "noised" in event.body)
        for event in new:
            state = self._applied(state, event, data.get(event.seq, {}))
        self._state = state
        return state

    def model(self, entry: Entry) -> Theta:
        """The model of a deployment."""
        return self.models([entry])[0]

    def models(self, entries: Iterable[Entry]) -> list[Theta]:
        """The models of deployments, read at once."""
        asked = [entry.asked for entry in entries]
        data = self.store.data(asked)
        return [jax.tree.map(np.array, self._theta("theta", data[event.seq])) for event in asked]  # the log's stay

    def why_over(self) -> str:
        """Why nothing more is asked; "" where the campaign goes on."""
        settled = self.ledger.closed and self.ledger.closed[-1].body["settled"]
        if settled:
            return str(settled)
        if self.rounds is not None and self.ledger.round >= self.rounds:
            return f"all {self.rounds} rounds are done"
        return ""

    def now(self) -> str:
        """The time, as events have it."""
        return _text(self.clock())

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, decide: Callable[[], tuple[list[Draft], State | None]]) -> None:
        """Append the events that ``decide`` makes of the log as it is; with them it gives the state after them."""
        for _ in range(TURNS):
            self.refresh()
            drafts, state = decide()
            if not drafts:
                return
            sealed = seal(drafts, self.ledger.seq, self.ledger.chain)
            try:
                self.store.append(sealed)
            except Conflict:
                continue
            for event, _data in sealed:
                self._take(event)
            if state is not None:
                self._state = state._replace(seq=self.ledger.seq)
            self._keep([event for event, _ in sealed])
            return
        raise DatabaseError("other processes keep writing to this campaign: nothing was written, try again")

    def advance(self, ask: bool = True) -> None:
        """Close the round under way if it has ended, and ask for what comes next."""
        self.write(lambda: self._next(ask))

    def tell(self, drafts: Callable[[], list[Draft]]) -> None:
        """Append events that need no state."""
        self.write(lambda: (drafts(), None))

    def _next(self, ask: bool) -> tuple[list[Draft], State | None]:
        """The events that come next by the log as it is, and the state after them."""
        ledger, settings, now = self.ledger, self.fold.plan.settings, self.clock()
        if self.why_over():
            return [], None
        closing = ledger.due(settings.local_steps, settings.min_reports, now)
        ready = self._ready(ledger) if ask and not closing else []
        if not closing and not ready and (ledger.current or not ask):
            return [], None
        state, drafts = self.state(), []
        if closing:
            state = self._between = self._closed(state)
            drafts.append(self._closing(state, now))
        if not ask or state.live.history.settled or state.live.history.round == self.rounds:
            return drafts, state
        if closing or not ledger.current:
            state = self.fold.begin(state)
            ready = sorted(state.participants or {})
        asked, state = self._ask(state, ready, now)
        return drafts + asked, state

    def _ready(self, ledger: Ledger) -> list[int]:
        """The clients of the round under way that go on with their next deployment."""
        steps, absent = self.fold.plan.settings.local_steps, ledger.absent()
        waiting = {entry.client for entry in ledger.open}
        told = ledger.told().items()
        return [self.numbers[c] for c, n in told if n < steps and c not in absent and c not in waiting]

    def _ask(self, state: State, ready: list[int], now: datetime) -> tuple[list[Draft], State]:
        """The events that ask these clients for their next deployment, and the state after them."""
        drafts, at, number = [], _text(now), self.ledger.next_id
        until = None if self.deadline is None else _text(now + self.deadline)
        before = self._last_models(ready)
        for client in ready:
            assert state.participants is not None
            own, problem = state.participants[client], ""
            try:
                model, state = self.fold.deploy(state, client)
            except Failure as error:
                model, problem = jax.tree.map(np.array, state.live.history.carry.theta), str(error)
            body = {
                "client": self.clients[client],
                "round": state.live.history.round,
                "step": own.done,
                "purpose": purpose(model, own.now.theta, before.get(client)),
                "samples": own.wanted,
                "until": until,
            }
            drafts.append(Draft("asked", at, body, number, archive.named_arrays("theta", model)))
            if problem:
                drafts.append(Draft("skipped", at, {"reason": problem, "failed": True, "deployed": False}, number))
            number += 1
        return drafts, state

    def _last_models(self, clients: Iterable[int]) -> dict[int, Theta]:
        """The model that each of these clients deployed last, where it has one."""
        last = {client: self.ledger.newest_told(self.clients[client]) for client in clients}
        known = {client: entry for client, entry in last.items() if entry is not None}
        return dict(zip(known, self.models(known.values()), strict=True))

    def _closed(self, state: State) -> State:
        """The state after the round under way."""
        absent = {self.numbers[name]: why for name, why in self.ledger.absent().items()}
        for entry in self.ledger.open:
            absent[self.numbers[entry.client]] = f"no data came by {entry.until}"
        return self.fold.close(state, absent, unused=self._unused(self.ledger.current))

    def _closing(self, state: State, now: datetime) -> Draft:
        """The event that closes a round."""
        history, before = state.live.history, self._state.live if self._state else self.fold.first.live
        expected = forecast_of(state)
        fresh = state.live.all_incidents[len(before.all_incidents) :]
        body: dict[str, Any] = {
            "round": history.round,
            "reports": sum(count == self.fold.plan.settings.local_steps for count in self.ledger.told().values()),
            "risk": _finite(history.latest["loss"]),
            "forecast": None if expected is None else [_finite(float(figure)) for figure in expected],
            "settled": settled_reason(state),
            **outcomes_of(state, self.fold.plan.settings),
            "incidents": [[round_, self.clients[client], what] for round_, client, what in fresh],
        }
        data = archive.named_arrays("theta", jax.tree.map(np.asarray, history.carry.theta))
        if state.noised is not None:
            clients, reports = zip(*sorted(state.noised.items()), strict=True)
            body["noised"] = [*clients]
            data |= archive.named_arrays("noised", trees.stack([*reports]))
        return Draft("closed", _text(now), body, data=data)

    # -- folding -------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        self.ledger.apply(event)
        self.events.append(event)
        if event.kind == "history" and self.with_history is not None:  # what was asked before is folded anew
            self.fold = self.with_history(self.store.data([event])[event.seq])
            self._state = self._between = None

    def _applied(self, state: State, event: Event, data: Arrays) -> State:
        """The state after one more event of the log."""
        fold = self.fold
        if event.kind == "asked":
            if state.participants is None:
                state = fold.begin(state)
            state = fold.deployed(state, self.numbers[event.body["client"]], self._theta("theta", data))
        elif event.kind == "told":
            assert event.deployment is not None
            entry = self.ledger.entries[event.deployment]
            batch = archive.restore_tree("batch", _of("batch", data), fold.setup.like, same_shape=False)
            other = self._theta("deployed", data) if _of("deployed", data) else None
            state = fold.use(state, self.numbers[entry.client], batch, event.body["missing"], other)
        elif event.kind == "closed":
            round_ = event.body["round"] - 1
            entries = [entry for entry in self.ledger.entries.values() if entry.round == round_]
            state = fold.close(state, self._absent(entries), self._noised(event, data), self._unused(entries))
        return state._replace(seq=event.seq)

    def _unused(self, entries: Iterable[Entry]) -> set[int]:
        """The clients of a round with a deployment that was never put to use."""
        return {self.numbers[entry.client] for entry in entries if not entry.used}

    def _absent(self, entries: Iterable[Entry]) -> dict[int, str]:
        """{client: why} of those who were out of a round that was closed."""
        out = {"skipped", "withdrawn", "expired"}
        return {self.numbers[entry.client]: entry.reason for entry in entries if entry.state in out}

    def _noised(self, closed: Event, data: Arrays) -> dict[int, Report] | None:
        """With privacy, the reports that left the clients in a round that was closed."""
        if "noised" not in closed.body:
            return None
        reports = archive.restore_tree("noised", _of("noised", data), self.fold.plan.report, same_shape=False)
        reports = jax.device_put(reports)
        return {client: trees.take(reports, row) for row, client in enumerate(closed.body["noised"])}

    def _theta(self, name: str, data: Arrays) -> Theta:
        return archive.restore_tree(name, _of(name, data), self.fold.model_shape, same_shape=True)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _snapshot(self) -> State | None:
        """The state in the newest snapshot that can be used; they are only a cache."""
        for content in self.store.snapshots():
            with suppress(DamagedFile):
                state = self.fold.unpack(content)
                if state.seq <= self.ledger.seq and self.events[state.seq - 1].kind == "closed":
                    self._kept = state.live.history.round
                    return state
        return None

    def _keep(self, written: list[Event]) -> None:
        """Store a snapshot of the state after a round that was closed; that it cannot be stored loses nothing."""
        for event in written:
            if event.kind == "closed" and self._between is not None:
                round_ = self.ledger.round
                if round_ - self._kept > REFOLDED * round_:
                    with suppress(DatabaseError):
                        self.store.keep_snapshot(event.seq, self.fold.pack(self._between._replace(seq=event.seq)))
                        self._kept = round_


def settled_reason(state: State) -> str | None:
    """Why ``StopWhenSettled`` has ended the campaign; None where it has not."""
    return REASONS.get(int(state.live.history.carry.why))


def _of(name: str, data: Mapping[str, np.ndarray]) -> Arrays:
    """The arrays of one tree among those of an event."""
    return {place: array for place, array in data.items() if place.startswith(name)}


def _finite(value: float) -> float | None:
    """A number that JSON knows."""
    return value if np.isfinite(value) else None


def utc_now() -> datetime:
    """The time in UTC."""
    return datetime.now(UTC)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat()
