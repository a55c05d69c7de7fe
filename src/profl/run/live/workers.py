"""One call of a client, in a thread with a time limit.

Whatever runs a client's code runs in its thread, inside the limit: looking up ``deploy``, calling it, waiting for it
and reading its answer. A thread cannot be stopped from outside: one that is overdue is left to itself, its result is
thrown away, and its client counts as busy until it returns. Threads are daemons, so they never keep a program from
ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax

from profl.run.live.batches import Failure, Overdue, as_failure

SWITCHED = "switched JAX to {} bit for the whole process (jax_enable_x64): switched back, and its data are refused"
"""Where several clients were at it at once, whoever is done first is taken for the one."""

LATE = "took longer than {:g} s for a deployment"


class Job:
    """``task(self)`` in a thread. Inside it, ``ask`` calls the client; that is what has a time limit."""

    def __init__(self, task: Callable[[Job], Any], changed: threading.Condition, loop: EventLoop) -> None:
        self.result: Any = None
        self.error: Failure | None = None
        self.waiting_since: float | None = None
        self.given_up = False
        self.done = False
        self._task, self._changed, self._loop = task, changed, loop
        self._x64 = bool(jax.config.read("jax_enable_x64"))  # a setting of each thread: it goes with the task
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether code of the client may still be running."""
        return (self._thread.is_alive() or self._loop.busy) if self.given_up else not self.done

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
        before = bool(jax.config.read("jax_enable_x64"))  # that of the process: this thread has no own one yet
        try:
            with jax.enable_x64(self._x64):
                self.result = self._task(self)
        except BaseException as error:  # what the client raised is a Failure by now; the rest is ours
            self.error = Failure(str(as_failure(error)))  # without a traceback, which would hold the batch
        finally:
            if bool(jax.config.read("jax_enable_x64")) != before:
                jax.config.update("jax_enable_x64", before)
                self.error = Failure(SWITCHED.format(32 if before else 64))
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


def wait_for_some(
    jobs: Sequence[Job], changed: threading.Condition, timeout: float, check: Callable[[], None] | None = None
) -> list[Job]:
    """Those that are done, or were given up since they waited for their client longer than ``timeout`` seconds.

    Returns once there are some. ``check`` is called at least once a second, and may raise.
    """
    with changed:
        while True:
            if check is not None:
                check()
            now = time.monotonic()
            for job in jobs:
                late = job.waiting_since is not None and now - job.waiting_since >= timeout
                job.given_up = job.given_up or (late and not job.done)
            if ended := [job for job in jobs if job.done or job.given_up]:
                return ended
            ends = [job.waiting_since + timeout - now for job in jobs if job.waiting_since is not None]
            changed.wait(max(0.001, min([1.0, *ends])))


def call_client(function: Callable[[], Any], read: Callable[[Any], Any], timeout: float) -> Any:
    """``read(function())``, with what ``function`` returns awaited if it is a coroutine.

    Raises a ``Failure`` after ``timeout`` seconds, or where either raises.
    """
    changed, loop = threading.Condition(), EventLoop()
    job = Job(lambda job: job.ask(function, read), changed, loop)
    wait_for_some([job], changed, timeout)
    loop.close()
    if job.given_up:
        raise Failure(LATE.format(timeout))
    if job.error is not None:
        raise job.error
    return job.result
