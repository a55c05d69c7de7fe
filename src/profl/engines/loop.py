"""The live engine: clients are objects that deploy a model and hand back what came in (paper, Algorithm 1).

Each client of a round works in a thread of its own: deploy, wait for the data, one local step, R times. One that
raises, is silent, sends what cannot be used, or takes longer than ``timeout`` for a deployment is left out of that
round and reported; its state stays what it was. The rest is what every engine does, with the same keys: clients that
wrap a simulated reaction give ``simulate``'s trajectory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from profl import checks
from profl.algorithms.base import Algorithm
from profl.client.privacy import Privacy
from profl.client.step import State
from profl.engines.fingerprint import fingerprint
from profl.engines.guard import Guard, watch
from profl.engines.history import Incident, keep, restore
from profl.engines.local import Silent, local_round
from profl.engines.plan import Plan, batch_shape, describe, make_plan
from profl.engines.rounds import Server, Work, begin, final_jacobians, one_round, trace
from profl.engines.visit import EventLoop, Visit, takes_step, wait_for_all
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.record import Run, make_run
from profl.storage.checkpoints import Checkpoints
from profl.typing import Batch, Theta


class Client(Protocol):
    """What ``train`` needs of a client. ``deploy`` may be a coroutine, and may take ``step`` as a third argument."""

    def deploy(self, theta: Theta, samples: int) -> Batch:
        """Deploy ``theta``, wait, and return about ``samples`` samples of what came in."""


class UnderWay(NamedTuple):
    """A run under way."""

    server: Server
    guard: Guard
    incidents: tuple[Incident, ...]


def train(
    clients: Sequence[Client],
    algorithm: Algorithm,
    problem: Problem | LiveProblem,
    *,
    rounds: int,
    local_steps: int = 5,
    samples: Any = 500,
    seed: int = 0,
    participation: float = 1.0,
    scheme: str = "uniform",
    record_every: int = 1,
    initial: Theta | None = None,
    timeout: float = 60.0,
    min_reports: int = 1,
    patience: int = 3,
    guard: float = 10.0,
    privacy: Privacy | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    report: Callable[[str], None] | None = None,
    progress: bool = True,
) -> Run:
    """Train on clients that deploy for real.

    A client has ``deploy(theta, samples) -> batch``: it puts theta (a pytree of numpy arrays) to use, waits, and
    returns what came in as a numpy array, a pandas frame or a pytree of arrays. The batch may have fewer rows than
    asked for, or more. ``deploy`` may be a coroutine; where it takes an argument ``step``, that is the number of the
    deployment, which is the same again when a round is repeated after a crash. A batch that an earlier deployment
    brought in is returned as ``profl.Delayed(batch, deployed)``.

    Args:
      clients: client i has weight ``problem.weights[i]``.
      problem: a ``LiveProblem``; or a ``Problem``, whose exact answers are then measured as well.
      timeout: seconds that one deployment may take.
      min_reports, patience: with fewer usable reports than this a round changes nothing; after ``patience`` such
        rounds in a row the run stops with ``profl.TooFewReports``, which holds what was done.
      guard: the run stops with ``profl.DivergedError`` when the estimated risk has risen, three rounds in a row, by
        more than ``guard`` times its scale in the first round.
      privacy: clip and noise every report at its client (``profl.Privacy``).
      checkpoint: a folder; after every round all that the next one needs is written there.
      resume: go on from the newest checkpoint in that folder.
      report: called with one sentence per incident, such as ``print``; they are also in ``run.incidents``.

    The other arguments are those of ``profl.simulate``.

    >>> import profl
    >>> case, method = profl.cases.housing(clients=2), profl.pofl()
    >>> clients = profl.simulated_clients(case, method, samples=50)
    >>> run = profl.train(clients, method, case, rounds=3, samples=50, progress=False)
    >>> run.live.risk.shape
    (1, 4)
    """
    clients = _check_clients(clients)
    world = problem.problem(len(clients)) if isinstance(problem, LiveProblem) else problem
    plan = make_plan(
        world,
        algorithm,
        rounds=rounds,
        local_steps=local_steps,
        samples=samples,
        seeds=seed,
        participation=participation,
        scheme=scheme,
        record_every=record_every,
        initial=initial,
        min_reports=checks.positive_int("min_reports", min_reports),
    )
    if algorithm.pooled:
        raise checks.InputError(f"{algorithm.name} pools raw data in one place; train with pfl, pofl or profl instead")
    if world.count != len(clients):
        raise checks.InputError(f"problem {world.name!r} has {world.count} clients, got {len(clients)}")
    checks.positive("timeout", timeout)
    checks.positive("guard", guard)
    checks.positive_int("patience", patience)
    started = time.perf_counter()
    live = UnderWay(begin(plan, 0), Guard(), ())
    saved = None
    if checkpoint is not None:
        saved = Checkpoints(
            checkpoint, {**fingerprint("loop", world, algorithm, plan), "privacy": repr(privacy)}, resume
        )
        live = UnderWay(*restore(saved, rounds, live))
    crew = Crew(clients, plan, timeout, privacy, bool(jax.config.read("jax_enable_x64")))
    title = f"{algorithm.name} on {world.name}"
    finish = partial(_finish, world, algorithm, plan, started)
    try:
        with progress_bar(title, rounds, progress) as advance:
            advance(live.server.round)
            while live.server.round < rounds:
                server = one_round(plan, plan.roots[0], live.server, crew.work, f"seed {seed}", patience)
                told = crew.take_incidents(server.round, report)
                live = UnderWay(server, watch(live.guard, server, guard), (*live.incidents, *told))
                advance(1)
                if server.stopped >= 0:
                    raise checks.TooFewReports(_why_stopped(plan, live, patience), finish(live))
                if live.guard.high >= 3:
                    raise checks.DivergedError(_why_diverged(live, guard))
                if saved is not None:
                    keep(saved, *live)
    finally:
        crew.close()
    return finish(live)


class Crew:
    """The clients at work: one thread per client and round."""

    def __init__(
        self, clients: Sequence[Client], plan: Plan, timeout: float, privacy: Privacy | None, x64: bool
    ) -> None:
        self.clients, self.plan, self.timeout, self.privacy, self.x64 = clients, plan, timeout, privacy, x64
        self.like = batch_shape(plan.settings, plan.population, jax.tree.map(lambda leaf: leaf[0], plan.models))
        self.bell, self.loop = threading.Condition(), EventLoop()
        self.visits: dict[int, Visit] = {}
        self.incidents: list[tuple[int, str]] = []

    def work(self, round_: int, asked: list[int], theta: Theta, states: list[State]) -> dict[int, Work]:
        """What those came to who could be asked and answered in time."""
        begun = {}
        for client in asked:
            busy = self.visits.get(client)
            if busy is not None and busy.alive:
                self.incidents.append((client, "is still busy with an earlier round"))
                continue
            job = partial(self._round, round_, client, theta, states[client])
            begun[client] = self.visits[client] = Visit(job, self.bell, self.loop)
        wait_for_all(list(begun.values()), self.bell, self.timeout)
        for client, visit in begun.items():
            if visit.given_up:
                self.incidents.append((client, f"took longer than {self.timeout:g} s for a deployment"))
            elif visit.error is not None:
                self.incidents.append((client, _what_went_wrong(visit.error)))
        return {client: visit.result for client, visit in begun.items() if visit.result is not None}

    def take_incidents(self, round_: int, report: Callable[[str], None] | None) -> tuple[Incident, ...]:
        """What happened since the last call."""
        found = tuple((round_, client, what) for client, what in self.incidents)
        self.incidents.clear()
        if report is not None:
            for _, client, what in found:
                report(f"round {round_}, client {client}: {what}")
        return found

    def close(self) -> None:
        self.loop.close()

    def _round(self, round_: int, client: int, theta: Theta, state: State, visit: Visit) -> Work:
        deploy = self.clients[client].deploy
        wants_step = takes_step(deploy)

        def ask(deployed: Theta, samples: int, step: int) -> Any:
            return visit.ask(deploy, deployed, samples, **({"step": step} if wants_step else {}))

        with jax.enable_x64(self.x64):  # a setting of the thread
            root = self.plan.roots[0]
            return local_round(self.plan, self.like, root, round_, client, theta, state, ask, self.privacy)


def _check_clients(clients: Sequence[Client]) -> Sequence[Client]:
    found = list(clients)
    if not found:
        raise checks.InputError("clients must hold at least one client, got none")
    for number, client in enumerate(found):
        if not callable(getattr(client, "deploy", None)):
            raise checks.InputError(
                f"clients[{number}] must have a method deploy(theta, samples) -> batch, got {client!r}"
            )
    return found


def _what_went_wrong(error: BaseException) -> str:
    if isinstance(error, Silent):
        return str(error)
    if isinstance(error, checks.InputError):
        return f"sent a batch that cannot be used: {error}"
    return f"raised {type(error).__name__}: {error}"


def _finish(problem: Problem, algorithm: Algorithm, plan: Plan, started: float, live: UnderWay) -> Run:
    found, figures = trace(live.server)
    found = jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)
    final = final_jacobians(plan.settings, live.server.states)
    found = found._replace(final=None if final is None else jax.tree.map(lambda leaf: leaf[None], final))
    run = make_run(problem, algorithm, found, describe(plan), time.perf_counter() - started)
    return replace(run, live=figures, incidents=live.incidents)


def _why_stopped(plan: Plan, live: UnderWay, patience: int) -> str:
    last = [f"client {client} {what}" for round_, client, what in live.incidents if round_ == live.server.round]
    return (
        f"round {live.server.round}: fewer than min_reports={plan.settings.min_reports} reports could be used, "
        f"{patience} rounds in a row; what was done until then is in the error's .run. {'; '.join(last)}"
    )


def _why_diverged(live: UnderWay, guard: float) -> str:
    return (
        f"round {live.server.round}: the estimated risk has been {guard:g} times its first scale above its first value "
        f"({live.guard.first:.4g}) for three rounds; try a smaller learning_rate, more samples, or a larger guard"
    )
