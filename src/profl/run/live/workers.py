"""The clients of a live run at work: one thread per client and round, with a time limit on every deployment.

A client's part of a round is ``client_round.local_round``. Whatever runs a client's code runs in
its thread, inside the limit: looking up ``deploy``, calling it, waiting for it and reading its answer. A thread cannot
be stopped from outside: one that is overdue is left to itself, its result is thrown away, and its client counts as busy
until it returns. Threads are daemons, so they never keep a program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np

from profl import trees
from profl.run.live import batches
from profl.run.live.batches import Answer, Failure, Overdue, as_failure, deploy_at
from profl.run.live.client_round import Read, local_round, make_setup
from profl.run.live.protection import Account, unchanged_report
from profl.run.live.state import Incident
from profl.run.plan import CompiledPlan
from profl.run.round import Participants, Work
from profl.run.undecided import ADVICE, group_apart, robust_filter
from profl.typing import Batch, Theta

LATE = "took longer than {:g} s for a deployment"


class Workers:
    """The clients of one run, and their incidents.

    With privacy an incident does not depend on the client's data: neither its words, how many rows it left out, nor
    whether a group of its samples lies apart.
    """

    def __init__(self, clients: Sequence[Any], plan: CompiledPlan, timeout: float, account: Account | None) -> None:
        self.clients, self.plan, self.timeout, self.account = clients, plan, timeout, account
        self.privacy = None if account is None else account.privacy
        self.setup = make_setup(plan, self.privacy)
        self.check: Callable[[], None] | None = None  # called while waiting; may raise
        self.changed = threading.Condition()
        self.loops = [EventLoop() for _ in clients]
        self.jobs: dict[int, Job] = {}
        self.incidents: list[tuple[int, str]] = []
        self.filter = None if account is not None else robust_filter(plan.settings.method)
        self.told: set[int] = set()  # clients of whom it was said that the filter cannot decide on a group

    def work(self, round_: int, participants: Participants, theta: Theta) -> dict[int, Work]:
        """{client: work} for the participants that were free and answered in time."""
        numbers = np.asarray(participants.clients).tolist()
        if self.account is not None:
            self.account.charge(numbers)
        slots = {client: numbers.index(client) for client in numbers}  # one may stand there twice, and works once
        jobs: dict[int, Job] = {}
        for client in slots:
            if client in self.jobs and self.jobs[client].alive:
                self.incidents.append((client, "is still busy with an earlier round"))
                continue
            task = partial(self._round, round_, client, theta, trees.take(participants.states, slots[client]))
            jobs[client] = self.jobs[client] = Job(task, self.changed, self.loops[client])
        wait_for_all(list(jobs.values()), self.changed, self.timeout, self.check)
        for client, job in jobs.items():
            if what := LATE.format(self.timeout) if job.given_up else str(job.error or job.note):
                self.incidents.append((client, what))
        work_by_client = {client: job.result for client, job in jobs.items() if job.result is not None}
        if self.privacy is None:
            return work_by_client
        why, self.incidents = dict(self.incidents), []  # with privacy nobody learns who has nothing to report
        for client, slot in slots.items():
            if client not in work_by_client:
                state, reason = trees.take(participants.states, slot), why.get(client, "nothing came")
                work_by_client[client] = unchanged_report(self.privacy, self.plan, theta, state, client, round_, reason)
        return work_by_client

    def take_incidents(self, round_: int) -> tuple[Incident, ...]:
        """The incidents since the last call."""
        incidents, self.incidents = self.incidents, []
        return tuple((round_, client, what) for client, what in incidents)

    def close(self) -> None:
        for loop in self.loops:
            loop.close()

    def _round(self, round_: int, client: int, theta: Theta, state: Any, job: Job) -> Work:
        missing = 0

        def ask(read: Read, deployed: Theta, samples: int, step: int, world: Any) -> Answer:
            nonlocal missing
            answer = job.ask(partial(deploy_at, self.clients[client], deployed, samples, step=step, world=world), read)
            missing += answer.missing
            self._look_for_groups(client, answer.deployed, answer.batch)
            return answer

        work = local_round(self.setup, round_, client, theta, state, ask)
        if missing and self.privacy is None:
            job.note = f"sent {missing} rows with missing values, which were left out"
        return work

    def _look_for_groups(self, client: int, deployed: Theta, batch: Batch) -> None:
        """Report a group of a client's samples that the filter cannot decide on, once."""
        if self.filter is None or client in self.told:
            return
        settings, count = self.plan.settings, batches.rows(batch)
        padded = batches.pad(batch, settings.samples)
        if words := group_apart(settings.functions, self.filter, deployed, padded, count):
            self.told.add(client)
            self.incidents.append((client, f"{words} {ADVICE.format(most=self.filter.at_most)}"))


# -- one call of a client, in a thread ---------------------------------------------------------------------------------


class Job:
    """``task(self)`` in a thread. Inside it, ``ask`` calls the client; that is what has a time limit."""

    def __init__(self, task: Callable[[Job], Any], changed: threading.Condition, loop: EventLoop) -> None:
        self.result: Any = None
        self.error: Failure | None = None
        self.note = ""  # an incident though the job went well
        self.waiting_since: float | None = None
        self.given_up = False
        self.done = False
        self._task, self._changed, self._loop = task, changed, loop
        self._x64 = bool(jax.config.read("jax_enable_x64"))  # a setting of each thread: it goes with the task
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether code of the client may still be running."""
        return self._thread.is_alive() or self._loop.busy

    def ask(self, function: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
        """``read(answer)`` of the client's answer, awaited if it is a coroutine."""
        self._set_waiting(time.monotonic())
        try:
            answer = function()
            result = read(self._loop.result(answer, self) if inspect.isawaitable(answer) else answer)
        except BaseException as error:  # a client may raise anything, SystemExit included
            if self.given_up:
                raise Overdue from None
            raise as_failure(error) from None
        finally:
            self._set_waiting(None)
        if self.given_up:
            raise Overdue
        return result

    def _set_waiting(self, since: float | None) -> None:
        with self._changed:
            self.waiting_since = since
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with jax.enable_x64(self._x64):
                self.result = self._task(self)
        except BaseException as error:  # what the client raised is a Failure by now; the rest is ours
            self.error = Failure(str(as_failure(error)))  # without a traceback, which would hold the batch
        finally:
            with self._changed:
                self.done = True
                self._changed.notify_all()


class EventLoop:
    """The event loop of one asynchronous client, in a thread of its own that starts with the first call.

    Every client has its own, for the whole run: one that blocks it, or ends it, harms nobody else.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()  # the last answer is there, or was given up and has ended
        self._ended.set()
        self._closed = False

    @property
    def busy(self) -> bool:
        return not self._ended.is_set()

    def result(self, awaitable: Any, job: Job) -> Any:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), daemon=True).start()
        loop, ended, tasks = self._loop, threading.Event(), []

        async def outcome() -> tuple[Any, BaseException | None]:
            try:
                return await awaitable, None
            except BaseException as error:  # SystemExit and KeyboardInterrupt would end the loop
                return None, error

        def begin() -> None:
            tasks.append(loop.create_task(outcome()))
            tasks[0].add_done_callback(lambda _: ended.set())

        loop.call_soon_threadsafe(begin)
        self._ended = ended
        while not ended.wait(0.1):
            if job.given_up:
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                raise Overdue
        answer, error = tasks[0].result()
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed and not loop.is_closed():
            with suppress(BaseException):  # a task that the client left behind may end the loop: it goes on
                loop.run_forever()
        loop.close()


def wait_for_all(
    jobs: list[Job], changed: threading.Condition, timeout: float, check: Callable[[], None] | None = None
) -> None:
    """Return once every job is done or has been waiting for its client for longer than ``timeout`` seconds.

    ``check`` is called at least once a second, and may raise.
    """
    with changed:
        while pending := [job for job in jobs if not job.done and not job.given_up]:
            if check is not None:
                check()
            now = time.monotonic()
            for job in pending:
                job.given_up = job.waiting_since is not None and now - job.waiting_since >= timeout
            ends = [job.waiting_since + timeout - now for job in pending if job.waiting_since is not None]
            if not all(job.given_up for job in pending):
                changed.wait(max(0.001, min([1.0, *(end for end in ends if end > 0)])))


def call_client(function: Callable[[], Any], read: Callable[[Any], Any], timeout: float) -> Any:
    """``read(function())``, with what ``function`` returns awaited if it is a coroutine.

    Raises a ``Failure`` after ``timeout`` seconds, or where either raises.
    """
    changed, loop = threading.Condition(), EventLoop()
    job = Job(lambda job: job.ask(function, read), changed, loop)
    wait_for_all([job], changed, timeout)
    loop.close()
    if job.given_up:
        raise Failure(LATE.format(timeout))
    if job.error is not None:
        raise job.error
    return job.result
