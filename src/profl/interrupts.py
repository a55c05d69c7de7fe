"""Ctrl-C while compiled code runs: noted, and acted on between two calls of it.

Python's own answer, an exception at the next instruction, would leave computations under way whose memory is given up
underneath them: runs of 20,000 rounds ended in a segmentation fault. Who presses a second time gets that answer.
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
def noted() -> Iterator[Callable[[], bool]]:
    """Yields ``pressed()``: whether Ctrl-C was pressed since. Does nothing outside the main thread, or where somebody
    else answers Ctrl-C already.
    """
    times = 0

    def note(*_: Any) -> None:
        nonlocal times
        times += 1
        if times > 1:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: times > 0
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
