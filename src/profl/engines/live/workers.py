"""One client's work in a round, in a thread of its own, with a limit on every wait.

A thread cannot be stopped from outside: one that is overdue is left to itself, its result is thrown away, and its
client counts as busy until it returns. Threads are daemons, so they never keep a program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import jax


class Overdue(Exception):
    """Raised inside a job whose result nobody waits for any more."""


class Job:
    """``work(self)`` in a thread. Inside it, ``ask(function, ...)`` calls the client; that is what has a time limit."""

    def __init__(self, work: Callable[[Job], Any], changed: threading.Condition, loop: EventLoop) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiting_since: float | None = None
        self.given_up = False
        self.done = False
        self._work, self._changed, self._loop = work, changed, loop
        self._x64 = bool(jax.config.read("jax_enable_x64"))  # a setting of each thread: it goes with the work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def ask(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What the client answers, waited for where it is a coroutine."""
        self._mark(time.monotonic())
        try:
            answer = function(*arguments, **named)
            return self._loop.result(answer, self) if inspect.isawaitable(answer) else answer
        finally:
            self._mark(None)
            if self.given_up:
                raise Overdue

    def _mark(self, since: float | None) -> None:
        with self._changed:
            self.waiting_since = since
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with jax.enable_x64(self._x64):
                self.result = self._work(self)
        except BaseException as error:  # a client may raise anything, SystemExit included
            self.error = error
        finally:
            with self._changed:
                self.done = True
                self._changed.notify_all()


class EventLoop:
    """The event loop of asynchronous clients, in a thread of its own that starts when the first of them is asked."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def result(self, awaitable: Any, job: Job) -> Any:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(_await(awaitable), self._loop)
        while not job.given_up:
            try:
                return future.result(timeout=0.1)
            except TimeoutError:
                if future.done():
                    raise
        future.cancel()
        raise Overdue

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def wait_for_all(jobs: list[Job], changed: threading.Condition, timeout: float) -> None:
    """Return once every job is done or has been waiting for its client for longer than ``timeout`` seconds."""
    with changed:
        while pending := [job for job in jobs if not job.done and not job.given_up]:
            now = time.monotonic()
            for job in pending:
                job.given_up = job.waiting_since is not None and now - job.waiting_since >= timeout
            ends = [job.waiting_since + timeout - now for job in pending if job.waiting_since is not None]
            if not all(job.given_up for job in pending):
                changed.wait(max(0.001, min([1.0, *(end for end in ends if end > 0)])))


def call(function: Callable[..., Any], *arguments: Any, timeout: float, **named: Any) -> Any:
    """What ``function`` returns, waited for where it is a coroutine; ``TimeoutError`` after ``timeout`` seconds."""
    changed, loop = threading.Condition(), EventLoop()
    job = Job(lambda job: job.ask(function, *arguments, **named), changed, loop)
    wait_for_all([job], changed, timeout)
    loop.close()
    if job.given_up:
        raise TimeoutError(f"took longer than {timeout:g} s for a deployment")
    if job.error is not None:
        raise job.error
    return job.result


def taken(deploy: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """What a client's ``deploy`` wants to know of what is offered: the number of the deployment, ``step``, or the state
    of its simulated people, ``world``.

    >>> taken(lambda theta, samples, step: None, step=3, world=())
    {'step': 3}
    """
    wanted = inspect.signature(deploy).parameters
    return {name: value for name, value in offered.items() if name in wanted}
