"""What is told of deployments: looked up, read, compared with what is known, and made into events.

Nothing here changes the campaign; ``Journal.tell`` writes the events, all or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from profl import checks
from profl.campaign import past
from profl.campaign.events import Draft, Event, hash_arrays
from profl.campaign.journal import Journal
from profl.campaign.ledger import Entry
from profl.campaign.readings import Reader, Reading, Usual
from profl.checks import InputError
from profl.problem.problem import Problem
from profl.run.live import batches


class Told(NamedTuple):
    """What ``tell`` did."""

    deployment: int
    client: str
    rows: int
    missing: int  # rows with missing cells, which were left out
    again: bool  # the same data had been told before: nothing was written


class Teller:
    """Makes events of what is told; ``columns`` are the names of a sample's numbers, where the problem states them."""

    def __init__(self, journal: Journal, columns: list[str] | None) -> None:
        self._journal, self._columns = journal, columns
        self._told_by: dict[str, list[Event]] = {}  # what was told so far, by client
        self._looked_at = 0  # events

    def number(self, client: str) -> int:
        return self._journal.numbers[checks.one_of("client", client, self._journal.numbers)]

    def known(self, deployment: Any) -> Any:
        """``deployment`` if it is a number, as those of deployments are."""
        if not isinstance(deployment, (int, float, np.number)) or isinstance(deployment, bool):
            ids = [entry.id for entry in self._journal.ledger.open]
            raise InputError(f"there is no deployment {checks.shown(deployment)}; open are {_shown(ids) or 'none'}")
        return deployment

    def entry(self, deployment: int) -> Entry:
        entries = self._journal.ledger.entries
        if self.known(deployment) not in entries:
            ids = [entry.id for entry in self._journal.ledger.open]
            raise InputError(f"there is no deployment {deployment!r}; open are {_shown(ids) or 'none'}")
        return entries[int(deployment)]

    def told(self, deployment: int, data: Any, check: bool) -> tuple[Draft | None, Told]:
        """The event of what a deployment brought in, or None where it is known; raises ``InputError``."""
        entry = self.entry(deployment)
        what = f"deployment {entry.id} ({entry.client}, round {entry.round + 1})"
        if entry.state in ("skipped", "withdrawn", "expired"):
            raise InputError(f"{what} was {_ended(entry)}: nothing was written")
        try:
            reading = self._read(entry, data, check)
        except InputError as error:
            raise InputError(f"{what}: {error}; nothing was written") from error
        rows = batches.rows(reading.batch)
        told = Told(entry.id, entry.client, rows, reading.missing, entry.state == "told")
        if entry.state == "told":
            assert entry.ended is not None
            if hash_arrays(reading.arrays) != entry.ended.data_hash:
                raise InputError(f"{what} was told on {entry.ended.at[:10]} with other data: nothing was written")
            return None, told
        return reading.draft(entry.id, self._journal.now()), told

    def _read(self, entry: Entry, data: Any, check: bool) -> Reading:
        fold = self._journal.fold
        stated = (event.body["columns"] for own in self._tellings().values() for event in own)
        history = self._journal.ledger.history
        columns = self._columns or next(filter(None, stated), None) or (history and history.body["columns"])
        reader = Reader(fold.setup.like, fold.plan.settings.functions.family, columns)
        deployed = self._journal.fold.first_model  # of what was told before, only the data are compared
        if entry.state != "told":
            deployed = self._journal.model(entry)
        return reader.read(data, entry.samples, deployed, self._usual(entry) if check else None)

    def _usual(self, entry: Entry) -> Usual | None:
        """The scales of what was told before; None where it is this deployment that was told."""
        if entry.state != "open":
            return None
        told, history = self._tellings(), self._journal.ledger.history
        before = {} if history is None else history.body["scales"]
        own = [event.body["scale"] for event in told.get(entry.client, [])]
        own += [before[entry.client]] if entry.client in before else []
        if any(map(any, own)):
            return Usual(own, [])
        return Usual(own, [*before.values(), *(event.body["scale"] for events in told.values() for event in events)])

    def _tellings(self) -> dict[str, list[Event]]:
        """What was told so far, by client; events are only ever added, so that each is looked at once."""
        events, entries = self._journal.events, self._journal.ledger.entries
        for event in events[self._looked_at :]:
            if event.kind == "told":
                self._told_by.setdefault(entries[_id(event)].client, []).append(event)
        self._looked_at = len(events)
        return self._told_by

    def told_history(
        self, frame: Any, problem: Problem, names: list[str], covariates: Sequence[str], belief: float, effects: bool
    ) -> None:
        """Write a table of past deployments; raises ``InputError``."""
        journal = self._journal

        def drafts() -> list[Draft]:
            like, family = journal.fold.setup.like, journal.fold.plan.settings.functions.family
            table = past.read_table(frame, journal.numbers, names, like, family, self._columns, covariates)
            body = {"covariates": [*covariates], "belief": belief, "period_effects": effects}
            known = journal.ledger.history
            if known is None:
                past.check_method(journal.fold.plan.settings.method)
            else:
                same = all(known.body[name] == value for name, value in body.items())
                if same and known.body["table"] == hash_arrays(table.arrays()):
                    return []
                raise InputError(f"another history was told on {known.at[:10]}: nothing was written")
            if self._tellings() or journal.ledger.closed:
                raise InputError("history comes before the first deployment is told, and one was: nothing was written")
            past.check_model_units(problem, table)
            fitted = past.fit_table(problem, table, names, belief, effects)
            return [past.draft(table, fitted, journal.clients, body, journal.now())]

        with journal.lock:
            journal.tell(drafts)

    def by_deployment(self, frame: Any) -> dict[int, Any]:
        """{deployment: its rows} of a long table."""
        have = [str(name) for name in frame.columns]
        keys = [name for name in ("deployment", "client") if name in have]
        if not keys:
            raise InputError(f"the table needs a column 'deployment' or 'client'; there are: {', '.join(have)}")
        frame = frame.set_axis(have, axis=1)
        if frame[keys[0]].isna().any():
            raise InputError(f"the column {keys[0]!r} has empty cells: every row belongs to one; nothing was written")
        groups = {key: rows.drop(columns=keys) for key, rows in frame.groupby(keys[0], sort=False)}
        if keys[0] == "deployment":
            owners = {key: set(rows["client"]) for key, rows in frame.groupby("deployment")} if keys[1:] else {}
            return {self._entry_of(key, owners.get(key, set())).id: rows for key, rows in groups.items()}
        waiting = {entry.client: entry for entry in self._journal.ledger.open}
        newest = {name: self._journal.ledger.newest_told(str(name)) for name in groups}
        repeated = {name: entry for name, entry in newest.items() if entry and self._same(entry, groups[name])}
        for name in groups:
            self.number(str(name))
            if name not in repeated and str(name) not in waiting:
                raise InputError(f"{name} has no open deployment: nothing was written")
        return {(repeated.get(name) or waiting[str(name)]).id: rows for name, rows in groups.items()}

    def _entry_of(self, number: Any, owners: set[Any]) -> Entry:
        """The deployment that rows of a table name; ``owners`` are the clients that they name beside it."""
        entry = self.entry(number)
        if others := {str(owner) for owner in owners} - {entry.client}:
            raise InputError(
                f"deployment {entry.id} belongs to {entry.client}, the table says {', '.join(sorted(others))}: nothing "
                "was written"
            )
        return entry

    def _same(self, entry: Entry, rows: Any) -> bool:
        """Whether a deployment that was told was told these rows."""
        try:
            return self.told(entry.id, rows, False)[0] is None
        except InputError:
            return False

    def end(self, kind: str, deployment: int, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"a reason in words is needed, got {reason!r}")
        journal, body = self._journal, {"reason": checks.words(reason)}

        def drafts() -> list[Draft]:
            entry = self.entry(deployment)
            if entry.state == kind:
                return []
            if entry.state != "open":
                raise InputError(f"deployment {entry.id} ({entry.client}) was {_ended(entry)}: nothing was written")
            return [Draft(kind, journal.now(), body, entry.id)]

        with journal.lock:
            journal.tell(drafts)


def _ended(entry: Entry) -> str:
    """How a deployment ended, and when."""
    day = "" if entry.ended is None else f" on {entry.ended.at[:10]}"
    words = {"expired": f"closed with its round{day}, without data"}
    return words.get(entry.state, f"{entry.state}{day}")


def _id(event: Event) -> int:
    assert event.deployment is not None
    return event.deployment


def _shown(ids: Sequence[int], most: int = 8) -> str:
    return ", ".join(map(str, ids[:most])) + (f" and {len(ids) - most} more" if len(ids) > most else "")
