"""One round of one seed (paper, Algorithm 1, lines 3 and 18-21): participants, aggregation, stopping.

    choose_participants   which clients get the global model in this round
    (local steps)         each engine runs ``profl.run.step`` in its own way
    combine               reports are attacked where an attack is simulated, screened, and combined by the method
    deliver               clients receive their mail; if the method has exchanges, they report again
    commit_round          new states and totals, and whether the run stops: too few reports, or ``StopWhenSettled``

The same functions in every engine: compiled as a whole, compiled one by one, or with a network in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.methods.intervals import Posterior
from profl.packing import Packed, apply_unpacked, pack, pack_as, unpack
from profl.run.plan import (
    ClientState,
    Population,
    Settings,
    compile_for_settings,
    first_states,
    forecast,
    shapes_for_settings,
)
from profl.run.step import client_view
from profl.run.totals import Dropped, RoundCounts, Totals, add_dropped, add_round, zero_dropped
from profl.server import entries
from profl.server.attacks import apply
from profl.server.entries import Report
from profl.server.gate import accept, stays
from profl.server.participation import choose, first_occurrence
from profl.typing import Array, Key, Theta


class Carry(NamedTuple):
    """What one seed carries from round to round. Checkpoints store the names of the fields."""

    theta: Theta
    states: Any  # one row per client
    server: Any  # the method's state at the server
    first: Theta  # the model that the run began with
    stopped: Array  # the round in which the run ended early, -1 where it has not
    idle: Array  # rounds in a row with too few reports
    why: Array  # where it ended: one of ``settled.REASONS``, 0 where it was given up for too few reports
    dropped: Dropped | None  # None where the method states no share that a filter kept
    usual: Array  # how far clients moved when they last did
    refused: Array  # how often each client's report could not be used


class RoundState(NamedTuple):
    """A run between two rounds, for one seed."""

    carry: Carry
    totals: Any  # ``Totals`` since the last record, packed inside a compiled loop


class Participants(NamedTuple):
    """The clients of a round, one row each; with ``scheme="weighted"`` a client may have two rows."""

    clients: Array  # their numbers
    weights: Array
    rows: Population
    states: Any


class Work(NamedTuple):
    """What the participants of a round computed, one row each."""

    states: Any
    reports: Any  # a ``Report``; None where ``finish_round`` collects them, from ``thetas``
    regret: Array
    info: dict[str, Array]  # means over the round's steps
    figures: dict[str, Array]
    samples: Array  # drawn in the whole round
    answered: Array  # bool
    finite: Array  # bool: loss and state are finite


class Combined(NamedTuple):
    """What the server makes of the reports of one turn."""

    theta: Theta
    server: Any
    mail: Any
    accepted: Array
    usual: Array  # how far clients move


def initial_carry(settings: Settings, population: Population, theta: Theta) -> Carry:
    """What the first round of one seed starts from."""
    states, server = first_states(settings, population, theta), settings.method.open(settings.server, theta)
    dropped = zero_dropped(population.weights.shape[0]) if "kept" in settings.method.info else None
    nobody = jnp.zeros(population.weights.shape[0], jnp.int32)
    ends = jnp.int32(-1), jnp.int32(0), jnp.int32(0)
    return Carry(theta, states, server, theta, *ends, dropped, jnp.zeros((), trees.ravel(theta).dtype), nobody)


def choose_participants(
    settings: Settings, population: Population, root: Key, round_: Array, carry: Carry
) -> Participants:
    """The participants of a round (line 3)."""
    if all_participate(settings, population):
        return Participants(jnp.arange(settings.slots), population.weights, population, carry.states)
    key = random.participation_key(root, round_)
    clients, weights = choose(key, settings.scheme, settings.slots, population.weights)
    return Participants(clients, weights, *trees.take((population, carry.states), clients))


def all_participate(settings: Settings, population: Population) -> bool:
    """Whether every client takes part in every round, once."""
    return settings.scheme == "uniform" and settings.slots == population.weights.shape[0]


def collect_reports(
    settings: Settings, rows: Population, states: Any, thetas: Theta, chunk: int | None = None
) -> Report:
    """The reports of the clients, one row each."""

    def one(row: Population, state: Any, theta: Theta) -> Report:
        view = client_view(settings, row)
        return apply_unpacked(lambda state: settings.method.report(view, state.own, theta), state)

    return _map_clients(one, chunk, rows, states, thetas)


def combine(
    settings: Settings,
    root: Key,
    round_: Array,
    turn: Array | int,
    carry: Carry,
    participants: Participants,
    reports: Report,
    usable: Array,
) -> Combined:
    """The new global model, server state and mail (lines 18-21), and which reports were accepted.

    ``carry`` holds the model that was sent to the clients. The new model is projected onto the model space.
    """
    method, project = settings.method, settings.functions.project
    if settings.attack is not None:
        reports = apply(settings.attack, reports, carry.theta, carry.first, participants.rows.hostile)
    passes, usual = accept(reports, carry.theta, lambda theta: stays(project, theta, method.judged), carry.usual)
    accepted = usable & passes
    key = root
    if method.draws:
        key = random.server_key(root, round_)
        if method.exchanges:
            key = jax.random.fold_in(key, turn)
    server = settings.server._replace(client_ids=participants.clients)
    values = entries.values(reports)
    theta, state, mail = method.combine(server, carry.server, carry.theta, values, participants.weights, accepted, key)
    return Combined(project(theta), state, mail, accepted, usual)


def deliver(
    settings: Settings, rows: Population, states: Any, combined: Combined, chunk: int | None = None
) -> tuple[Theta, Any]:
    """The models and states of the clients after they have received their mail, one row each."""
    if settings.method.rests_without_mail and not jax.tree.leaves(combined.mail):
        return trees.repeat(combined.theta, trees.rows(rows.weights)), states

    def one(row: Population, state: Any, mail: Any) -> tuple[Theta, Any]:
        before = unpack(state)
        theta, method_state = settings.method.receive(client_view(settings, row), before.own, combined.theta, mail)
        return theta, pack_as(state, before._replace(own=method_state))

    return _map_clients(one, chunk, rows, states, combined.mail)


def finish_round(
    settings: Settings,
    chunk: int | None,
    population: Population,
    root: Key,
    round_: Array,
    before: RoundState,
    participants: Participants,
    work: Work,
    thetas: Theta | None = None,
) -> RoundState:
    """The state after a round whose clients are in this process and have made their local steps.

    ``chunk`` clients are worked on at a time; ``thetas`` are the models that they have at hand, one row each, by
    default the global one.
    """
    carry, totals = before
    usable = work.answered & work.finite
    if not settings.method.exchanges:
        combined = combine(settings, root, round_, 0, carry, participants, work.reports, usable)
        _, states = deliver(settings, participants.rows, work.states, combined)
        work = work._replace(states=states)
        return commit_round(settings, population, round_, carry, totals, participants, work, combined)

    def turn(number: Array, state: tuple[Combined, Theta, Any]) -> tuple[Combined, Theta, Any]:
        """One turn of messages: all are one loop, the first one too, so that a program holds a turn once."""
        last, thetas, states = state
        again = partial(collect_reports, settings, participants.rows, states, thetas, chunk)
        reports = again() if work.reports is None else jax.lax.cond(number == 0, lambda: work.reports, again)
        now = carry._replace(theta=last.theta, server=last.server, usual=last.usual)
        combined = combine(settings, root, round_, number, now, participants, reports, last.accepted)
        thetas, states = deliver(settings, participants.rows, states, combined, chunk)
        return combined._replace(mail=()), thetas, states

    if thetas is None:
        thetas = trees.repeat(carry.theta, usable.shape[0])
    first = Combined(carry.theta, carry.server, (), usable, carry.usual)
    turns = 1 + settings.method.exchanges
    combined, _, states = jax.lax.fori_loop(0, turns, turn, (first, thetas, work.states))
    return commit_round(
        settings, population, round_, carry, totals, participants, work._replace(states=states), combined
    )


def commit_round(
    settings: Settings,
    population: Population,
    round_: Array,
    carry: Carry,
    totals: Totals,
    participants: Participants,
    work: Work,
    combined: Combined,
) -> RoundState:
    """The state after a round; with too few usable reports, or after the end of the run, the state before it."""
    if settings.functions.max_change is not None:
        carry, participants = keep_deployed(settings, population, carry, participants, work.states)
    states = trees.where(combined.accepted, work.states, participants.states)
    if not all_participate(settings, population):
        states = jax.tree.map(lambda old, new: old.at[participants.clients].set(new), carry.states, states)
    dropped = carry.dropped
    if dropped is not None:
        dropped = add_dropped(dropped, participants.clients, work.info["kept"], combined.accepted)
    ids, refused = participants.clients, (work.answered & ~combined.accepted).astype(jnp.int32)
    after = carry._replace(
        theta=combined.theta,
        states=states,
        server=combined.server,
        idle=jnp.int32(0),
        dropped=dropped,
        usual=combined.usual,
        refused=_add_refused(settings, population, carry.refused, ids, refused),
    )
    weighted = settings.scheme == "weighted"
    distinct = first_occurrence(participants.clients) if weighted else jnp.ones_like(combined.accepted)
    counts = RoundCounts(
        participants.clients,
        participants.weights,
        distinct,
        work.answered,
        combined.accepted,
        work.samples,
        work.regret,
        work.info,
        work.figures,
    )
    most = settings.local_steps * settings.sizes[-1] * (population.counts.size // population.weights.shape[0])
    counted = add_round(totals, round_, settings.local_steps, counts, most)
    if settings.min_reports == 0 and settings.stop is None:
        return RoundState(after, counted)
    idle = carry.idle + 1
    stopped = jnp.where(idle >= settings.patience, jnp.int32(round_), carry.stopped)
    skipped = RoundState(
        carry._replace(stopped=stopped, idle=idle, refused=after.refused), totals._replace(absent=counted.absent)
    )
    usable = jnp.sum(combined.accepted & (participants.weights > 0))  # a report without weight changes nothing
    counted_round = RoundState(_apply_stop_rule(settings, round_, after), counted)
    next_ = trees.where(usable < settings.min_reports, skipped, counted_round)
    return trees.where(carry.stopped >= 0, RoundState(carry, totals), next_)


def keep_deployed(
    settings: Settings, population: Population, carry: Carry, participants: Participants, after: Any
) -> tuple[Carry, Participants]:
    """Both with what the participants deployed last, from their states ``after`` the round: whatever becomes of it."""
    now = unpack(after)
    if not isinstance(now, ClientState):  # over Flower the clients keep their states
        return carry, participants
    last = now.last

    def with_last(states: Any, last: Any) -> Any:
        new = unpack(states)._replace(last=last)
        return pack(new, 1) if isinstance(states, Packed) else new

    own = with_last(participants.states, last)
    if all_participate(settings, population):
        return carry._replace(states=own), participants._replace(states=own)
    whole = jax.tree.map(lambda old, new: old.at[participants.clients].set(new), unpack(carry.states).last, last)
    return carry._replace(states=with_last(carry.states, whole)), participants._replace(states=own)


def _add_refused(settings: Settings, population: Population, before: Array, ids: Array, refused: Array) -> Array:
    """How often each client's report could not be used; a client drawn twice counts once."""
    if all_participate(settings, population):
        return before + refused
    return before.at[ids].max(before[ids] + refused)


def _apply_stop_rule(settings: Settings, round_: Array, carry: Carry) -> Carry:
    """The carry, marked as stopped where the rule of ``settings.stop`` says so."""
    if settings.stop is None:
        return carry
    expected = forecast(settings, carry.server)
    assert expected is not None
    why = settings.stop.why(expected, (round_ + 1) * settings.local_steps)
    return carry._replace(stopped=jnp.where(why > 0, jnp.int32(round_), carry.stopped), why=why)


def is_finite(loss: Array, state: Any) -> Array:
    """Whether the loss and the state of one client are finite, a scalar bool."""
    return trees.all_finite((loss, state))


def final_outputs(settings: Settings, population: Population, carry: Carry) -> Any:
    """What the method returns for every client at the end of a run, stacked; None if it returns nothing."""
    shapes = FINAL_SHAPES(settings, population, carry)
    return None if shapes is None else FINAL_OUTPUTS(settings, population, carry)


def _final_outputs(settings: Settings, population: Population, carry: Carry) -> Any:
    def one(row: Population, state: Any) -> Any:
        view, own = client_view(settings, row), unpack(state).own
        report = settings.method.report(view, own, carry.theta)
        return settings.method.final(view, own, entries.values(report))

    return jax.vmap(one)(population, carry.states)


def distrusted_on_host(settings: Settings, server: Any) -> dict[str, np.ndarray]:
    """The round from which on each client is distrusted, -1 where it is not, by the reason, as NumPy arrays."""
    return {why: np.asarray(since) for why, since in settings.method.distrusted(server).items()}


def posterior_on_host(settings: Settings, server: Any) -> Posterior | None:
    """What the method knows of the optimum, as NumPy arrays; None where it states nothing."""
    return settings.method.posterior(settings.server, server)


def _map_clients(function: Any, chunk: int | None, *rows: Any) -> Any:
    """``function`` of every row, ``chunk`` rows at a time; all at once if it is None."""
    return jax.vmap(function)(*rows) if chunk is None else trees.map_chunks(function, chunk, *rows)


FINISH_ROUND = compile_for_settings(finish_round, (1,))
"""``finish_round`` compiled, for engines that do not compile whole rounds."""
FINAL_OUTPUTS, FINAL_SHAPES = compile_for_settings(_final_outputs), shapes_for_settings(_final_outputs)
