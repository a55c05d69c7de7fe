"""``Campaign``: deployments that take days, with a process that may end after every call.

    ask       which client deploys what; the same deployments until they are told
    tell      what one of them brought in
    skip      no data will come of it
    withdraw  it was never put to use

A round ends when all of its deployments are told or skipped, or when their time is up and enough is there; the next
``ask`` closes it and begins the next one. What happened is a log in a database, and everything else follows from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.campaign import setting_up
from profl.campaign.deployment import Deployment, Deployments
from profl.campaign.events import Draft, Event, hash_arrays
from profl.campaign.fold import forecast_of
from profl.campaign.journal import Journal, utc_now
from profl.campaign.ledger import Entry
from profl.campaign.names import named
from profl.campaign.readings import Reader, Reading, Usual, read_csv
from profl.campaign.report import Models, Report, make_report
from profl.campaign.status import Expected, Status, expected_of, status_of
from profl.checks import InputError
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.live import batches
from profl.run.live.state import live_figures
from profl.run.plan import describe
from profl.run.run_history import pad_records
from profl.typing import Counts, Theta


class Told(NamedTuple):
    """What ``tell`` did."""

    deployment: int
    client: str
    rows: int
    missing: int  # rows with missing cells, which were left out
    again: bool  # the same data had been told before: nothing was written


class Campaign:
    """A run whose deployments take days: ask what to deploy, tell what came in, in one process or in many.

    The same call makes a campaign and opens it again: a weekly job is one script. Everything that happened is in the
    database; a process may end, or be killed, at any moment.

    Args:
      url: of the database: ``sqlite:///prices.db``, or PostgreSQL's; None keeps the log in memory.
      problem: a ``LiveProblem``; or a ``Problem``, whose exact answers are then measured as well.
      method: such as ``profl.prm()``; the same one whenever the campaign is opened.
      clients: their names; needed once, to make the campaign.
      name: of the campaign, where a database holds several.
      local_steps, samples, seed, participation, scheme, initial, min_reports, stop: see ``profl.RunConfig``. None is
        the usual value (one local step), or what the campaign was made with.
      deadline: days, or a ``timedelta``, after which a deployment is no longer waited for once ``min_reports`` clients
        have told theirs; None waits for all.
      rounds: nothing is asked after so many; None: no limit.
      clock: ``clock() -> datetime`` in UTC, for tests.
      source: where problem and method come from, kept in the log of a new campaign for those who open it again.

    >>> import profl
    >>> case = profl.cases.pricing(clients=2, goods=2)
    >>> campaign = Campaign(None, case, profl.pofl(), clients=["Basel", "Bern"], samples=50)
    >>> first = campaign.ask()
    >>> [(one.id, one.client, one.purpose) for one in first]
    [(1, 'Basel', 'improve'), (2, 'Bern', 'improve')]
    >>> campaign.skip(2, "closed for repairs")
    >>> campaign.tell(1, np.random.default_rng(0).normal(3.0, 1.0, (50, 2))).rows
    50
    >>> campaign.ask()[0].id
    3
    """

    def __init__(
        self,
        url: str | None,
        problem: Problem | LiveProblem,
        method: Method,
        clients: Iterable[str] | None = None,
        *,
        name: str = "campaign",
        local_steps: int | None = None,
        samples: Counts | None = None,
        seed: int | None = None,
        participation: float | None = None,
        scheme: str | None = None,
        initial: Theta | None = None,
        min_reports: int | None = None,
        deadline: float | timedelta | None = None,
        rounds: int | None = None,
        stop: StopWhenSettled | None = None,
        clock: Callable[[], datetime] | None = None,
        source: dict[str, Any] | None = None,
    ) -> None:
        given = {
            "clients": None if clients is None else setting_up.client_names(clients),
            "local_steps": local_steps,
            "samples": None if samples is None else np.asarray(samples).tolist(),
            "seed": seed,
            "participation": participation,
            "scheme": scheme,
            "min_reports": min_reports,
            "deadline": None if deadline is None else setting_up.days(deadline),
            "rounds": None if rounds is None else checks.positive_int("rounds", rounds),
        }
        clock = setting_up.check_clock(clock or utc_now)
        opened = setting_up.open_campaign(url, problem, method, name, given, initial, stop, clock, source)
        self.problem, self.method, self.name = opened.problem, method, name
        self.theta_names = opened.theta_names
        self._columns: list[str] | None = opened.columns
        self._journal: Journal = opened.journal
        self._models = Models(opened.journal)
        self._told_by: dict[str, list[Event]] = {}
        self._looked_at = 0

    # -- what to deploy ------------------------------------------------------------------------------------------------

    def ask(self, client: str | None = None) -> Deployments:
        """The open deployments, of one client or of all: the same ones until they are told, skipped or withdrawn.

        Where all of a round are, it is closed here and the next one begins.
        """
        journal = self._journal
        with journal.lock:
            if client is not None:
                self._number(client)
            journal.advance()
            entries = [entry for entry in journal.ledger.open if client in (None, entry.client)]
            models = journal.models(entries)
            return Deployments(self._deployment(entry, theta) for entry, theta in zip(entries, models, strict=True))

    def world(self, deployment: int) -> Any:
        """The state of a simulated population under an open deployment; () for real people."""
        with self._journal.lock:
            entry, state = self._entry(deployment), self._journal.state()
            own = (state.participants or {})[self._journal.numbers[entry.client]]
            return () if own.after is None else own.after.state.world

    # -- what came in --------------------------------------------------------------------------------------------------

    def tell(self, deployment: int, data: Any, *, check: bool = True) -> Told:
        """Write what a deployment brought in: an array, a pytree of arrays, a frame, or the path of a CSV file.

        The same data told again are harmless; other data are an error, and so is what cannot be used: then nothing is
        written. ``check=False`` takes numbers that seem to be in other units than all before.
        """
        return self.tell_all({deployment: data}, check=check)[0]

    def tell_all(self, data: Mapping[int, Any], *, check: bool = True) -> list[Told]:
        """Write what several deployments brought in, all or nothing."""
        journal = self._journal
        done: list[Told] = []

        def drafts() -> list[Draft]:
            done.clear()
            events = []
            for number, batch in data.items():
                event, told = self._told(number, batch, check)
                done.append(told)
                events += [] if event is None else [event]
            return events

        with journal.lock:
            journal.tell(drafts)
            return list(done)

    def tell_frame(self, frame: Any, *, check: bool = True) -> list[Told]:
        """Write a long table, or the CSV file of that path: a column ``deployment`` or ``client``, then the data.

        With ``client`` the rows belong to the client's open deployment. Rows that are told again are harmless as long
        as the client's next ones have not been told: where two weeks may bring the same numbers, name the deployments.
        """
        if isinstance(frame, (str, os.PathLike)):
            frame = read_csv(frame)
        with self._journal.lock:
            self._journal.refresh()
            return self.tell_all(self._by_deployment(frame), check=check)

    def skip(self, deployment: int, reason: str) -> None:
        """No data will come of a deployment: its client is left out of this round."""
        self._end("skipped", deployment, reason)

    def withdraw(self, deployment: int, reason: str = "never put to use") -> None:
        """A deployment was never put to use: its client is left out of this round."""
        self._end("withdrawn", deployment, reason)

    # -- what is known -------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the campaign stands, from its log alone."""
        with self._journal.lock:
            self._journal.refresh()
            return status_of(self._journal, self.name)

    def forecast(self) -> Expected | None:
        """What the method expects of its newest model, with everything that was told; None if it states nothing."""
        with self._journal.lock:
            self._journal.advance(ask=False)
            state = self._journal.state()
            settings = self._journal.fold.plan.settings
            return expected_of(forecast_of(state), settings.stop, state.live.history.round * settings.local_steps)

    def model(self) -> Theta:
        """The newest global model, with everything that was told."""
        with self._journal.lock:
            self._journal.advance(ask=False)
            return jax.tree.map(np.asarray, self._journal.state().live.history.carry.theta)

    def run(self) -> Run:
        """What was done so far as a ``profl.Run``: tables, plots and files as of any run."""
        journal = self._journal
        with journal.lock:
            journal.advance(ask=False)
            live = journal.state().live
        rounds = live.history.round
        if rounds == 0:
            raise InputError("no round has been closed yet: tell or skip the open deployments, then try again")
        plan = journal.fold.plan
        plan = plan._replace(settings=plan.settings._replace(rounds=rounds))
        history = pad_records(plan.settings, live.history)
        trace: Any = history.trace(plan, history.final_outputs_on_host(plan))
        trace = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trace)
        first, last = (datetime.fromisoformat(journal.events[i].at) for i in (0, -1))
        run = make_run(self.problem, self.method, trace, describe(plan), max(0.0, (last - first).total_seconds()))
        return replace(run, live=live_figures(history), incidents=live.all_incidents)

    def report(self) -> Report:
        """The figures of the page about the campaign; nothing is written, so a round that is told stays open."""
        with self._journal.lock:
            self._journal.refresh()
            return make_report(self._journal, self.name, self._journal.fold, self._models)

    def events(self) -> list[Event]:
        """The log, oldest first."""
        with self._journal.lock:
            self._journal.refresh()
            return list(self._journal.events)

    def data(self, event: Event) -> dict[str, np.ndarray]:
        """The arrays of an event: the model of one that asks, the batch of one that tells."""
        return self._journal.store.data([event])[event.seq] if event.data_hash else {}

    @property
    def clients(self) -> list[str]:
        """Their names."""
        return list(self._journal.clients)

    def close(self) -> None:
        """Let go of the database."""
        self._journal.store.close()

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        ledger = self._journal.ledger
        return (
            f"<Campaign {self.name!r}: {len(self.clients)} clients, round {ledger.round + 1}, {len(ledger.open)} open>"
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _number(self, client: str) -> int:
        return self._journal.numbers[checks.one_of("client", client, self._journal.numbers)]

    def _entry(self, deployment: int) -> Entry:
        entries = self._journal.ledger.entries
        known = isinstance(deployment, (int, float, np.number)) and not isinstance(deployment, bool)
        if not known or deployment not in entries:
            ids = [entry.id for entry in self._journal.ledger.open]
            raise InputError(f"there is no deployment {deployment!r}; open are {_shown(ids) or 'none'}")
        return entries[int(deployment)]

    def _deployment(self, entry: Entry, theta: Theta) -> Deployment:
        until = None if entry.until is None else datetime.fromisoformat(entry.until)
        return Deployment(
            id=entry.id,
            client=entry.client,
            theta=theta,
            table=named(theta, self.theta_names),
            purpose=entry.purpose,
            samples=entry.samples,
            round=entry.round + 1,
            step=entry.step + 1,
            since=datetime.fromisoformat(entry.since),
            until=until,
        )

    def _told(self, deployment: int, data: Any, check: bool) -> tuple[Draft | None, Told]:
        """The event of what a deployment brought in, or None where it is known; raises ``InputError``."""
        entry = self._entry(deployment)
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
        columns = self._columns or next(filter(None, stated), None)
        reader = Reader(fold.setup.like, fold.plan.settings.functions.family, columns)
        return reader.read(data, entry.samples, self._journal.model(entry), self._usual(entry) if check else None)

    def _usual(self, entry: Entry) -> Usual | None:
        """The scales of what was told before; None where it is this deployment that was told."""
        if entry.state != "open":
            return None
        told = self._tellings()
        own = [event.body["scale"] for event in told.get(entry.client, [])]
        if any(map(any, own)):
            return Usual(own, [])
        return Usual(own, [event.body["scale"] for events in told.values() for event in events])

    def _tellings(self) -> dict[str, list[Event]]:
        """What was told so far, by client; events are only ever added, so that each is looked at once."""
        events, entries = self._journal.events, self._journal.ledger.entries
        for event in events[self._looked_at :]:
            if event.kind == "told":
                self._told_by.setdefault(entries[_id(event)].client, []).append(event)
        self._looked_at = len(events)
        return self._told_by

    def _by_deployment(self, frame: Any) -> dict[int, Any]:
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
            self._number(str(name))
            if name not in repeated and str(name) not in waiting:
                raise InputError(f"{name} has no open deployment: nothing was written")
        return {(repeated.get(name) or waiting[str(name)]).id: rows for name, rows in groups.items()}

    def _entry_of(self, number: Any, owners: set[Any]) -> Entry:
        """The deployment that rows of a table name; ``owners`` are the clients that they name beside it."""
        entry = self._entry(number)
        if others := {str(owner) for owner in owners} - {entry.client}:
            raise InputError(
                f"deployment {entry.id} belongs to {entry.client}, the table says {', '.join(sorted(others))}: nothing "
                "was written"
            )
        return entry

    def _same(self, entry: Entry, rows: Any) -> bool:
        """Whether a deployment that was told was told these rows."""
        try:
            return self._told(entry.id, rows, False)[0] is None
        except InputError:
            return False

    def _end(self, kind: str, deployment: int, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"a reason in words is needed, got {reason!r}")
        journal, body = self._journal, {"reason": checks.words(reason)}

        def drafts() -> list[Draft]:
            entry = self._entry(deployment)
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
