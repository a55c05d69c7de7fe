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
from typing import Any, overload

import jax
import numpy as np

from profl import checks
from profl.campaign import setting_up
from profl.campaign.deployment import Deployment, Deployments
from profl.campaign.events import Draft, Event
from profl.campaign.fold import forecast_of
from profl.campaign.intervals import intervals_at
from profl.campaign.journal import Journal, utc_now
from profl.campaign.ledger import Entry
from profl.campaign.names import named
from profl.campaign.past import fitted_history
from profl.campaign.readings import is_frame, read_csv
from profl.campaign.report import Models, Report, make_report
from profl.campaign.status import Expected, Status, expected_of, status_of
from profl.campaign.telling import Teller, Told
from profl.checks import InputError
from profl.methods.method import Method
from profl.methods.prm import PastDeployments
from profl.methods.prm.past import BELIEF
from profl.methods.stopping import StopWhenSettled
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.results.forecast import Intervals
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.live.state import live_figures
from profl.run.plan import describe
from profl.run.run_history import pad_records
from profl.typing import Counts, Theta


@checks.explain_call
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
        clock = setting_up.check_clock(utc_now if clock is None else clock)
        opened = setting_up.open_campaign(url, problem, method, name, given, initial, stop, clock, source)
        self.problem, self.method, self.name = opened.problem, method, name
        self.theta_names = opened.theta_names
        self._journal: Journal = opened.journal
        self._models = Models(opened.journal)
        self._teller = Teller(self._journal, opened.columns)

    # -- what to deploy ------------------------------------------------------------------------------------------------

    def ask(self, client: str | None = None) -> Deployments:
        """The open deployments, of one client or of all: the same ones until they are told, skipped or withdrawn.

        Where all of a round are, it is closed here and the next one begins.
        """
        journal = self._journal
        with journal.lock:
            if client is not None:
                self._teller.number(client)
            journal.advance()
            entries = [entry for entry in journal.ledger.open if client in (None, entry.client)]
            models = journal.models(entries)
            return Deployments(self._deployment(entry, theta) for entry, theta in zip(entries, models, strict=True))

    def world(self, deployment: int) -> Any:
        """The state of a simulated population under an open deployment; () for real people."""
        with self._journal.lock:
            entry, state = self._teller.entry(deployment), self._journal.state()
            own = (state.participants or {})[self._journal.numbers[entry.client]]
            return () if own.after is None else own.after.state.world

    # -- what came in --------------------------------------------------------------------------------------------------

    def tell(self, deployment: int, data: Any, *, check: bool = True) -> Told:
        """Write what a deployment brought in: an array, a pytree of arrays, a frame, or the path of a CSV file.

        The same data told again are harmless; other data are an error, and so is what cannot be used: then nothing is
        written. ``check=False`` takes numbers that seem to be in other units than all before.
        """
        return self.tell_all({self._teller.known(deployment): data}, check=check)[0]

    def tell_all(self, data: Mapping[int, Any], *, check: bool = True) -> list[Told]:
        """Write what several deployments brought in, all or nothing."""
        if not isinstance(data, Mapping):
            raise InputError(
                f"data must be a dict, the data by the number of their deployment, got {checks.shown(data)}"
            )
        journal = self._journal
        done: list[Told] = []

        def drafts() -> list[Draft]:
            done.clear()
            events = []
            for number, batch in data.items():
                event, told = self._teller.told(number, batch, check)
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
        if not is_frame(frame):
            raise InputError(f"frame must be a data frame, or the path of a CSV file, got {checks.shown(frame)}")
        with self._journal.lock:
            self._journal.refresh()
            return self.tell_all(self._teller.by_deployment(frame), check=check)

    def tell_history(
        self,
        frame: Any,
        *,
        covariates: Sequence[str] = (),
        belief: float = BELIEF,
        period_effects: bool = True,
    ) -> PastDeployments:
        """Write what past deployments brought in, before the first planned one is told; the method is ``prm``.

        Args:
          frame: a long table, or the path of a CSV file, one row per sample: ``client``, ``week`` (or ``period``,
            ``day``, ``month``), the model's numbers by their names, ``covariates``, and the columns of a sample.
          covariates: columns of what else moved models and data together, such as promotions.
          belief, period_effects: see ``profl.methods.past_deployments``, which makes the slopes that are returned.
        """
        if isinstance(frame, (str, os.PathLike)):
            frame = read_csv(frame)
        if not is_frame(frame):
            raise InputError(f"frame must be a data frame, or the path of a CSV file, got {checks.shown(frame)}")
        if checks.real("belief", belief) < 0:
            raise InputError(f"belief must be 0 or more, got {belief!r}")
        chosen = [covariates] if isinstance(covariates, str) else [*covariates]
        effects = checks.flag("period_effects", period_effects)
        with self._journal.lock:
            self._journal.refresh()
            self._teller.told_history(frame, self.problem, self.theta_names, chosen, float(belief), effects)
            assert self._journal.ledger.history is not None
            return fitted_history(self.data(self._journal.ledger.history))

    def skip(self, deployment: int, reason: str) -> None:
        """No data will come of a deployment: its client is left out of this round."""
        self._teller.end("skipped", deployment, reason)

    def withdraw(self, deployment: int, reason: str = "never put to use") -> None:
        """A deployment was never put to use: its client is left out of this round."""
        self._teller.end("withdrawn", deployment, reason)

    # -- what is known -------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the campaign stands, from its log alone."""
        with self._journal.lock:
            self._journal.refresh()
            return status_of(self._journal, self.name)

    @overload
    def forecast(self) -> Expected | None: ...

    @overload
    def forecast(self, level: float) -> Intervals | None: ...

    def forecast(self, level: float | None = None) -> Expected | Intervals | None:
        """What the method expects of its newest model, with everything that was told; None if it states nothing.

        With a ``level`` such as 0.9, intervals that hold the truth with this probability: ``optimum``, by number of the
        model, ``gain`` over the model that the campaign began with, and ``excess``, what is left to gain; each has
        ``lower``, ``estimate`` and ``upper`` (``prm`` alone).
        """
        with self._journal.lock:
            self._journal.advance(ask=False)
            state = self._journal.state()
            settings = self._journal.fold.plan.settings
            if level is None:
                return expected_of(forecast_of(state), settings.stop, state.live.history.round * settings.local_steps)
            return intervals_at(self._journal.fold, state, self.theta_names, level)

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
            if journal.ledger.round == 0:
                raise InputError("no round has been closed yet: tell or skip the open deployments, then try again")
            live = journal.state().live
        rounds = live.history.round
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
        if not isinstance(event, Event):
            raise InputError(f"event must be one of campaign.events(), got {checks.shown(event)}")
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
