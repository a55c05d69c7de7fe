"""``train``: clients are objects that deploy a model and hand back what came in (paper, Algorithm 1).

It drives a campaign: ask what is to be deployed, deploy it in threads, tell what came in. One client's deployment never
waits for another client's. What was told is in the log before anything is made of it; with ``checkpoint=`` the log is
a database, and a process that is started again goes on with the deployments that are open. Clients that wrap a
simulated reaction give ``simulate``'s trajectory.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from profl import checks
from profl.campaign.crew import Crew
from profl.campaign.fold import Fold
from profl.campaign.folder import client_names, new_incidents, open_store, privacy_account
from profl.campaign.journal import Journal, utc_now
from profl.campaign.readings import is_frame
from profl.campaign.setting_up import USUAL, as_world, begin, split_fingerprint
from profl.campaign.store import Store
from profl.interrupts import remembered_interrupts
from profl.methods.method import Method, check_method
from profl.methods.stopping import StopWhenSettled
from profl.parts.privacy import Privacy
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.config import RunConfig, check_execution, one_seed
from profl.run.live.client_round import make_setup
from profl.run.live.protection import check_privacy
from profl.run.live.state import live_figures
from profl.run.plan import CompiledPlan, describe, make_plan
from profl.run.run_history import complete_records, notify_callbacks
from profl.server.attacks import Attack
from profl.typing import Batch, Counts, Theta

OLD_ORDER = "profl.train(problem, method, clients) is the order of arguments now; clients first is gone in 0.3"


class Client(Protocol):
    """What ``train`` needs of a client: a method ``deploy(theta, samples) -> batch``.

    It deploys theta (a pytree of numpy arrays), waits, and returns the data that came in as a numpy array, a pandas
    frame or a pytree of arrays. The batch may have fewer rows than ``samples``, or up to 64 times as many. ``deploy``
    may be a coroutine. If it takes an argument ``id``, that is the deployment's number in the whole run, which never
    stands for another model; ``step`` counts the client's own: round * R + step. A batch that belongs to an earlier
    deployment is returned as ``profl.worlds.Delayed(batch, deployed)``.

    A run that goes on after a crash deploys again what was open: the same id, the same theta. A client that has a
    method ``collect(id, theta, samples)`` is asked first: it returns the batch of that deployment, or None where it
    never deployed it.
    """

    @property
    def deploy(self) -> Callable[..., Batch]:
        """Deploy ``theta`` and return about ``samples`` samples of the data that came in."""


@checks.explain_call
def train(
    problem: Problem | LiveProblem,
    method: Method,
    clients: Sequence[Client],
    *,
    rounds: int,
    local_steps: int = 5,
    samples: Counts = 500,
    seed: int = 0,
    participation: float = 1.0,
    scheme: str = "uniform",
    record_every: int = 1,
    initial: Theta | None = None,
    attack: str | Attack | None = None,
    hostile: float | Iterable[int] = 0.2,
    min_reports: int = 1,
    stop: StopWhenSettled | None = None,
    timeout: float = 60.0,
    patience: int = 3,
    guard: float = 10.0,
    privacy: Privacy | None = None,
    report: Callable[[str], None] | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callbacks: Iterable[Callback] | Callback = (),
) -> Run:
    """The run of ``method`` on clients that deploy for real; ``profl.campaign.train.Client`` says what a client does.

    Args:
      problem: a ``LiveProblem``; or a ``Problem``, whose exact answers are then measured as well.
      clients: objects with ``deploy(theta, samples) -> batch``; client i has weight ``problem.weights[i]``.
      rounds, local_steps, samples, seed, participation, scheme, record_every, initial, attack, hostile, min_reports,
        stop: see ``profl.RunConfig``; an attack is simulated on what the clients named ``hostile`` report.
      timeout: seconds that one deployment may take, reading its batch included.
      patience: rounds in a row with fewer than ``min_reports`` usable reports, which change nothing, after which the
        run stops with ``profl.TooFewReports``, which holds what was done.
      guard: the run stops with ``profl.DivergedError`` when the estimated risk, the median of the clients', has risen,
        three rounds in a row, by more than ``guard`` times its scale in the first round.
      privacy: a ``profl.parts.Privacy``, which clips and noises every report at its client; nothing else about its data
        leaves it, and ``run.privacy`` states what was spent.
      report: called with one sentence per incident, such as ``print``; they are also in ``run.incidents``. What it or a
        callback raises is one of them: the run goes on.
      checkpoint: a folder for the run's log, a database that only its owner can read (``pip install
        'profl[campaign]'``). The same call goes on from it, wherever the process ended.
      progress, resume, callbacks: as in ``profl.simulate``.

    Ctrl-C ends the run at once with ``profl.Interrupted``, whose ``run`` holds the rounds that were finished.

    >>> import profl
    >>> case, method = profl.cases.housing(clients=2), profl.pofl()
    >>> clients = profl.worlds.simulated_clients(case, method, samples=50)
    >>> run = profl.train(case, method, clients, rounds=3, samples=50, progress=False)
    >>> run.live.risk.shape
    (1, 4)
    """
    if isinstance(clients, (Problem, LiveProblem)):
        warnings.warn(OLD_ORDER, DeprecationWarning, stacklevel=3)  # above ``explain_call``
        problem, clients = clients, problem
    options = (participation, scheme, record_every, initial, attack, hostile, min_reports)
    config = RunConfig(rounds, local_steps, samples, one_seed(seed), *options, stop)
    execution = Execution(timeout, patience, guard, privacy, report, progress, checkpoint, resume, callbacks)
    return train_config(problem, method, clients, config, execution)


class Execution(NamedTuple):
    """How clients are waited for and a run is watched: the arguments of ``train`` beside its ``RunConfig``."""

    timeout: float = 60.0
    patience: int = 3
    guard: float = 10.0
    privacy: Privacy | None = None
    report: Callable[[str], None] | None = None
    progress: bool = True
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = True
    callbacks: Iterable[Callback] | Callback = ()


def train_config(
    problem: Problem | LiveProblem,
    method: Method,
    clients: Sequence[Client],
    config: RunConfig,
    execution: Execution,
) -> Run:
    """The run that ``train`` returns, from a finished configuration."""
    execution, clients = check_execution(execution), _check_clients(clients)
    if execution.report is not None:
        checks.function("report", "of a sentence, such as print", execution.report)
    world = as_world(problem, len(clients))
    return _Session(world, _make_live_plan(world, method, len(clients), config, execution), execution).run(clients)


class _Session:
    """One call of ``train`` with checked arguments."""

    def __init__(self, problem: Problem, plan: CompiledPlan, execution: Execution) -> None:
        self.problem, self.plan, self.execution = problem, plan, execution
        self.watch = Watch(problem, plan.settings.method, describe(plan), execution.callbacks, execution.report)
        self.started = time.perf_counter()
        self.fold = Fold(make_setup(plan, execution.privacy), execution.guard)
        self.live = self.fold.first.live

    def run(self, clients: Sequence[Client]) -> Run:
        """The run, once all rounds are done or it was ended; in a precision of its own, whatever its clients switch."""
        with jax.enable_x64(bool(jax.config.read("jax_enable_x64"))):
            return self._run(clients)

    def _run(self, clients: Sequence[Client]) -> Run:
        rounds, title = self.plan.settings.rounds, f"{self.plan.settings.method.name} on {self.problem.name}"
        with open_store(self.execution.checkpoint) as store:
            self.journal = self._open(store)
            crew = Crew(clients, self.journal, self.execution.timeout)
            try:
                with remembered_interrupts() as check, progress_bar(title, rounds, self.execution.progress) as advance:
                    advance(self.live.history.round)
                    self._check_reports()
                    while not self._finish_round(advance):
                        check()
                        self.journal.advance()
                        crew.work(check)
            except KeyboardInterrupt:
                if not self.live.history.totals:
                    raise
                self.watch.interrupt()
            finally:
                crew.close()
                self.watch.close()
        return self.watch.finish(self._finish())

    def _open(self, store: Store) -> Journal:
        """The journal of this run, new or gone on with."""
        settings, folder = self.plan.settings, self.execution.checkpoint
        journal = Journal(store, self.fold, client_names(settings.clients), None, settings.rounds, utc_now)
        journal.refresh()
        done = journal.ledger.round
        if journal.ledger.opened is not None and not self.execution.resume:
            raise checks.InputError(
                f"{folder} holds a run up to round {done}: pass resume=True to go on from there, "
                "or choose another folder"
            )
        if done > settings.rounds:
            raise checks.InputError(f"{folder} holds round {done}, asked for {settings.rounds} rounds")
        if folder is not None:  # what nobody goes on with needs no name
            stated, exact = split_fingerprint(self.problem, self.plan)
            if self.execution.privacy is not None:
                stated["privacy"] = repr(self.execution.privacy)
            if differing := begin(journal, _stored_settings(self.plan), {"identity": stated, "exact": exact}):
                raise checks.InputError(f"cannot resume from {folder}, it is of another run: {'; '.join(differing)}")
        self.live = journal.state().live
        return journal

    def _finish_round(self, advance: Callable[[int], None]) -> bool:
        """Close the round under way if it has ended, and tell of it; whether the run is over."""
        journal, before = self.journal, self.live
        journal.advance(ask=False)
        if journal.ledger.round > before.history.round:
            self.live = journal.state().live
            self.watch.tell(new_incidents(before, self.live))
            advance(1)
            self._check_reports()
            self.live.guard.check(self.live.history.round, self.execution.guard)
            notify_callbacks(self.plan, self.watch, before.history, self.live.history)
        return self.watch.stopped or bool(journal.why_over())

    def _check_reports(self) -> None:
        """Stop a run that has too few reports."""
        settings, live = self.plan.settings, self.live
        if live.history.given_up:
            number = live.history.round
            last = [f"client {client} {what}" for round_, client, what in live.incidents if round_ == number]
            raise checks.TooFewReports(
                f"round {number}: fewer than min_reports={settings.min_reports} reports could be used, "
                f"{settings.patience} rounds in a row; what was done until then is in the error's .run. "
                f"{'; '.join(last)}",
                self._finish(),
            )

    def _finish(self) -> Run:
        """The run so far; with privacy it does not contain the clients' final states."""
        plan, privacy = self.plan, self.execution.privacy
        history = complete_records(plan.settings, self.live.history)
        trace: Any = history.trace(plan, history.final_outputs_on_host(plan) if privacy is None else None)
        trace = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trace)
        seconds = time.perf_counter() - self.started
        run = make_run(self.problem, plan.settings.method, trace, describe(plan), seconds)
        spent = None if privacy is None else privacy_account(privacy, plan, self.journal.ledger.closed)
        incidents = (*self.live.all_incidents, *self.watch.incidents)
        return replace(run, live=live_figures(history), incidents=incidents, privacy=spent)


def _stored_settings(plan: CompiledPlan) -> dict[str, Any]:
    """The settings of the run as a ``Campaign`` has them; it may go on for any number of rounds."""
    settings = plan.settings
    return {
        **USUAL,
        "clients": client_names(settings.clients),
        "local_steps": settings.local_steps,
        "samples": np.asarray(plan.population.counts).tolist(),
        "seed": plan.seeds[0],
        "participation": settings.slots / settings.clients,
        "scheme": settings.scheme,
        "min_reports": settings.min_reports,
    }


def _make_live_plan(
    world: Problem, method: Method, clients: int, config: RunConfig, execution: Execution
) -> CompiledPlan:
    """The plan of a run with so many clients; raises ``profl.InputError`` before any client deploys."""
    checks.positive_int("min_reports", config.min_reports)
    patience = checks.positive_int("patience", execution.patience)
    checks.positive("guard", execution.guard)
    if checks.positive("timeout", execution.timeout) > threading.TIMEOUT_MAX:
        raise checks.InputError(f"timeout must be at most {threading.TIMEOUT_MAX:g} seconds, got {execution.timeout!r}")
    check_method(method)
    if method.pooled:
        raise checks.InputError(
            f"{method.name} pools raw data in one place; try a federated method such as profl.pofl()"
        )
    if world.count != clients:
        raise checks.InputError(f"problem {world.name!r} has {world.count} clients, got {clients}")
    plan = make_plan(world, method, config, patience)
    check_privacy(plan, execution.privacy)
    return plan


def _check_clients(clients: Sequence[Client]) -> Sequence[Client]:
    """The clients; one without ``deploy`` is refused. A property is not read here, since it may hang."""
    if isinstance(clients, Mapping) or is_frame(clients) or not isinstance(clients, Iterable):
        raise checks.InputError(
            f"clients must be a list of objects with deploy(theta, samples) -> batch, got {checks.shown(clients)}"
        )
    clients = list(clients)
    if not clients:
        raise checks.InputError("clients must hold at least one client, got none")
    for number, client in enumerate(clients):
        if isinstance(client, type):
            raise checks.InputError(f"clients[{number}] must be an object, got a class; try {client.__name__}(...)")
        deploy = inspect.getattr_static(client, "deploy", None)
        computed = _computes_attributes(type(client)) if deploy is None else hasattr(type(deploy), "__get__")
        if not computed and not callable(deploy):
            raise checks.InputError(
                f"clients[{number}] must have a method deploy(theta, samples) -> batch, got a {type(client).__name__}"
            )
    return clients


def _computes_attributes(kind: type) -> bool:
    """Whether objects of a class may have attributes that are computed on access."""
    return hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__
