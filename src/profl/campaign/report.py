"""What a page about a campaign says, as plain figures: from the log, and with the problem at hand from the state too.

The log alone has deployments, models, risks, forecasts and incidents. The state after the last closed round adds the
range of the clients' losses and what was learned of the reaction; it is read from the newest snapshot, so that a page
neither closes a round nor replays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from profl.campaign.events import Event
from profl.campaign.fold import Fold, State
from profl.campaign.intervals import intervals_at
from profl.campaign.journal import Journal
from profl.campaign.ledger import Entry
from profl.campaign.log import source_of
from profl.campaign.slopes import Slopes, slopes_of
from profl.campaign.status import Expected, Status, expected_of, status_of
from profl.campaign.store import MemoryStore
from profl.checks import InputError
from profl.methods.method import Forecast
from profl.methods.stopping import StopWhenSettled
from profl.results.forecast import Intervals
from profl.run.live.state import live_figures
from profl.storage.archive import DamagedFile


class ClientFigures(NamedTuple):
    """A client: what it has out, and what came in so far."""

    name: str
    newest: Entry | None  # its newest deployment
    model: list[float]  # the numbers of that
    told: int
    rows: int
    missing: int  # rows left out
    last: str  # when something came in last; "" for never


class Round(NamedTuple):
    """A closed round."""

    number: int  # from 1 on
    at: str
    asked: int
    told: int
    rows: int
    risk: float | None
    low: float | None  # the lowest loss of a client; None where only the log was read
    high: float | None
    forecast: list[float | None] | None  # excess, its error, gain, price


class Report(NamedTuple):
    """All that the page shows."""

    at: datetime
    status: Status
    source: dict[str, Any]
    names: list[str]  # the numbers of a model
    clients: list[ClientFigures]
    rounds: list[Round]
    models: np.ndarray  # (rounds + 1, d): the global model, from the first on
    deployed: dict[str, np.ndarray]  # by client: rows of (when, in rounds; the numbers of the model)
    expected: Expected | None
    slopes: Slopes | None
    no_slopes: str  # why there are none
    intervals: Intervals | None  # for the optimum and what it gains; None where only the log was read


LEVEL = 0.9
"""Probability with which an interval of the page holds the truth."""


class Models:
    """The models in a log as rows of numbers; events never change, so each is read once."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._rows: dict[int, np.ndarray] = {}

    def rows(self, events: Sequence[Event]) -> list[np.ndarray]:
        new = [event for event in events if event.seq not in self._rows]
        for seq, arrays in self.journal.store.data(new).items():
            leaves = [np.asarray(leaf, float).ravel() for place, leaf in arrays.items() if place.startswith("theta")]
            self._rows[seq] = np.concatenate(leaves)
        return [self._rows[event.seq] for event in events]


def make_report(journal: Journal, name: str, fold: Fold | None = None, models: Models | None = None) -> Report:
    """The figures of a campaign whose journal is up to date; ``fold`` is None where its problem is not at hand."""
    if isinstance(journal.store, MemoryStore):
        raise InputError("a campaign in memory keeps its newest rounds alone: a page about it needs a database")
    ledger, models = journal.ledger, models or Models(journal)
    assert ledger.opened is not None
    state = closed_state(journal, fold) if fold and ledger.closed else None
    entries = list(ledger.entries.values())
    rows = dict(zip((e.id for e in entries), models.rows([e.asked for e in entries]), strict=True))
    trained = np.array(models.rows([ledger.opened, *ledger.closed]))
    steps, source = ledger.settings["local_steps"], source_of(journal)
    names = ledger.opened.body.get("names") or [f"theta[{k}]" for k in range(trained.shape[1])]
    slopes, why = _slopes(fold, state, names, _columns(journal))
    return Report(
        at=journal.clock(),
        status=status_of(journal, name),
        source=source,
        names=names,
        clients=[_client(client, [e for e in entries if e.client == client], rows) for client in journal.clients],
        rounds=_rounds(ledger.closed, entries, state),
        models=trained,
        deployed={
            client: np.array([[e.round + e.step / steps, *rows[e.id]] for e in entries if e.client == client])
            for client in journal.clients
        },
        expected=_expected(journal, fold, source, steps),
        slopes=slopes,
        no_slopes=why,
        intervals=None if fold is None or state is None else intervals_at(fold, state, names, LEVEL),
    )


def closed_state(journal: Journal, fold: Fold) -> State:
    """The state after the last round that was closed; a round under way is left as it is."""
    for content in journal.store.snapshots():
        with suppress(DamagedFile):
            state = fold.unpack(content)
            if state.seq == journal.ledger.closed[-1].seq:
                return state
    return journal.state()


def _client(name: str, entries: Sequence[Entry], rows: dict[int, np.ndarray]) -> ClientFigures:
    told = [entry.ended for entry in entries if entry.state == "told" and entry.ended is not None]
    rows_told, missing = (sum(event.body[key] for event in told) for key in ("rows", "missing"))
    newest = entries[-1] if entries else None
    model = [] if newest is None else rows[newest.id].tolist()
    last = max((event.at for event in told), default="")
    return ClientFigures(name, newest, model, len(told), rows_told, missing, last)


def _rounds(closed: Sequence[Event], entries: Sequence[Entry], state: State | None) -> list[Round]:
    live = None if state is None else live_figures(state.live.history)
    rounds = []
    for number, event in enumerate(closed, start=1):
        own = [entry for entry in entries if entry.round == number - 1]
        told = [entry.ended.body["rows"] for entry in own if entry.state == "told" and entry.ended is not None]
        low, high = (None, None) if live is None else (_finite(live.low[0, number]), _finite(live.high[0, number]))
        body = event.body
        figures = (body["risk"], low, high, body["forecast"])
        rounds.append(Round(number, event.at, len(own), len(told), sum(told), *figures))
    return rounds


def _expected(journal: Journal, fold: Fold | None, source: dict[str, Any], steps: int) -> Expected | None:
    """What the last closed round expects, with what that advises."""
    closed = journal.ledger.closed
    figures = closed[-1].body["forecast"] if closed else None
    if figures is None or any(figure is None for figure in figures):
        return None
    rule = fold.plan.settings.stop if fold else StopWhenSettled(**source["stop"]) if source.get("stop") else None
    return expected_of(Forecast(*figures), rule, len(closed) * steps)


def _slopes(
    fold: Fold | None, state: State | None, names: Sequence[str], columns: Sequence[str] | None
) -> tuple[Slopes | None, str]:
    if fold is None:
        return None, "The page was made from the log alone, which does not hold them."
    if state is None:
        return None, "No round has been closed yet."
    slopes = slopes_of(fold, state, names, columns)
    return slopes, "" if slopes else f"The method {fold.plan.settings.method.name} states none."


def _columns(journal: Journal) -> list[str] | None:
    """The names of a sample's numbers, as the first table that was told has them."""
    told = (event for event in journal.events if event.kind == "told")
    return next((event.body["columns"] for event in told if event.body["columns"]), None)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
