"""``train``: clients are objects that deploy a model and hand back what came in (paper, Algorithm 1).

Each client of a round works in a thread of its own: deploy, wait for the data, one local step, R times. One that
raises, is silent, sends what cannot be used, or takes longer than ``timeout`` for a deployment is left out of that
round and reported; its state stays what it was. The rest is what every engine does, with the same keys: clients that
wrap a simulated reaction give ``simulate``'s trajectory.
"""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from profl import checks, trees
from profl.interrupts import remembered_interrupts
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.parts.privacy import Privacy
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.config import RunConfig, one_seed
from profl.run.fingerprint import fingerprint
from profl.run.live.filter_alerts import update_alerts
from profl.run.live.protection import Account, check_privacy
from profl.run.live.state import LiveState, live_figures, refused_reports, report_incidents
from profl.run.live.workers import Workers
from profl.run.plan import CompiledPlan, describe, make_plan
from profl.run.round import Work
from profl.run.run_history import absent_work, complete_records, notify_callbacks, run_round, start_history
from profl.server.attacks import Attack
from profl.storage.checkpoints import Checkpoints
from profl.typing import Batch, Counts, Theta

OLD_ORDER = "profl.train(problem, method, clients) is the order of arguments now; clients first is gone in 0.3"


class Client(Protocol):
    """What ``train`` needs of a client: a method ``deploy(theta, samples) -> batch``.

    It deploys theta (a pytree of numpy arrays), waits, and returns the data that came in as a numpy array, a pandas
    frame or a pytree of arrays. The batch may have fewer rows than ``samples``, or up to 64 times as many. ``deploy``
    may be a coroutine. If it takes an argument ``step``, that is the number of the deployment, which is the same again
    when a round is repeated after a crash. A batch that belongs to an earlier deployment is returned as
    ``profl.worlds.Delayed(batch, deployed)``.
    """

    @property
    def deploy(self) -> Callable[..., Batch]:
        """Deploy ``theta`` and return about ``samples`` samples of the data that came in."""


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
    """The run of ``method`` on clients that deploy for real; ``profl.run.live.train.Client`` says what a client does.

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
      report: called with one sentence per incident, such as ``print``; they are also in ``run.incidents``.
      progress, checkpoint, resume, callbacks: as in ``profl.simulate``; only its owner can read the checkpoint.

    Ctrl-C ends the run at once with ``profl.Interrupted``, whose ``run`` holds the rounds that were finished.

    >>> import profl
    >>> case, method = profl.cases.housing(clients=2), profl.pofl()
    >>> clients = profl.worlds.simulated_clients(case, method, samples=50)
    >>> run = profl.train(case, method, clients, rounds=3, samples=50, progress=False)
    >>> run.live.risk.shape
    (1, 4)
    """
    if isinstance(clients, (Problem, LiveProblem)):
        warnings.warn(OLD_ORDER, DeprecationWarning, stacklevel=2)
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
    clients = _check_clients(clients)
    world = problem.problem(len(clients)) if isinstance(problem, LiveProblem) else problem
    return _Session(world, _make_live_plan(world, method, len(clients), config, execution), execution).run(clients)


class _Session:
    """One call of ``train`` with checked arguments."""

    def __init__(self, problem: Problem, plan: CompiledPlan, execution: Execution) -> None:
        self.problem, self.plan, self.execution = problem, plan, execution
        self.watch = Watch(problem, plan.settings.method, describe(plan), execution.callbacks)
        self.started = time.perf_counter()
        self.live = LiveState(start_history(plan, trees.take(plan.models, 0)))
        self.account: Account | None = None

    def run(self, clients: Sequence[Client]) -> Run:
        """The run, once all rounds are done or it was ended."""
        plan, execution, privacy = self.plan, self.execution, self.execution.privacy
        checkpoints, rounds = None, plan.settings.rounds
        if execution.checkpoint is not None:
            words = fingerprint("train", self.problem, plan) | {"privacy": repr(privacy)}
            checkpoints = Checkpoints(execution.checkpoint, words, execution.resume)
            self.live = self.live.restore(checkpoints, rounds)
        if privacy is not None:
            self.account = Account(privacy, plan, checkpoints)
        workers = Workers(clients, plan, execution.timeout, self.account)
        absent = cache(partial(absent_work, plan))
        try:
            title = f"{plan.settings.method.name} on {self.problem.name}"
            with remembered_interrupts() as check, progress_bar(title, rounds, execution.progress) as advance:
                workers.check = check
                advance(self.live.history.round)
                while self.live.history.round < rounds and not self.live.history.settled and not self.watch.stopped:
                    before = self.live.history
                    self._round(workers, absent)
                    check()
                    advance(1)
                    self._check()
                    if checkpoints is not None:
                        self.live.save(checkpoints)
                    notify_callbacks(plan, self.watch, before, self.live.history)
        except KeyboardInterrupt:
            if not self.live.history.totals:
                raise
            self.watch.interrupt()
        finally:
            workers.close()
            self.watch.close()
            if checkpoints is not None:
                checkpoints.close()
        return self.watch.finish(self._finish())

    def _round(self, workers: Workers, absent: Callable[[], Work]) -> None:
        """Run one more round and report its incidents."""
        plan, live = self.plan, self.live
        history = run_round(plan, plan.roots[0], live.history, workers.work, f"seed {plan.seeds[0]}", absent)
        alerts, fresh = update_alerts(live.alerts, plan, live.history, history)
        incidents = (*workers.take_incidents(history.round), *refused_reports(live.history, history))
        report_incidents(self.execution.report, (*incidents, *(alert.incident for alert in fresh)))
        guard = live.guard.update(history, self.execution.guard)
        self.live = LiveState(history, guard, (*live.incidents, *incidents), alerts)

    def _check(self) -> None:
        """Stop a run that has too few reports or diverges."""
        settings, live = self.plan.settings, self.live
        number = live.history.round
        if live.history.given_up:
            last = [f"client {client} {what}" for round_, client, what in live.incidents if round_ == number]
            raise checks.TooFewReports(
                f"round {number}: fewer than min_reports={settings.min_reports} reports could be used, "
                f"{settings.patience} rounds in a row; what was done until then is in the error's .run. "
                f"{'; '.join(last)}",
                self._finish(),
            )
        live.guard.check(number, self.execution.guard)

    def _finish(self) -> Run:
        """The run so far; with privacy it does not contain the clients' final states."""
        plan, account = self.plan, self.account
        history = complete_records(plan.settings, self.live.history)
        trace: Any = history.trace(plan, history.final_outputs_on_host(plan) if account is None else None)
        trace = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trace)
        seconds = time.perf_counter() - self.started
        run = make_run(self.problem, plan.settings.method, trace, describe(plan), seconds)
        spent = None if account is None else account.spent()
        return replace(run, live=live_figures(history), incidents=self.live.all_incidents, privacy=spent)


def _make_live_plan(
    world: Problem, method: Method, clients: int, config: RunConfig, execution: Execution
) -> CompiledPlan:
    """The plan of a run with so many clients; raises ``profl.InputError`` before any client deploys."""
    checks.positive_int("min_reports", config.min_reports)
    plan = make_plan(world, method, config, patience=checks.positive_int("patience", execution.patience))
    if method.pooled:
        raise checks.InputError(
            f"{method.name} pools raw data in one place; train with a federated method such as profl.pofl()"
        )
    if world.count != clients:
        raise checks.InputError(f"problem {world.name!r} has {world.count} clients, got {clients}")
    checks.positive("timeout", execution.timeout)
    checks.positive("guard", execution.guard)
    check_privacy(plan, execution.privacy)
    return plan


def _check_clients(clients: Sequence[Client]) -> Sequence[Client]:
    """The clients; one without ``deploy`` is refused. A property is not read here, since it may hang."""
    clients = list(clients)
    if not clients:
        raise checks.InputError("clients must hold at least one client, got none")
    for number, client in enumerate(clients):
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
