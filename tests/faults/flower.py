"""Faults over Flower's protocol, with a grid inside this process: what crosses, and nodes and servers that restart."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

import profl
from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app
from tests.faults.common import (
    CASE,
    FILES,
    METHOD,
    ROUNDS,
    SETTINGS,
    Broken,
    Fault,
    Killed,
    breaking_files,
    check_end,
    deployable,
)

FULL = "full disk"  # at a node it is no crash: the node cannot keep its state, says so, and is left out of the round
HOOKS = ("callback raises", "report raises")  # at the server: they end nothing
CRASHES = (*HOOKS, "server killed", "node restarts", "doubled", "reordered", *(kind for kind in FILES if kind != FULL))
MESSAGES = (FULL, "lost", "replayed", "error", "nan", "absurd", "outside", "stranger", "count", "nothing", "raise")


def schedule(seed: int) -> list[Fault]:
    """The faults of a seed; every third has crashes, and what a network may do without harm, alone."""
    rng = np.random.default_rng([seed, 19])
    kinds = CRASHES if seed % 3 == 0 else (*CRASHES, *MESSAGES)
    count = int(rng.integers(1, 6))
    return [
        Fault(kinds[rng.integers(len(kinds))], int(rng.integers(ROUNDS)), int(rng.integers(CASE.count)), 0)
        for _ in range(count)
    ]


class FaultyGrid(InProcessGrid):
    """Messages to which things happen."""

    def __init__(self, app: Any, faults: list[Fault], broken: list[str]) -> None:
        super().__init__(app, CASE.count)
        self.left, self.broken, self.round = faults, broken, 0
        self.replies: dict[int, Message] = {}  # the last one of each node

    def take(self, kind: str, client: int | None = None) -> bool:
        for fault in self.left:
            if fault.kind == kind and fault.round == self.round and client in (None, fault.client):
                self.left.remove(fault)
                return True
        return False

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        orders = [message.content["order"]["round"] for message in sent if "order" in message.content]
        self.round = int(orders[0]) - 1 if orders else self.round
        replies = list(super().send_and_receive(sent, timeout=timeout))
        if orders and self.take("server killed"):
            raise Killed
        return replies[::-1] if orders and self.take("reordered") else replies

    def deliver(self, message: Message) -> list[Message]:
        if "order" not in message.content:
            return super().deliver(message)
        node = message.metadata.dst_node_id
        client, before = node - 100, self.replies.get(node)
        deployable(message.content["theta"]["0"].numpy(), self.broken)
        if self.take("node restarts", client):
            self.contexts[node].state = RecordDict()
        if self.take("lost", client):
            return []
        (reply,) = super().deliver(message)
        self.replies[node] = reply
        if self.take("doubled", client):
            return [reply, copy.deepcopy(reply)]
        if self.take("replayed", client):
            return [before or reply]
        if self.take("error", client):
            return [Message(Error(0, "gone\x1b[2J"), reply_to=message)]
        return [self._changed(client, message, reply)]

    def _changed(self, client: int, message: Message, reply: Message) -> Message:
        """What a node that is broken or lies sends instead."""
        content = copy.deepcopy(reply.content)
        for kind, number in (("nan", np.nan), ("absurd", 3e37), ("outside", -0.5)):
            if self.take(kind, client):
                content["entry theta"] = ArrayRecord([np.full(2, number, np.float32)])
        if self.take("stranger", client) and "report" in content:
            content["report"]["client"] = (client + 1) % CASE.count
        if self.take("count", client) and "report" in content:
            content["report"]["samples"] = 10**12
        if self.take("nothing", client):
            content = RecordDict({"report": MetricRecord({"client": client})})
        return reply if content == reply.content else Message(content, reply_to=message)


class Client:
    """A simulated client that looks at what it deploys, and may raise."""

    def __init__(self, number: int, inner: Any, grid: list[FaultyGrid], broken: list[str]) -> None:
        self.number, self.inner, self.grid, self.broken = number, inner, grid, broken

    def deploy(self, theta: Any, samples: int, step: int) -> Any:
        deployable(theta, self.broken)
        if self.grid[0].take("raise", self.number):
            raise RuntimeError("no\x1b[2J data " * 500)
        return self.inner.deploy(theta, samples, step)


def run(seed: int, folder: Path) -> str:
    """One schedule, checked; in a line what came of it."""
    faults = schedule(seed)
    left, broken, grids = list(faults), [], []  # type: ignore[var-annotated]
    inner = profl.worlds.simulated_clients(CASE, METHOD, samples=SETTINGS["samples"])
    clients = [Client(number, one, grids, broken) for number, one in enumerate(inner)]
    app = make_client_app(federation(), clients, folder=folder / "nodes")
    grids.append(FaultyGrid(app, left, broken))
    ended, starts = _until_the_end(grids[0], folder, len(faults))
    if broken:
        raise Broken(broken[0])
    if isinstance(ended, str):
        return f"stopped after {starts} starts: {ended}"
    check_end(ended, ROUNDS)
    if all(fault.kind in CRASHES for fault in faults):
        if ended.theta.tobytes() != undisturbed().tobytes():
            raise Broken("bits: crashes alone changed the trajectory")
        return f"ended with equal bits after {starts} starts"
    return f"ended after {starts} starts, {len(ended.incidents)} incidents"


def _until_the_end(grid: FaultyGrid, folder: Path, most: int) -> tuple[Any, int]:
    for starts in range(1, most + 2):
        try:
            with breaking_files(grid.left, lambda: grid.round):
                hooks: Any = {kind.split()[0]: lambda _, kind=kind: _raise(grid, kind) for kind in HOOKS}
                hooks["callbacks"] = hooks.pop("callback")
                return ProFLStrategy(federation(), wait=1.0, checkpoint=folder / "server", **hooks).run(grid), starts
        except Killed:
            continue
        except (OSError, profl.InputError) as error:
            if "No space left" not in str(error):
                raise
        except profl.TooFewReports as error:
            return f"TooFewReports: {str(error)[:80]}", starts
    raise Broken("end: it was started more often than it was killed")


def _raise(grid: FaultyGrid, kind: str) -> None:
    if grid.take(kind):
        raise RuntimeError("nobody \x1b[2J listens")


@cache
def federation() -> Federation:
    return Federation(CASE, METHOD, CASE.count, **SETTINGS)


@cache
def undisturbed() -> Any:
    """theta of the run without faults."""
    return ProFLStrategy(federation(), wait=1.0).run(InProcessGrid(make_client_app(federation()), CASE.count)).theta
