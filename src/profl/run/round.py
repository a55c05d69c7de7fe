"""One round of one seed (paper, Algorithm 1, lines 3 and 18-21): who is asked, and what is made of the answers.

    asked           the server sends the global model to the clients of this round
    (their steps)   each engine's own affair: ``profl.run.step``
    combined        reports are attacked where that is simulated, screened, and combined by the method
    delivered       the mail reaches the clients; where the method has exchanges, they report again
    settled         states, counts, and whether the run goes on: too few reports give it up, ``StopWhenSettled`` says
                    that it is done

The same functions in every engine: compiled as a whole, compiled one by one, or with a network in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import random, trees
from profl.run.dropped import Dropped, add_round, nothing_dropped
from profl.run.plan import Population, Settings, compiled, first_states, forecast
from profl.run.step import client_view
from profl.run.tally import Counted, Tally, count
from profl.server import entries
from profl.server.attacks import apply
from profl.server.entries import Report
from profl.server.gate import accept, inside
from profl.server.participation import choose, first_occurrence
from profl.typing import Array, Key, Theta


class Carry(NamedTuple):
    """What goes from round to round, for one seed."""

    theta: Theta
    states: Any  # one row per client
    server: Any  # the method's, at the server
    first: Theta  # the model that the run began with
    stopped: Array  # the round in which the run ended early, -1 where it has not
    idle: Array  # rounds in a row with too few reports
    why: Array  # where it ended: one of ``settled.REASONS``, 0 where it was given up for too few reports
    dropped: Dropped | None  # None where the method states no share that a filter kept
    usual: Array  # how far clients moved when they last did
    refused: Array  # how often each client's report could not be used


class Asked(NamedTuple):
    """Who takes part in a round; under "weighted" a client may stand there twice."""

    clients: Array
    weights: Array
    rows: Population
    states: Any


class Work(NamedTuple):
    """What the clients of a round made of it, one row per slot."""

    states: Any
    reports: Report
    regret: Array
    info: dict[str, Array]  # means over the round's steps
    figures: dict[str, Array]
    samples: Array  # drawn in the whole round
    answered: Array  # bool
    sound: Array  # bool: what they keep is finite


class Combined(NamedTuple):
    theta: Theta
    server: Any
    mail: Any
    accepted: Array
    usual: Array  # how far clients move


def begin(settings: Settings, population: Population, theta: Theta) -> Carry:
    """Before the first round."""
    states, server = first_states(settings, population, theta), settings.method.open(settings.server, theta)
    dropped = nothing_dropped(population.weights.shape[0]) if "kept" in settings.method.info else None
    nobody = jnp.zeros(population.weights.shape[0], jnp.int32)
    ends = jnp.int32(-1), jnp.int32(0), jnp.int32(0)
    return Carry(theta, states, server, theta, *ends, dropped, jnp.zeros((), trees.ravel(theta).dtype), nobody)


def ask(settings: Settings, population: Population, root: Key, round_: Array, carry: Carry) -> Asked:
    """Line 3: who takes part."""
    key = random.participation_key(root, round_)
    clients, weights = choose(key, settings.scheme, settings.slots, population.weights)
    if everyone(settings, population):
        return Asked(clients, weights, population, carry.states)
    return Asked(clients, weights, *trees.take((population, carry.states), clients))


def everyone(settings: Settings, population: Population) -> bool:
    return settings.scheme == "uniform" and settings.slots == population.weights.shape[0]


def reports(settings: Settings, rows: Population, states: Any, thetas: Theta, chunk: int | None = None) -> Report:
    """What the clients send, one row each."""

    def one(row: Population, state: Any, theta: Theta) -> Report:
        return settings.method.report(client_view(settings, row), state.own, theta)

    return _each(one, chunk, rows, states, thetas)


def combine(
    settings: Settings,
    root: Key,
    round_: Array,
    turn: Array | int,
    carry: Carry,
    asked: Asked,
    sent: Report,
    usable: Array,
) -> Combined:
    """Lines 18-21: refuse what cannot be used, combine the rest. ``carry`` has the model that was sent out.

    What goes out next lies in the model space, whatever a method or a rule made of the reports.
    """
    method, project = settings.method, settings.functions.project
    if settings.attack is not None:
        sent = apply(settings.attack, sent, carry.theta, carry.first, asked.rows.hostile)
    passes, usual = accept(sent, carry.theta, lambda theta: inside(project, theta, method.judged), carry.usual)
    accepted = usable & passes
    key = random.server_key(root, round_)
    if method.exchanges:
        key = jax.random.fold_in(key, turn)
    server = settings.server._replace(client_ids=asked.clients)
    values = entries.values(sent)
    theta, state, mail = method.combine(server, carry.server, carry.theta, values, asked.weights, accepted, key)
    return Combined(project(theta), state, mail, accepted, usual)


def deliver(
    settings: Settings, rows: Population, states: Any, found: Combined, chunk: int | None = None
) -> tuple[Theta, Any]:
    """The models that the clients go on with, and their states, once the mail is there."""

    def one(row: Population, state: Any, mail: Any) -> tuple[Theta, Any]:
        theta, own = settings.method.receive(client_view(settings, row), state.own, found.theta, mail)
        return theta, state._replace(own=own)

    return _each(one, chunk, rows, states, found.mail)


def close(
    settings: Settings,
    chunk: int | None,
    population: Population,
    root: Key,
    round_: Array,
    carry: Carry,
    tally: Tally,
    asked: Asked,
    work: Work,
) -> tuple[Carry, Tally]:
    """The rest of a round whose clients are at hand, once they have made their steps; ``chunk`` of them at a time."""
    chunk = chunk if settings.method.exchanges else None
    found = combine(settings, root, round_, 0, carry, asked, work.reports, work.answered & work.sound)
    thetas, states = deliver(settings, asked.rows, work.states, found, chunk)

    def turn(number: Array, state: tuple[Combined, Theta, Any]) -> tuple[Combined, Theta, Any]:
        found, thetas, states = state
        sent = reports(settings, asked.rows, states, thetas, chunk)
        now = carry._replace(theta=found.theta, server=found.server, usual=found.usual)
        found = combine(settings, root, round_, number, now, asked, sent, found.accepted)
        return found, *deliver(settings, asked.rows, states, found, chunk)

    if settings.method.exchanges:
        found, _, states = jax.lax.fori_loop(1, 1 + settings.method.exchanges, turn, (found, thetas, states))
    return settle(settings, population, round_, carry, tally, asked, work._replace(states=states), found)


def settle(
    settings: Settings,
    population: Population,
    round_: Array,
    carry: Carry,
    tally: Tally,
    asked: Asked,
    work: Work,
    found: Combined,
) -> tuple[Carry, Tally]:
    """What goes on to the next round: with too few usable reports, or after the end, what there was before."""
    states = trees.where(found.accepted, work.states, asked.states)
    if not everyone(settings, population):
        states = jax.tree.map(lambda old, new: old.at[asked.clients].set(new), carry.states, states)
    dropped = carry.dropped
    if dropped is not None:
        dropped = add_round(dropped, asked.clients, work.info["kept"], found.accepted)
    bad = (work.answered & ~found.accepted).astype(jnp.int32)
    after = carry._replace(
        theta=found.theta,
        states=states,
        server=found.server,
        idle=jnp.int32(0),
        dropped=dropped,
        usual=found.usual,
        refused=carry.refused.at[asked.clients].max(carry.refused[asked.clients] + bad),  # drawn twice, refused once
    )
    weighted = settings.scheme == "weighted"
    distinct = first_occurrence(asked.clients) if weighted else jnp.ones_like(found.accepted)
    new = Counted(
        asked.clients,
        asked.weights,
        distinct,
        work.answered,
        found.accepted,
        work.samples,
        work.regret,
        work.info,
        work.figures,
    )
    counted = count(tally, round_, settings.local_steps, new)
    if settings.min_reports == 0 and settings.stop is None:
        return after, counted
    idle = carry.idle + 1
    stopped = jnp.where(idle >= settings.patience, jnp.int32(round_), carry.stopped)
    halted = carry._replace(stopped=stopped, idle=idle, refused=after.refused), tally._replace(absent=counted.absent)
    few = jnp.sum(found.accepted & (asked.weights > 0)) < settings.min_reports  # without weight a report is no use
    going = trees.where(few, halted, (_judged(settings, round_, after), counted))
    return trees.where(carry.stopped >= 0, (carry, tally), going)


def _judged(settings: Settings, round_: Array, carry: Carry) -> Carry:
    """The end of the run, where it is done."""
    if settings.stop is None:
        return carry
    expected = forecast(settings, carry.server)
    assert expected is not None
    why = settings.stop.why(expected, (round_ + 1) * settings.local_steps)
    return carry._replace(stopped=jnp.where(why > 0, jnp.int32(round_), carry.stopped), why=why)


def sound(loss: Array, state: Any) -> Array:
    """Whether what one client keeps is finite."""
    return trees.all_finite((loss, state))


def final(settings: Settings, population: Population, carry: Carry) -> Any:
    """What the run keeps of every client at its end, stacked; None for nothing, and then nothing is compiled."""
    kept = jax.eval_shape(partial(_final, settings), population, carry)
    return None if kept is None else FINAL(settings, population, carry)


def _final(settings: Settings, population: Population, carry: Carry) -> Any:
    def one(row: Population, state: Any) -> Any:
        view = client_view(settings, row)
        report = settings.method.report(view, state.own, carry.theta)
        return settings.method.final(view, state.own, entries.values(report))

    return jax.vmap(one)(population, carry.states)


def _each(function: Any, chunk: int | None, *rows: Any) -> Any:
    return jax.vmap(function)(*rows) if chunk is None else trees.map_chunks(function, chunk, *rows)


CLOSE = compiled(close, (1,))
"""``close``, compiled: for engines whose rounds are not."""
FINAL = compiled(_final)
