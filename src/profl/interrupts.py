"""Ctrl-C while compiled code runs: deferred to the end of the current call.

An exception at the next instruction, Python's default, would free memory that computations still use: runs of 20,000
rounds ended in a segmentation fault. A second Ctrl-C raises it nevertheless.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted; ``run`` holds what was done until then."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Yields ``pressed()``: whether Ctrl-C was pressed since.

    Does nothing outside the main thread, or where another handler is installed.
    """
    times = 0

    def count(*_: Any) -> None:
        nonlocal times
        times += 1
        if times > 1:
            raise KeyboardInterrupt

    with _answering(count):
        yield lambda: times > 0


@contextmanager
def remembered_interrupts() -> Iterator[Callable[[], None]]:
    """Yields ``check()``, which raises KeyboardInterrupt if Ctrl-C was pressed since, even if its exception was lost.

    Python drops an exception that is raised while it tidies up (in a weak reference's callback, say): a run that only
    waits for it would go on. Does nothing outside the main thread, or where another handler is installed.
    """
    pressed = False

    def remember(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    with _answering(remember):
        yield check


@contextmanager
def _answering(handler: Callable[..., None]) -> Iterator[None]:
    """Ctrl-C calls ``handler``, but outside the main thread, or where another handler is installed."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
