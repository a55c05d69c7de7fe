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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from profl import checks, trees
from profl.methods.method import Method
from profl.parts.privacy import Privacy
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.config import Schedule, scheduled
from profl.run.fingerprint import fingerprint
from profl.run.live.filter_alerts import update_alerts
from profl.run.live.protection import Account, check_privacy
from profl.run.live.state import LiveState, live_figures, refused_reports, report_incidents
from profl.run.live.workers import Workers
from profl.run.plan import Plan, describe, make_plan
from profl.run.round import Work
from profl.run.run_history import blank, closed, open_ledger, run_round, watched
from profl.storage.checkpoints import Checkpoints
from profl.typing import Batch, Theta


class Client(Protocol):
    """What ``train`` needs of a client. ``deploy`` may be a coroutine, and may take ``step`` as a third argument."""

    def deploy(self, theta: Theta, samples: int) -> Batch:
        """Deploy ``theta``, wait, and return about ``samples`` samples of what came in."""


@scheduled(seed=("seeds", 0), min_reports=1)
def train(
    clients: Sequence[Client],
    method: Method,
    problem: Problem | LiveProblem,
    *,
    schedule: Schedule,
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
    """The run of a method on clients that deploy for real.

    A client has ``deploy(theta, samples) -> batch``: it puts theta (a pytree of numpy arrays) to use, waits, and
    returns what came in as a numpy array, a pandas frame or a pytree of arrays, of up to 64 times the rows that were
    asked for. ``deploy`` may be a coroutine; an argument ``step``, where it has one, is the number of the deployment,
    the same again when a round is repeated after a crash. A batch that an earlier deployment brought in is returned as
    ``profl.Delayed(batch, deployed)``. Ctrl-C ends the run with ``profl.Interrupted``, which holds what was done.

    Args:
      clients: client i has weight ``problem.weights[i]``.
      problem: a ``LiveProblem``; or a ``Problem``, whose exact answers are then measured as well.
      rounds, local_steps, samples, seed, participation, scheme, record_every, initial, attack, hostile, min_reports,
        stop: see ``profl.Schedule``; an attack is simulated on what the clients named ``hostile`` report.
      timeout: seconds that one deployment may take, reading its batch included.
      patience: rounds in a row with fewer than ``min_reports`` usable reports, after which ``TooFewReports`` is raised.
      guard: ``DivergedError`` is raised when the estimated risk, the median of the clients', has been more than
        ``guard`` times its scale in the first round above it, three rounds in a row.
      privacy: clip and noise every report at its client (``profl.Privacy``); ``run.privacy`` is what was spent.
      report: called with one sentence per incident, such as ``print``; they are also in ``run.incidents``.
      progress: show a progress bar on a terminal.
      checkpoint: a folder for what the next round needs, the clients' states among it; only its owner can read it.
      resume: go on from the newest checkpoint in that folder.
      callbacks: called with every record (``profl.Record``); one that returns something true ends the run.

    >>> import profl
    >>> case, method = profl.cases.housing(clients=2), profl.pofl()
    >>> clients = profl.simulated_clients(case, method, samples=50)
    >>> run = profl.train(clients, method, case, rounds=3, samples=50, progress=False)
    >>> run.live.risk.shape
    (1, 4)
    """
    clients = _check_clients(clients)
    world = problem.problem(len(clients)) if isinstance(problem, LiveProblem) else problem
    plan = _checked_plan(world, method, schedule, len(clients), patience)
    limits = _Limits(checks.positive("timeout", timeout), checks.positive("guard", guard))
    check_privacy(plan, privacy)
    watch = Watch(world, method, describe(plan), callbacks)
    session = _Session(world, plan, limits, watch, report)
    return session.run(clients, privacy, progress, checkpoint, resume)


class _Limits(NamedTuple):
    timeout: float
    guard: float


class _Session:
    """One call of ``train``, its arguments checked."""

    def __init__(
        self, problem: Problem, plan: Plan, limits: _Limits, watch: Watch, report: Callable[[str], None] | None
    ) -> None:
        self.problem, self.plan, self.limits, self.watch, self.report = problem, plan, limits, watch, report
        self.started = time.perf_counter()
        self.live = LiveState(open_ledger(plan, trees.take(plan.models, 0)))
        self.account: Account | None = None

    def run(
        self,
        clients: Sequence[Client],
        privacy: Privacy | None,
        progress: bool,
        checkpoint: str | os.PathLike[str] | None,
        resume: bool,
    ) -> Run:
        plan, checkpoints, rounds = self.plan, None, self.plan.settings.rounds
        if checkpoint is not None:
            words = fingerprint("train", self.problem, plan) | {"privacy": repr(privacy)}
            checkpoints = Checkpoints(checkpoint, words, resume)
            self.live = self.live.restore(checkpoints, rounds)
        if privacy is not None:
            self.account = Account(privacy, plan, checkpoints)
        workers = Workers(clients, plan, self.limits.timeout, self.account)
        nobody = cache(partial(blank, plan))
        try:
            with progress_bar(f"{plan.settings.method.name} on {self.problem.name}", rounds, progress) as advance:
                advance(self.live.ledger.round)
                while self.live.ledger.round < rounds and not self.live.ledger.settled and not self.watch.stopped:
                    before = self.live.ledger
                    self._round(workers, nobody)
                    advance(1)
                    self._check()
                    if checkpoints is not None:
                        self.live.save(checkpoints)
                    watched(plan, self.watch, before, self.live.ledger)
        except KeyboardInterrupt:
            if not self.live.ledger.tallies:
                raise
            self.watch.interrupt()
        finally:
            workers.close()
            self.watch.close()
            if checkpoints is not None:
                checkpoints.close()
        return self.watch.finish(self._finish())

    def _round(self, workers: Workers, nobody: Callable[[], Work]) -> None:
        """One more round, its incidents reported."""
        plan, live = self.plan, self.live
        ledger = run_round(plan, plan.roots[0], live.ledger, workers.work, f"seed {plan.seeds[0]}", nobody)
        alerts, fresh = update_alerts(live.alerts, plan, live.ledger, ledger)
        incidents = (*workers.take_incidents(ledger.round), *refused_reports(live.ledger, ledger))
        report_incidents(self.report, (*incidents, *(alert.incident for alert in fresh)))
        guard = live.guard.update(ledger, self.limits.guard)
        self.live = LiveState(ledger, guard, (*live.incidents, *incidents), alerts)

    def _check(self) -> None:
        """Stop a run that has too few reports or diverges."""
        settings, live = self.plan.settings, self.live
        number = live.ledger.round
        if live.ledger.given_up:
            last = [f"client {client} {what}" for round_, client, what in live.incidents if round_ == number]
            raise checks.TooFewReports(
                f"round {number}: fewer than min_reports={settings.min_reports} reports could be used, "
                f"{settings.patience} rounds in a row; what was done until then is in the error's .run. "
                f"{'; '.join(last)}",
                self._finish(),
            )
        live.guard.check(number, self.limits.guard)

    def _finish(self) -> Run:
        """The run so far; with privacy, the clients' states at the end stay with them."""
        plan, account = self.plan, self.account
        ledger = closed(plan.settings, self.live.ledger)
        trace: Any = ledger.trace(plan, ledger.at_the_end(plan) if account is None else None)
        trace = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trace)
        seconds = time.perf_counter() - self.started
        run = make_run(self.problem, plan.settings.method, trace, describe(plan), seconds)
        spent = None if account is None else account.spent()
        return replace(run, live=live_figures(ledger), incidents=self.live.all_incidents, privacy=spent)


def _checked_plan(problem: Problem, method: Method, schedule: Schedule, clients: int, patience: int) -> Plan:
    checks.positive_int("min_reports", schedule.min_reports)
    plan = make_plan(problem, method, schedule, patience=checks.positive_int("patience", patience))
    if method.pooled:
        raise checks.InputError(
            f"{method.name} pools raw data in one place; train with a federated method such as profl.pofl()"
        )
    if problem.count != clients:
        raise checks.InputError(f"problem {problem.name!r} has {problem.count} clients, got {clients}")
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
    """Whether objects of a class may have attributes that exist only when they are asked for."""
    return hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__
