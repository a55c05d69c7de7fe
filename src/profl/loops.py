"""Loops of a few turns, written for the machine they run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

State = TypeVar("State")


def short_loop(turns: int, body: Callable[[int, State], State], start: State) -> State:
    """``fori_loop`` of a few turns, written out on an accelerator, which waits for the host at each of them.

    A CPU does not wait, and would only compile more slowly.

    >>> int(short_loop(3, lambda i, total: total + i, 0))
    3
    """
    return jax.lax.fori_loop(0, turns, body, start, unroll=jax.default_backend() != "cpu")
