"""One client's work in a round, in a thread of its own, with a limit on every wait.

Whatever runs a client's code runs here, inside the limit: looking up its ``deploy``, calling it, waiting for it,
reading what it sent and putting its errors into words. A thread cannot be stopped from outside: one that is overdue is
left to itself, its result is thrown away, and its client counts as busy until it returns. Threads are daemons, so they
never keep a program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax

from profl import checks


class Overdue(Exception):
    """Raised inside a job whose result nobody waits for any more."""


class Failure(checks.InputError):
    """Why a client takes no part in a round: a line that can be shown and kept."""


def failure(error: BaseException) -> Failure:
    """What a client's exception comes to; its text is the client's, and so is the code that makes it."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, checks.InputError):
        return Failure(checks.words(f"sent a batch that cannot be used: {checks.words(error)}"))
    return Failure(checks.words(f"raised {type(error).__name__}: {checks.words(error)}"))


def late(timeout: float) -> Failure:
    return Failure(f"took longer than {timeout:g} s for a deployment")


class Job:
    """``work(self)`` in a thread. Inside it, ``ask`` calls the client; that is what has a time limit."""

    def __init__(self, work: Callable[[Job], Any], changed: threading.Condition, loop: EventLoop) -> None:
        self.result: Any = None
        self.error: Failure | None = None
        self.note = ""  # what is worth a line though it went well
        self.waiting_since: float | None = None
        self.given_up = False
        self.done = False
        self._work, self._changed, self._loop = work, changed, loop
        self._x64 = bool(jax.config.read("jax_enable_x64"))  # a setting of each thread: it goes with the work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether code of the client may still be running."""
        return self._thread.is_alive() or self._loop.busy

    def ask(self, function: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
        """What ``read`` makes of what the client answers, waited for where it is a coroutine."""
        self._mark(time.monotonic())
        try:
            answer = function()
            found = read(self._loop.result(answer, self) if inspect.isawaitable(answer) else answer)
        except BaseException as error:  # a client may raise anything, SystemExit included
            if self.given_up:
                raise Overdue from None
            raise _told(error) from None
        finally:
            self._mark(None)
        if self.given_up:
            raise Overdue
        return found

    def _mark(self, since: float | None) -> None:
        with self._changed:
            self.waiting_since = since
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with jax.enable_x64(self._x64):
                self.result = self._work(self)
        except BaseException as error:  # what the client raised is a Failure by now; the rest is ours
            self.error = Failure(str(_told(error)))  # without a traceback, which would hold the batch
        finally:
            with self._changed:
                self.done = True
                self._changed.notify_all()


def _told(error: BaseException) -> Failure:
    """``failure``, also of an exception that cannot even be told."""
    try:
        return failure(error)
    except BaseException:
        return Failure("raised an error that cannot be shown")


class EventLoop:
    """The event loop of one asynchronous client, in a thread of its own that starts when it is first asked.

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
        loop, ended, tasks = self._started(), threading.Event(), []

        def begin() -> None:
            tasks.append(loop.create_task(_outcome(awaitable)))
            tasks[0].add_done_callback(lambda _: ended.set())

        def end() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        self._ended = ended
        while not ended.wait(0.1):
            if job.given_up:
                loop.call_soon_threadsafe(end)
                raise Overdue
        answer, error = tasks[0].result()
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), daemon=True).start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed and not loop.is_closed():
            with suppress(BaseException):  # a task that the client left behind may end the loop: it goes on
                loop.run_forever()
        loop.close()


async def _outcome(awaitable: Any) -> tuple[Any, BaseException | None]:
    """The answer, or the exception: SystemExit and KeyboardInterrupt would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


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


def call(function: Callable[[], Any], read: Callable[[Any], Any], timeout: float) -> Any:
    """What ``read`` makes of what ``function`` returns, waited for where it is a coroutine; a ``Failure`` after
    ``timeout`` seconds, or where either raises."""
    changed, loop = threading.Condition(), EventLoop()
    job = Job(lambda job: job.ask(function, read), changed, loop)
    wait_for_all([job], changed, timeout)
    loop.close()
    if job.given_up:
        raise late(timeout)
    if job.error is not None:
        raise job.error
    return job.result


def deployed_by(client: Any, theta: Any, samples: int, **offered: Any) -> Any:
    """What the client answers to a deployment; to be run inside a limit, the first look at ``deploy`` included."""
    deploy = getattr(client, "deploy", None)
    if not callable(deploy):
        raise Failure("has no method deploy(theta, samples)")
    return deploy(theta, samples, **taken(deploy, **offered))


def taken(deploy: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """What a client's ``deploy`` wants to know of what is offered: the number of the deployment, ``step``, or the state
    of its simulated people, ``world``. It must name them: ``**kwargs`` gets nothing.

    >>> taken(lambda theta, samples, step: None, step=3, world=())
    {'step': 3}
    """
    try:
        wanted = inspect.signature(deploy).parameters
    except (TypeError, ValueError):  # a builtin says nothing about itself
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: value for name, value in offered.items() if name in wanted and wanted[name].kind in by_name}
