"""What all schedules share: the run, faults, and what was seen of it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import profl
from tests.killed import CASE

METHOD = profl.pofl(0.05, jacobian="least_squares")
ROUNDS, STEPS, SAMPLES = 6, 3, 10
SETTINGS: dict[str, Any] = {"rounds": ROUNDS, "local_steps": STEPS, "samples": SAMPLES, "participation": 0.75}


class Killed(BaseException):
    """The process ends here."""


class Fault(NamedTuple):
    kind: str
    round: int  # counted from 0
    client: int = -1
    number: int = 0  # how often what it interrupts happens in the round before it does; or of how long it lasts


class Broken(AssertionError):
    """Something that must hold did not."""


def check_end(ended: Any, rounds: int) -> None:
    """end: a run that came to its end has all its records, and says nothing that nobody may print."""
    if ended.theta.shape[1] != rounds + 1 or not np.isfinite(ended.theta).all():
        raise Broken(f"end: {ended.theta}")
    if any(len(what) > 600 or not what.isprintable() for _, _, what in ended.incidents):
        raise Broken(f"end: an incident nobody may print: {ended.incidents}")


def deployable(theta: Any, broken: list[str]) -> None:
    """space: what a client is asked to deploy; noted, since what a client raises ends its own round alone."""
    if not np.isfinite(theta).all() or theta.min() < 0 or theta.max() > 6:
        broken.append(f"space: {theta} was deployed")


@contextmanager
def breaking_files(faults: list[Fault], now: Any) -> Iterator[None]:
    """Files whose writing is interrupted: before or after they take their place, or because the disk is full.

    ``now()`` is the round; a fault happens once.
    """
    counted: Counter[tuple[int, str]] = Counter()
    real_fsync, real_replace = os.fsync, os.replace

    def hit(kind: str) -> bool:
        counted[now(), kind] += 1
        for fault in faults:
            if fault.kind == kind and fault.round == now() and counted[now(), kind] > fault.number:
                faults.remove(fault)
                return True
        return False

    def fsync(file: Any) -> None:
        if hit("full disk"):
            raise OSError(errno.ENOSPC, "No space left on device")
        if hit("killed while writing"):
            raise Killed
        real_fsync(file)

    def replace(*paths: Any, **named: Any) -> None:
        if hit("killed before replacing"):
            raise Killed
        real_replace(*paths, **named)
        if hit("killed after replacing"):
            raise Killed

    with mock.patch("os.fsync", fsync), mock.patch("os.replace", replace):
        yield


FILES = ("full disk", "killed while writing", "killed before replacing", "killed after replacing")


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)


__all__ = [
    "CASE",
    "FILES",
    "METHOD",
    "ROUNDS",
    "SAMPLES",
    "SETTINGS",
    "STEPS",
    "Broken",
    "Fault",
    "Killed",
    "breaking_files",
    "deployable",
    "same",
]
