"""A round over the network: the same parts as in every engine, with messages in between.

turn 0        the clients deploy, make their steps and report; the server combines
turn 1, ...   where the method has exchanges: who was accepted gets the mail and reports again; nothing is deployed
settled       what the server keeps of its clients, and the counts
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.run.flower.federation import Federation
from profl.run.flower.wire import Order, Remote
from profl.run.plan import Plan, compiled
from profl.run.round import Asked, Combined, Work, combine, settle
from profl.run.run_history import Ledger, blank, checked, open_ledger, record, stacked, whom_to_ask
from profl.run.step import client_view
from profl.server import entries
from profl.server.entries import Report, Values


class Turn(NamedTuple):
    """A round under way, before its turn ``number``."""

    number: int
    asked: Asked
    work: Work | None = None  # what turn 0 brought
    found: Combined | None = None  # what the last turn came to

    @property
    def to_ask(self) -> list[int]:
        """The clients that get a message: all who take part, later those who were accepted."""
        clients = np.asarray(self.asked.clients)
        if self.found is not None:
            clients = clients[np.asarray(self.found.accepted)]
        return sorted(set(clients.tolist()))

    def refused(self, done: dict[int, Work]) -> list[int]:
        """Who answered and was not accepted."""
        assert self.found is not None
        good = dict(zip(np.asarray(self.asked.clients).tolist(), np.asarray(self.found.accepted), strict=True))
        return [client for client in done if not good[client]]

    def order(self, federation: Federation, ledger: Ledger, client: int, token: str) -> Order:
        """What a client is asked in this turn."""
        base = trees.take(ledger.carry.states, client)
        number = message_number(federation, ledger, self.number)
        since, mailed, theta = int(base.since), base.mailed, ledger.carry.theta
        if self.found is not None:
            slot = np.asarray(self.asked.clients).tolist().index(client)
            theta, since = self.found.theta, number - 1
            mailed = (theta, trees.take(self.found.mail, slot))
        plain = (client, ledger.round + 1, self.number, number, since, int(base.since))
        return Order(theta, mailed, *plain, token, federation.digest, secrets.token_hex(16))


def message_number(federation: Federation, ledger: Ledger, turn: int) -> int:
    """Messages are counted from 1 over the whole run, turn by turn."""
    return ledger.round * federation.turns + turn + 1


def open_federation(federation: Federation) -> Ledger:
    """Before the first round: the server knows nothing of its clients but who they are."""
    report = without_model(blank_report(federation).reports)
    mailed = (federation.start, federation.mail) if federation.delivers else ()
    nobody = Remote(jnp.int32(0), mailed, jax.tree.map(jnp.zeros_like, report))
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (federation.clients, *jnp.shape(leaf))), nobody)
    return open_ledger(federation.plan, federation.start, states)


def blank_report(federation: Federation) -> Work:
    """The shapes of a report, without a state: that stays at the client."""
    return blank(federation.plan)._replace(states=())


def without_model(report: Report) -> Values:
    """What the server remembers of a report: the values, without the model."""
    return {name: value for name, value in entries.values(report).items() if name != "theta"}


def begin_round(plan: Plan, ledger: Ledger) -> Turn:
    return Turn(0, whom_to_ask(plan, plan.roots[0], ledger))


def next_turn(plan: Plan, ledger: Ledger, turn: Turn, done: dict[int, Work], nobody: Work) -> Turn:
    """After the answers to a turn: what the server makes of them; ``nobody`` is the ``blank_report``."""
    bare = turn.asked._replace(states=())
    work = stacked(bare, done, lambda: nobody)
    carry, usable = ledger.carry._replace(states=()), work.answered & work.sound
    if turn.found is not None:
        carry = carry._replace(theta=turn.found.theta, server=turn.found.server, usual=turn.found.usual)
        usable &= turn.found.accepted
    numbers = (jnp.int32(ledger.round), jnp.int32(turn.number))
    found = COMBINE(plan.settings, plan.roots[0], *numbers, carry, bare, work.reports, usable)
    first = work if turn.work is None else turn.work._replace(reports=work.reports)
    return Turn(turn.number + 1, turn.asked, first, found)


def settle_round(federation: Federation, plan: Plan, ledger: Ledger, turn: Turn, where: str) -> Ledger:
    """The ledger after the round whose last turn this was."""
    work, found = turn.work, turn.found
    assert work is not None
    assert found is not None
    slots = turn.asked.clients.shape[0]
    since = jnp.full(slots, message_number(federation, ledger, federation.method.exchanges), jnp.int32)
    theta = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), found.theta)
    report = without_model(work.reports)
    states = Remote(since, (theta, found.mail) if federation.delivers else (), report)
    number = jnp.int32(ledger.round)
    work = work._replace(states=states)
    carry, since_ = SETTLE(plan.settings, plan.population, number, ledger.carry, ledger.since, turn.asked, work, found)
    after = ledger._replace(round=ledger.round + 1, carry=carry, since=since_)
    few = int(carry.idle) > 0  # the round changed nothing
    return record(plan.settings, after if few else checked(after, where))


def final(federation: Federation, ledger: Ledger) -> Any:
    """What the run keeps of every client at its end, from what the clients reported and were sent."""
    method, settings = federation.method, federation.plan.settings

    def one(row: Any, remote: Remote) -> Any:
        view, state = client_view(settings, row), federation.empty_state.own
        if federation.delivers:
            _, state = method.receive(view, state, *remote.mailed)
        return method.final(view, state, remote.report)

    rows = federation.plan.population, ledger.carry.states
    if jax.eval_shape(jax.vmap(one), *rows) is None:
        return None
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(*rows))


COMBINE = compiled(combine)
SETTLE = compiled(settle)
