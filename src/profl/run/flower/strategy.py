"""The server's side as a Flower strategy: one payload per client, every reply checked, a checkpoint after each round.

Nodes have random ids; a client is identified by the partition-id that its node states, with a signature where clients
are bound to keys. Participants, aggregation and mail are those of ``profl.run.round``, as in the other engines.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from profl import checks
from profl.checks import InputError
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.flower import wire
from profl.run.flower.federation import Federation
from profl.run.flower.identity import VARIABLE, Identities, stored_token
from profl.run.flower.message_size import message_bytes, message_objects, state_message_bytes
from profl.run.flower.nodes import Nodes
from profl.run.flower.replies import Limits, RepliesGrid
from profl.run.flower.retry import RetryGrid
from profl.run.flower.rounds import (
    Turn,
    absent_report,
    begin_round,
    commit_turns,
    final_outputs,
    next_turn,
    open_federation,
)
from profl.run.live.filter_alerts import FilterAlert, update_alerts
from profl.run.live.protection import Account
from profl.run.live.state import REFUSED, Guard, Incident, LiveState, live_figures, newly_distrusted
from profl.run.plan import describe
from profl.run.round import Work
from profl.run.run_history import complete_records, notify_callbacks
from profl.storage.checkpoints import Checkpoints

log = logging.getLogger("flwr")  # what ``flwr log`` shows


class RunFinished(Exception):
    """Raised to leave Flower's loop when the run ends before its last turn."""


class ProFLStrategy(Strategy):
    """Any profl algorithm over Flower.

    Args:
      federation: the same as the clients'.
      checkpoint, resume: as in ``profl.train``; a new Flower run goes on where the last one was cut off.
      patience: rounds in a row with too few usable reports, after which the run stops with ``profl.TooFewReports``.
      timeout: seconds that a turn of messages may take; ``start`` gets it as well.
      wait: seconds to wait for clients that are not connected, before the first round, when too few are there, and for
        a node that went away in the middle of a turn.
      guard: as in ``profl.train``: the run stops with ``profl.DivergedError`` when the estimated risk explodes.
      identities: ``clients.json`` of ``profl flower certificates``; nodes then prove which client they are. The file
        that the environment's ``PROFL_IDENTITIES`` names goes before it.
      report: called with one sentence per incident, once the round is stored.
      callbacks: as in ``profl.train``.
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
        guard: float = 10.0,
        identities: str | os.PathLike[str] | None = None,
        report: Callable[[str], None] | None = None,
        callbacks: Iterable[Callback] | Callback = (),
    ) -> None:
        settings = federation.plan.settings._replace(patience=checks.positive_int("patience", patience))
        self.federation, self.plan = federation, federation.plan._replace(settings=settings)
        self.timeout = checks.positive("timeout", timeout)
        self.limit = checks.positive("guard", guard)
        bound = os.environ.get(VARIABLE) or identities  # whoever runs the server decides
        self.nodes = Nodes(federation, checks.positive("wait", wait), Identities(bound) if bound else None)
        self.watch = Watch(federation.world, federation.method, describe(self.plan), callbacks, report)
        self.started = time.perf_counter()
        self.bytes_up = self.bytes_down = 0
        self.incidents: tuple[Incident, ...] = ()
        self.alerts: tuple[FilterAlert, ...] = ()
        self._untold: tuple[Incident, ...] = ()  # of the round under way: they are told once it is stored
        self.guard = Guard()
        self.history = open_federation(federation)
        self.token = uuid.uuid4().hex
        self.saved = None
        if checkpoint is not None:
            self.saved = Checkpoints(checkpoint, federation.fingerprint, resume)
            restored = LiveState(self.history).restore(self.saved, federation.config.rounds)
            self.history, self.guard, self.incidents, self.alerts = restored
            self.token = stored_token(self.saved.folder, self.token, restart=self.history.round > 0)
        self.account = None if federation.privacy is None else Account(federation.privacy, self.plan, self.saved)
        self._turn: Turn | None = None
        self._sent: list[tuple[Message, wire.Order]] = []
        self._absent = absent_report(federation)

    # -- Flower's side -------------------------------------------------------------------------------------------------

    def run(self, grid: Grid) -> Run:
        """The run after all remaining rounds."""
        remaining = self.federation.config.rounds - self.history.round
        try:
            if remaining > 0 and not self.history.settled:
                turns = remaining * self.federation.turns
                self.start(grid, wire.to_arrays(self.history.carry.theta), num_rounds=turns, timeout=self.timeout)
        finally:
            self.watch.close()
            if self.saved is not None:
                self.saved.close()
        return self.watch.finish(self.finish())

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *arguments: Any, **named: Any) -> Result:
        """The result of Flower's loop over turns, which a run that has settled (``StopWhenSettled``) leaves early."""
        state_message_bytes(self.federation)
        limits = Limits(message_objects(self.federation), message_bytes(self.federation))
        patient = cast(Grid, RetryGrid(RepliesGrid(grid, limits), self.nodes.wait, self._again))
        try:
            return super().start(patient, initial_arrays, *arguments, **named)
        except RunFinished:
            return Result(arrays=wire.to_arrays(self.history.carry.theta))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of one turn. What Flower calls a round is a turn; a round has ``federation.turns`` of them."""
        first = self._turn is None
        self._turn = turn = begin_round(self.plan, self.history) if self._turn is None else self._turn
        everyone = first and (self.history.round == 0 or not self.nodes.connected)
        places = self.nodes.find(grid, turn.to_ask, everyone) if turn.to_ask else {}
        for client, what in self.nodes.take_news():
            self._note(client, what)
        self._sent = []
        for client in turn.to_ask:
            if client not in places:
                self._note(client, "is not connected")
                continue
            order = turn.order(self.federation, self.history, client, self.token)
            self._send(order, places[client], self.timeout)
        return [message for message, _ in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._turn is not None
        work_by_client = self._read(list(replies))
        turn = next_turn(self.plan, self.history, self._turn, work_by_client, self._absent)
        for client in turn.refused(work_by_client):
            self._note(client, REFUSED)
        if turn.number <= self.federation.method.exchanges:
            self._turn = turn
            return None, None
        self._turn = None
        where = f"seed {self.plan.seeds[0]}"
        before, self.history = self.history, commit_turns(self.federation, self.plan, self.history, turn, where)
        self.guard = self.guard.update(self.history, self.limit)
        self.alerts, fresh = update_alerts(self.alerts, self.plan, before, self.history)
        self._untold += tuple(alert.incident for alert in fresh)
        distrusted = newly_distrusted(self.plan.settings, before, self.history)
        self.incidents, self._untold = (*self.incidents, *distrusted), (*self._untold, *distrusted)
        if self.history.given_up:
            self._tell()
            last = "; ".join(f"client {c} {what}" for r, c, what in self.incidents if r == self.history.round)
            raise checks.TooFewReports(
                f"round {self.history.round}: fewer than min_reports={self.plan.settings.min_reports} reports could be "
                f"used, {self.plan.settings.patience} rounds in a row. {last}",
                self.finish(),
            )
        if self.saved is not None:
            self._live.save(self.saved)
        self._tell()
        self.guard.check(self.history.round, self.limit)
        self._log(turn, work_by_client)
        notify_callbacks(self.plan, self.watch, before, self.history)
        if self.history.settled or self.watch.stopped:
            raise RunFinished
        metrics: dict[str, Any] = {"estimated-risk": self.history.latest["loss"], "reports": len(work_by_client)}
        return wire.to_arrays(self.history.carry.theta), MetricRecord(metrics)

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
        """The run so far."""
        history = complete_records(self.plan.settings, self.history)
        trace: Any = history.trace(self.plan, final_outputs(self.federation, history))
        trace = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trace)
        seconds = time.perf_counter() - self.started
        run = make_run(self.federation.world, self.federation.method, trace, describe(self.plan), seconds)
        wire_bytes = {"wire_bytes_up": self.bytes_up, "wire_bytes_down": self.bytes_down}
        incidents = (*self._live.all_incidents, *self.watch.incidents)
        spent = None if self.account is None else self.account.spent()
        settings = {**run.settings, **wire_bytes}
        notes = run.notes if self.saved is None else (*run.notes, *self.saved.notes)
        return replace(
            run, live=live_figures(history), incidents=incidents, settings=settings, privacy=spent, notes=notes
        )

    @property
    def _live(self) -> LiveState:
        return LiveState(self.history, self.guard, self.incidents, self.alerts)

    def _send(self, order: wire.Order, node: int, seconds: float) -> Message:
        content = wire.write_order(order)
        self.bytes_down += wire.byte_size(content)
        message = Message(
            content,
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            ttl=seconds,  # a node that comes back later must not work on an old round
            group_id=str(order.number),
        )
        self._sent.append((message, order))
        return message

    def _again(self, message: Message, seconds: float) -> Message:
        """A new message with the same order, for a node that was disconnected and is back."""
        order = next(order for sent, order in self._sent if sent is message)
        log.info("client %d is back and is asked again", order.client)
        return self._send(order._replace(nonce=uuid.uuid4().hex), message.metadata.dst_node_id, seconds)

    def _read(self, replies: list[Message]) -> dict[int, Work]:
        """The usable reports by client, in the order of the clients; the first reply of a client counts.

        The message that a reply answers identifies its client: the SuperLink sends the error reply of a dead node.
        """
        sent = {message.metadata.message_id: (message, order) for message, order in self._sent}
        replies_by_client: dict[int, tuple[wire.Order, Message]] = {}
        for reply in replies:
            message, order = sent.get(reply.metadata.reply_to_message_id, (None, None))
            if message is None or order is None:
                continue
            node = message.metadata.dst_node_id
            if reply.has_error() or reply.metadata.src_node_id == node:
                replies_by_client.setdefault(order.client, (order, reply))
            else:
                self._note(order.client, f"node {reply.metadata.src_node_id} answered in its place: refused")
        work_by_client: dict[int, Work] = {}
        for order in {order.client: order for _, order in self._sent}.values():
            if order.client not in replies_by_client:
                self._note(order.client, f"did not answer within {self.timeout:g} s")
                continue
            work = self._check(*replies_by_client[order.client])
            if work is not None:
                work_by_client[order.client] = work
        if self.account is not None:
            contents = {client: replies_by_client[client][1].content for client in work_by_client}
            self.account.charge_at_least({client: wire.reports_made(content) for client, content in contents.items()})
        return work_by_client

    def _check(self, order: wire.Order, reply: Message) -> Work | None:
        if reply.has_error():
            self._note(order.client, f"failed: {reply.error.reason or f'error {reply.error.code}'}")
            self.nodes.forget(order.client)  # it may come back under another id
            return None
        try:
            work, lost = wire.read_report(reply.content, order, self._absent, self.federation.most_samples)
            self.bytes_up += wire.byte_size(reply.content)
        except InputError as error:
            self._note(order.client, str(error))
            return None
        if lost:
            self._note(order.client, "had lost its state and began with an empty window")
        return work._replace(regret=work.regret - np.float32(self.federation.floors[order.client]))

    def _log(self, turn: Turn, work_by_client: dict[int, Work]) -> None:
        """One line per round."""
        absent = sorted(set(np.asarray(turn.participants.clients).tolist()) - set(work_by_client))
        log.info(
            "round %d of %d: %d reports, estimated risk %.4g, absent: %s",
            self.history.round,
            self.federation.config.rounds,
            len(work_by_client),
            self.history.latest["loss"],
            ", ".join(map(str, absent)) or "nobody",
        )

    def _note(self, client: int, what: str) -> None:
        incident = (self.history.round + 1, client, checks.words(what))
        self.incidents, self._untold = (*self.incidents, incident), (*self._untold, incident)

    def _tell(self) -> None:
        untold, self._untold = self._untold, ()
        self.watch.tell(untold)
