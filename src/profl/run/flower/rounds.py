"""A round over the network: the functions of ``profl.run.round``, with messages in between.

turn 0        the clients deploy, make their steps and report; the server combines
turn 1, ...   if the method has exchanges: accepted clients get their mail and report again; nothing is deployed
commit        what the server keeps of its clients, and the totals
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.run.flower.federation import Federation
from profl.run.flower.wire import Order, RemoteState
from profl.run.plan import CompiledPlan, compile_for_settings
from profl.run.round import Combined, Participants, Work, combine, commit_round
from profl.run.run_history import (
    RunHistory,
    absent_work,
    check_finite_model,
    next_participants,
    record_if_due,
    stack_work,
    start_history,
)
from profl.run.step import client_view
from profl.server import entries
from profl.server.entries import Report, Values


class Turn(NamedTuple):
    """A round before its turn ``number``."""

    number: int
    participants: Participants
    work: Work | None = None  # of turn 0, with the reports of the last turn
    combined: Combined | None = None  # the result of the last turn

    @property
    def to_ask(self) -> list[int]:
        """The clients that get a message: all who take part, later those who were accepted."""
        clients = np.asarray(self.participants.clients)
        if self.combined is not None:
            clients = clients[np.asarray(self.combined.accepted)]
        return sorted(set(clients.tolist()))

    def refused(self, work_by_client: dict[int, Work]) -> list[int]:
        """The clients that answered and were not accepted."""
        assert self.combined is not None
        good = dict(
            zip(np.asarray(self.participants.clients).tolist(), np.asarray(self.combined.accepted), strict=True)
        )
        return [client for client in work_by_client if not good[client]]

    def order(self, federation: Federation, history: RunHistory, client: int, token: str) -> Order:
        """The order for one client in this turn."""
        base = trees.take(history.carry.states, client)
        number = message_number(federation, history, self.number)
        since, mailed, theta = int(base.since), base.mailed, history.carry.theta
        if self.combined is not None:
            slot = np.asarray(self.participants.clients).tolist().index(client)
            theta, since = self.combined.theta, number - 1
            mailed = (theta, trees.take(self.combined.mail, slot))
        plain = (client, history.round + 1, self.number, number, since, int(base.since))
        return Order(theta, mailed, *plain, token, federation.digest, secrets.token_hex(16))


def message_number(federation: Federation, history: RunHistory, turn: int) -> int:
    """The number of a turn's messages, counted from 1 over the whole run."""
    return history.round * federation.turns + turn + 1


def open_federation(federation: Federation) -> RunHistory:
    """The history before the first round; the server has no reports yet."""
    report = without_model(absent_report(federation).reports)
    mailed = (federation.start, federation.mail) if federation.delivers else ()
    absent = RemoteState(jnp.int32(0), mailed, jax.tree.map(jnp.zeros_like, report))
    return start_history(federation.plan, federation.start, trees.repeat(absent, federation.clients))


def absent_report(federation: Federation) -> Work:
    """The work of a client that did not answer, without a state: the state stays at the client."""
    return absent_work(federation.plan)._replace(states=())


def without_model(report: Report) -> Values:
    """The values of a report that the server keeps: all but the model."""
    return {name: value for name, value in entries.values(report).items() if name != "theta"}


def begin_round(plan: CompiledPlan, history: RunHistory) -> Turn:
    """The first turn of the next round."""
    return Turn(0, next_participants(plan, plan.roots[0], history))


def next_turn(
    plan: CompiledPlan, history: RunHistory, turn: Turn, work_by_client: dict[int, Work], absent: Work
) -> Turn:
    """The next turn, after the server has combined the answers to this one; ``absent`` is the ``absent_report``."""
    bare = turn.participants._replace(states=())
    work = stack_work(bare, work_by_client, lambda: absent)
    carry, usable = history.carry._replace(states=()), work.answered & work.finite
    if turn.combined is not None:
        carry = carry._replace(theta=turn.combined.theta, server=turn.combined.server, usual=turn.combined.usual)
        usable &= turn.combined.accepted
    numbers = (jnp.int32(history.round), jnp.int32(turn.number))
    combined = COMBINE(plan.settings, plan.roots[0], *numbers, carry, bare, work.reports, usable)
    first = work if turn.work is None else turn.work._replace(reports=work.reports)
    return Turn(turn.number + 1, turn.participants, first, combined)


def commit_turns(federation: Federation, plan: CompiledPlan, history: RunHistory, turn: Turn, where: str) -> RunHistory:
    """The history after a round, given its last turn."""
    work, combined = turn.work, turn.combined
    assert work is not None
    assert combined is not None
    slots = turn.participants.clients.shape[0]
    since = jnp.full(slots, message_number(federation, history, federation.method.exchanges), jnp.int32)
    theta = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), combined.theta)
    report = without_model(work.reports)
    states = RemoteState(since, (theta, combined.mail) if federation.delivers else (), report)
    number = jnp.int32(history.round)
    work = work._replace(states=states)
    carry, current = COMMIT_ROUND(
        plan.settings, plan.population, number, history.carry, history.current, turn.participants, work, combined
    )
    after = history._replace(round=history.round + 1, carry=carry, current=current)
    few = int(carry.idle) > 0  # the round changed nothing
    return record_if_due(plan.settings, after if few else check_finite_model(after, where))


def final_outputs(federation: Federation, history: RunHistory) -> Any:
    """What the method returns for every client at the end, from what the clients reported and received."""
    method, settings = federation.method, federation.plan.settings

    def one(row: Any, remote: RemoteState) -> Any:
        view, state = client_view(settings, row), federation.empty_state.own
        if federation.delivers:
            _, state = method.receive(view, state, *remote.mailed)
        return method.final(view, state, remote.report)

    rows = federation.plan.population, history.carry.states
    if jax.eval_shape(jax.vmap(one), *rows) is None:
        return None
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(*rows))


COMBINE = compile_for_settings(combine)
COMMIT_ROUND = compile_for_settings(commit_round)
