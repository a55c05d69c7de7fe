"""Ctrl-C on the command line: a message at once, the interrupt itself after the current step.

Python runs its own answer to a signal between two instructions, so not while code is compiled, which may take half a
minute. The number of the signal goes through a socket at once, and a thread that waits for it speaks.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGE = "interrupted: ending after the step it is at (again: at once)"


@contextmanager
def announce_interrupts() -> Iterator[None]:
    """A context in which the first Ctrl-C prints a message at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_interrupt, args=(reader,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()


def _wait_for_interrupt(reader: socket.socket) -> None:
    while numbers := reader.recv(1):
        if numbers[0] == signal.SIGINT:
            print(MESSAGE, file=sys.stderr, flush=True)
            return
