"""The server's side as a Flower strategy: one payload per client, every reply checked, a checkpoint after each round.

Nodes have random ids; a client is known by the partition-id that its node states when asked. Who is asked, how reports
are combined and Jacobians shared is ``profl.engines.rounds``, as in the other engines.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from profl import checks, trees
from profl.checks import InputError
from profl.engines.flower import wire
from profl.engines.flower.federation import Federation
from profl.engines.flower.nodes import Nodes
from profl.engines.guard import Guard
from profl.engines.history import Incident, keep, restore
from profl.engines.plan import describe
from profl.engines.rounds import Asked, Server, Work, begin, take_answers, trace, whom_to_ask
from profl.results.record import Jacobians, Run, make_run
from profl.storage.atomic import atomic
from profl.storage.checkpoints import Checkpoints


class ProFLStrategy(Strategy):
    """Any profl algorithm over Flower.

    Args:
      federation: the same as the clients'.
      checkpoint, resume: as in ``profl.train``; a new Flower run goes on where the last one was cut off.
      patience: rounds in a row with too few usable reports, after which the run stops with ``profl.TooFewReports``.
      timeout: seconds that a round may take; ``start`` gets it as well.
      wait: seconds to wait for clients that are not connected, before the first round and when too few are there.
      report: called with one sentence per incident.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = True,
        patience: int = 3,
        timeout: float = 120.0,
        wait: float = 30.0,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.federation, self.plan = federation, federation.plan
        self.patience, self.timeout = checks.positive_int("patience", patience), checks.positive("timeout", timeout)
        self.nodes = Nodes(federation, checks.positive("wait", wait))
        self.report = report
        self.started = time.perf_counter()
        self.bytes_up = self.bytes_down = 0
        self.incidents: tuple[Incident, ...] = ()
        empty = federation.empty_state()
        own = () if empty.shared == () else jnp.zeros_like(empty.shared.jacobian)
        remote = wire.Remote(jnp.int32(0), empty.shared, own)
        self.server = begin(self.plan, 0, [remote] * federation.clients)
        self.token = uuid.uuid4().hex
        self.saved = None
        if checkpoint is not None:
            self.saved = Checkpoints(checkpoint, federation.fingerprint, resume)
            fresh = (self.server, Guard(), ())
            self.server, _, self.incidents = restore(self.saved, federation.rounds, fresh)
            self.token = self._known_token(self.token)
        self._asked: Asked | None = None
        self._sent: list[tuple[Message, wire.Order]] = []

    # -- Flower's side -------------------------------------------------------------------------------------------------

    def run(self, grid: Grid) -> Run:
        """All rounds that are left, and what they came to."""
        left = self.federation.rounds - self.server.round
        if left > 0:
            self.start(grid, wire.arrays(self.server.theta), num_rounds=left, timeout=self.timeout)
        return self.finish()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        server = self.server
        self._asked = whom_to_ask(self.plan, self.plan.roots[0], server)
        places = self.nodes.find(grid, self._asked.clients, everyone=server.round == 0 or not self.nodes.known)
        self._sent = []
        for client in self._asked.clients:
            if client not in places:
                self._note(client, "is not connected")
                continue
            remote = server.states[client]
            since = int(remote.since)
            order = wire.Order(
                server.theta, remote.shared, client, server.round + 1, since, self.token, self.federation.digest
            )
            content = wire.write_order(order)
            self.bytes_down += wire.size(content)
            message = Message(
                content,
                dst_node_id=places[client],
                message_type=MessageType.TRAIN,
                ttl=self.timeout,  # a node that comes back later must not work on an old round
                group_id=str(server.round + 1),
            )
            self._sent.append((message, order))
        return [message for message, _ in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._asked is not None
        done = self._read(list(replies))
        before = self.server
        root, where = self.plan.roots[0], f"seed {self.federation.seed}"
        self.server = take_answers(self.plan, root, before, self._asked, done, where, self.patience)
        for client in self._refused(before, done):
            self._note(client, "sent numbers that are not finite or absurdly far: refused")
        if self.server.stopped >= 0:
            last = "; ".join(f"client {c} {what}" for r, c, what in self.incidents if r == self.server.round)
            raise checks.TooFewReports(
                f"round {self.server.round}: fewer than min_reports={self.federation.min_reports} reports could be "
                f"used, {self.patience} rounds in a row. {last}",
                self.finish(),
            )
        if self.saved is not None:
            keep(self.saved, self.server, Guard(), self.incidents)
        tally = self.server.tallies[-1] if self.server.tallies else self.server.since
        return wire.arrays(self.server.theta), MetricRecord({"estimated-risk": tally.risk, "reports": len(done)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Flower logs this at the start; the settings are in the run's own summary."""

    # -- inside --------------------------------------------------------------------------------------------------------

    def finish(self) -> Run:
        """The record of what was done so far."""
        found, figures = trace(self.server)
        found = _each(found)._replace(final=self._final())
        seconds = time.perf_counter() - self.started
        run = make_run(self.federation.world, self.federation.algorithm, found, describe(self.plan), seconds)
        wired = {"wire_bytes_up": self.bytes_up, "wire_bytes_down": self.bytes_down}
        return replace(run, live=figures, incidents=self.incidents, settings={**run.settings, **wired})

    def _final(self) -> Jacobians | None:
        if not self.plan.settings.recipe.share:
            return None
        stacked = trees.stack(self.server.states)
        shared = stacked.shared
        return Jacobians(*(np.asarray(part)[None] for part in (stacked.own, shared.jacobian, shared.group)))

    def _read(self, replies: list[Message]) -> dict[int, Work]:
        """The reports that can be used, by client, in the order of the clients; the first reply of a client counts."""
        orders = {message.metadata.message_id: order for message, order in self._sent}
        places = {message.metadata.dst_node_id: order for message, order in self._sent}
        found: dict[int, tuple[wire.Order, Message]] = {}
        for reply in replies:
            # the error reply of a dead node comes from the SuperLink: only what it answers tells whose it is
            to = reply.metadata.reply_to_message_id
            order = orders.get(to) if to in orders else places.get(reply.metadata.src_node_id)
            if order is not None:
                found.setdefault(order.client, (order, reply))
        done: dict[int, Work] = {}
        for _, order in self._sent:
            if order.client not in found:
                self._note(order.client, f"did not answer within {self.timeout:g} s")
                continue
            work = self._check(*found[order.client])
            if work is not None:
                done[order.client] = work
        return done

    def _check(self, order: wire.Order, reply: Message) -> Work | None:
        if reply.has_error():
            self._note(order.client, f"failed: {reply.error.reason or f'error {reply.error.code}'}")
            self.nodes.forget(order.client)  # it may come back under another id
            return None
        self.bytes_up += wire.size(reply.content)
        try:
            work, lost = wire.read_report(reply.content, order, wire.shape_of_jacobian(order.shared))
        except InputError as error:
            self._note(order.client, str(error))
            return None
        if lost:
            self._note(order.client, "had lost its state and began with an empty window")
        return work

    def _refused(self, before: Server, done: dict[int, Work]) -> list[int]:
        """Who answered and was not accepted: what the server keeps of it has not moved on."""
        return [c for c in done if int(self.server.states[c].since) == int(before.states[c].since)]

    def _note(self, client: int, what: str) -> None:
        incident = (self.server.round + (0 if what.endswith("refused") else 1), client, what)
        self.incidents = (*self.incidents, incident)
        if self.report is not None:
            self.report(f"round {incident[0]}, client {client}: {what}")

    def _known_token(self, fresh: str) -> str:
        """The run's token, the same after a restart: clients find their states by it."""
        assert self.saved is not None
        path = self.saved.folder / "token"
        if self.server.round > 0 and path.is_file():
            return path.read_text().strip()
        with atomic(path) as temporary:
            temporary.write_text(fresh)
        return fresh


def _each(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
