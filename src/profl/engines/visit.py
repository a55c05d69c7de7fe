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


class Overdue(Exception):
    """Raised inside a visit whose result nobody waits for any more."""


class Visit:
    """``work(self)`` in a thread. Inside it, ``ask(function, ...)`` calls the client; that is what has a time limit."""

    def __init__(self, work: Callable[[Visit], Any], bell: threading.Condition, loop: EventLoop) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiting_since: float | None = None
        self.given_up = False
        self.done = False
        self._work, self._bell, self._loop = work, bell, loop
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
        with self._bell:
            self.waiting_since = since
            self._bell.notify_all()

    def _run(self) -> None:
        try:
            self.result = self._work(self)
        except BaseException as error:  # a client may raise anything, SystemExit included
            self.error = error
        finally:
            with self._bell:
                self.done = True
                self._bell.notify_all()


class EventLoop:
    """The event loop of asynchronous clients, in a thread of its own that starts when the first of them is asked."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def result(self, awaitable: Any, visit: Visit) -> Any:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(_await(awaitable), self._loop)
        while not visit.given_up:
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


def wait_for_all(visits: list[Visit], bell: threading.Condition, timeout: float) -> None:
    """Return once every visit is done or has been waiting for its client for longer than ``timeout`` seconds."""
    with bell:
        while pending := [visit for visit in visits if not visit.done and not visit.given_up]:
            now = time.monotonic()
            for visit in pending:
                visit.given_up = visit.waiting_since is not None and now - visit.waiting_since >= timeout
            ends = [visit.waiting_since + timeout - now for visit in pending if visit.waiting_since is not None]
            if not all(visit.given_up for visit in pending):
                bell.wait(max(0.001, min([1.0, *(end for end in ends if end > 0)])))


def call(function: Callable[..., Any], *arguments: Any, timeout: float, **named: Any) -> Any:
    """What ``function`` returns, waited for where it is a coroutine; ``TimeoutError`` after ``timeout`` seconds."""
    bell, loop = threading.Condition(), EventLoop()
    visit = Visit(lambda visit: visit.ask(function, *arguments, **named), bell, loop)
    wait_for_all([visit], bell, timeout)
    loop.close()
    if visit.given_up:
        raise TimeoutError(f"took longer than {timeout:g} s for a deployment")
    if visit.error is not None:
        raise visit.error
    return visit.result


def takes_step(deploy: Callable[..., Any]) -> bool:
    """Whether a client's ``deploy`` wants to know the number of the deployment."""
    return "step" in inspect.signature(deploy).parameters
