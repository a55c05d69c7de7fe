"""Faults over ``profl.train`` with simulated clients; time is simulated, too: a schedule is the same each time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np

import profl
from profl import trees
from profl.campaign.crew import Crew
from profl.campaign.database import Database
from profl.campaign.fold import Fold
from profl.campaign.store import DatabaseError
from profl.run.run_history import run_round
from tests.faults.common import (
    CASE,
    METHOD,
    ROUNDS,
    SAMPLES,
    SETTINGS,
    STEPS,
    Broken,
    Fault,
    Killed,
    deployable,
    same,
)

WRITES = ("full disk", "killed before writing", "killed while writing", "killed after writing")
CRASHES = ("killed before a round", "killed in a round", *WRITES)
HOOKS = ("callback raises", "report raises")
HARMLESS = ("clock ahead", "clock back", "slow", *HOOKS)
AT_CLIENTS = ("hang", "nan", "absurd", "raise", "exit", "nothing", "empty", "shape", "many", "words", "label")
TIMEOUT = 5.0  # seconds, of a clock that stands still unless a fault moves it


def schedule(seed: int) -> list[Fault]:
    """The faults of a seed; every third has crashes alone."""
    rng = np.random.default_rng([seed, 18])
    kinds = [*CRASHES, *HARMLESS] if seed % 3 == 0 else [*CRASHES, *HARMLESS, *2 * AT_CLIENTS]
    faults = []
    for _ in range(int(rng.integers(1, 7))):
        kind = kinds[rng.integers(len(kinds))]
        faults.append(Fault(kind, int(rng.integers(ROUNDS)), int(rng.integers(CASE.count)), int(rng.integers(9))))
    return faults


class World:
    """What is going on: the clock, who hangs, and what was seen."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults, self.left = faults, list(faults)
        self.clock, self.round = 1000.0, 0
        self.over = threading.Event()
        self.hung: dict[int, Fault] = {}
        self.crew: Any = None
        self.states: dict[int, Any] = {}  # round -> all states after it
        self.deployed: dict[tuple[int, int], tuple[int, bytes]] = {}  # (client, step) -> (id, model)
        self.broken: list[str] = []
        self.raised = 0  # by hooks of the process under way

    def raises(self, kind: str) -> None:
        """A hook of the user's: what it is told of is in the log, and what it raises ends nothing."""
        if self.take(kind):
            self.raised += 1
            raise RuntimeError("nobody \x1b[2J listens")

    def take(self, kind: str, client: int | None = None) -> Fault | None:
        """The next fault of a kind that is due; it happens once."""
        for fault in self.left:
            if fault.kind == kind and fault.round == self.round and client in (None, fault.client):
                self.left.remove(fault)
                return fault
        return None

    def others_are_done(self) -> bool:
        """Whether nobody but those who hang has anything to do in this round."""
        ledger, hung = self.crew.journal.ledger, {f"client {client}" for client in self.hung}
        absent = ledger.absent()
        return all(count == STEPS or name in absent or name in hung for name, count in ledger.told().items())

    def hang(self, client: int, fault: Fault) -> None:
        """Until others have done their work and the time is up; the client itself comes back some rounds later."""
        self.hung[client] = fault
        while not self.others_are_done() and not self.over.is_set():
            time.sleep(0.0005)
        with self.crew.changed:
            self.clock += 2 * TIMEOUT
            self.crew.changed.notify_all()
        while self.round <= fault.round + fault.number % 3 and not self.over.is_set():
            time.sleep(0.0005)
        del self.hung[client]

    def note(self, client: int, step: int, id: int, theta: Any) -> None:
        """What is deployed: a client's step is one deployment, of one model, whenever it is asked for."""
        one = (id, np.asarray(theta).tobytes())
        if self.deployed.setdefault((client, step), one) != one:
            self.broken.append(f"deployments: client {client} was asked for another one in step {step}")


class Client:
    """A simulated client to which things happen."""

    def __init__(self, world: World, number: int, inner: Any) -> None:
        self.world, self.number, self.inner, self.absurd = world, number, inner, -1

    def deploy(self, theta: Any, samples: int, step: int, id: int) -> Any:
        deployable(theta, self.world.broken)
        self.world.note(self.number, step, id, theta)
        world, batch = self.world, self.inner.deploy(theta, samples, step)
        harmless = [kind for kind in HARMLESS if kind not in HOOKS]
        kind = next((kind for kind in (*AT_CLIENTS, *harmless) if (fault := world.take(kind, self.number))), None)
        if kind == "absurd":
            self.absurd = world.round  # to its end: the first such batch alone leaves a finite model
        if kind == "hang":
            world.hang(self.number, fault)
        elif kind == "slow":
            time.sleep(0.003)
        elif kind == "clock back":
            world.clock -= 3600.0
        elif kind == "raise":
            raise RuntimeError("no\x1b[2J data " * 500)
        elif kind == "exit":
            raise SystemExit(3)
        return {
            "nan": lambda: np.where(np.arange(2) > 0, np.nan, batch),
            "absurd": lambda: np.full_like(batch, 3e38),
            "nothing": lambda: None,
            "empty": lambda: batch[:0],
            "shape": lambda: batch[:, :1],
            "many": lambda: np.repeat(batch, 3, axis=0),
            "words": lambda: np.array([["\x00secret"] * 2] * samples),
            "label": lambda: batch.astype(object),
        }.get("absurd" if self.absurd == world.round else kind or "", lambda: batch)()


def run(seed: int, folder: Path) -> str:
    """One schedule, checked; in a line what came of it."""
    faults = schedule(seed)
    world = World(faults)
    with mock.patch("profl.run.live.workers.time", SimpleNamespace(monotonic=lambda: world.clock, sleep=time.sleep)):
        try:
            ended, starts = _until_the_end(world, folder)
        finally:
            world.over.set()
    if world.broken:
        raise Broken(world.broken[0])
    if isinstance(ended, str):
        return f"stopped after {starts} starts: {ended}"
    if ended.theta.shape[1] != ROUNDS + 1:
        raise Broken(f"end: {ended.theta.shape[1] - 1} rounds")
    if ended.deployments[0, -1] != len(world.deployed):
        raise Broken(f"counts: {ended.deployments[0, -1]} deployments are counted, {len(world.deployed)} were made")
    if bool(world.raised) != any(client == -1 for _, client, _ in ended.incidents):
        raise Broken(f"hooks: {world.raised} raised, {ended.incidents}")
    if all(fault.kind in (*CRASHES, *HARMLESS) for fault in faults):
        if not same(ended.theta, undisturbed()):
            raise Broken("bits: crashes alone changed the trajectory")
        return f"ended with equal bits after {starts} starts"
    return f"ended after {starts} starts, {len(ended.incidents)} incidents"


def _until_the_end(world: World, folder: Path) -> tuple[Any, int]:
    starts = 0
    while starts <= len(world.faults) + 1:
        starts += 1
        inner = profl.worlds.simulated_clients(CASE, METHOD, samples=SAMPLES)
        clients = [Client(world, number, one) for number, one in enumerate(inner)]
        named: dict[str, Any] = {**SETTINGS, "checkpoint": folder, "timeout": TIMEOUT, "progress": False}
        named["callbacks"] = lambda _: world.raises("callback raises")
        named["report"] = lambda _: world.raises("report raises")
        world.raised = 0
        try:
            with _watched(world), _breaking_writes(world):
                return profl.train(CASE, METHOD, clients, **named), starts
        except Killed:
            continue
        except (OSError, profl.InputError) as error:
            if "No space left" not in str(error):
                raise
        except (profl.TooFewReports, profl.DivergedError) as error:
            return f"{type(error).__name__}: {str(error)[:80]}", starts
    raise Broken("end: it was started more often than it was killed")


@contextmanager
def _breaking_writes(world: World) -> Iterator[None]:
    """A database that is full, or whose process dies before it writes, before it has committed, or just after."""
    counted: Counter[tuple[int, str]] = Counter()
    real = Database.transaction

    def hit(kind: str) -> bool:
        counted[world.round, kind] += 1
        for fault in world.left:
            if fault.kind == kind and fault.round == world.round and counted[world.round, kind] > fault.number:
                world.left.remove(fault)
                return True
        return False

    @contextmanager
    def transaction(self: Database, write: bool = False) -> Iterator[Any]:
        if write and hit("full disk"):
            raise DatabaseError("No space left on device")
        if write and hit("killed before writing"):
            raise Killed
        with real(self, write) as connection:
            yield connection
            if write and hit("killed while writing"):
                raise Killed
        if write and hit("killed after writing"):
            raise Killed

    with mock.patch.object(Database, "transaction", transaction):
        yield


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """Rounds with faults of the process before and inside them, and a look at all states before and after."""
    begin = Fold.begin

    def crew(*arguments: Any) -> Crew:
        world.crew = Crew(*arguments)
        return world.crew

    def begun(self: Fold, state: Any) -> Any:
        world.round = state.live.history.round
        if world.take("killed before a round"):
            raise Killed
        if world.take("clock ahead"):
            world.clock += 3600.0
        return begin(self, state)

    def watched(plan: Any, root: Any, history: Any, clients: Any, *rest: Any) -> Any:
        if world.take("killed in a round"):
            raise Killed
        states, done = jax.tree.map(np.array, history.carry.states), clients()
        if not same(states, world.states.setdefault(history.round, states)):
            raise Broken(f"states: round {history.round} goes on from others than it ended with")
        after = run_round(plan, root, history, clients, *rest)
        refused = np.asarray(after.carry.refused) > np.asarray(history.carry.refused)
        for client in range(CASE.count):
            kept = same(*(trees.take(each, client) for each in (states, after.carry.states)))
            if kept != (client not in done or bool(refused[client])) and not after.given_up:
                raise Broken(
                    f"states: client {client} in round {history.round}, {'kept' if kept else 'lost'} its state"
                )
        ended = jax.tree.map(np.array, after.carry.states)
        if not same(ended, world.states.setdefault(after.round, ended)):
            raise Broken(f"states: round {history.round} has another end when it is folded again")
        return after

    with (
        mock.patch("profl.campaign.train.Crew", crew),
        mock.patch.object(Fold, "begin", begun),
        mock.patch("profl.campaign.fold.run_round", watched),
    ):
        yield


@cache
def undisturbed() -> Any:
    """theta of the run without faults."""
    clients = profl.worlds.simulated_clients(CASE, METHOD, samples=SAMPLES)
    return profl.train(CASE, METHOD, clients, **SETTINGS, progress=False).theta


__all__ = ["STEPS", "run", "schedule"]
