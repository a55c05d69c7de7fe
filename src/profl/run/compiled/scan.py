"""Every client of every seed at once: jit, vmap over clients and seeds, loops over steps and rounds.

Memory is bounded by chunks: at most a block of sampled numbers is alive at a time, whatever the number of clients
and seeds (``placement``). Rounds run in segments of one compiled program, each some tenths of a second, so that
progress can be shown, Ctrl-C answered, and what is finished lies on the host. The length of a run or a segment is no
part of the program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from profl import trees
from profl.interrupts import deferred_interrupts
from profl.methods.method import Forecast
from profl.progress import progress_bar
from profl.results.callbacks import Watch
from profl.results.measure import Trace
from profl.run.compiled.placement import Placement, place
from profl.run.dropped import mean_share
from profl.run.plan import Plan, Population, Settings, compiled, forecast
from profl.run.round import Carry, Work, ask, begin, close, final, reports, sound
from profl.run.step import Progress, client_view, local_steps, samples_wanted
from profl.run.tally import Tally, empty_tally, no_more, on_host
from profl.typing import Array, Key, Theta

SLOTS = 64  # records that a segment can hold
MODELS = 2**26  # bytes of their models
QUICK = 0.25  # seconds: a segment that took less may be twice as long; one that took twice as much, half


class Records(NamedTuple):
    """What a run hands over at its records: seeds x records."""

    theta: Theta
    tally: Tally
    figures: dict[str, Array]  # means over all clients
    forecast: Forecast | None


class Span(NamedTuple):
    """Where a segment stands in a run; no part of its code."""

    first: Any  # its first record interval
    end: Any  # the one after its last
    record_every: Any
    rounds: Any


def run_compiled(plan: Plan, title: str, progress: bool, client_chunk: int | None, watch: Watch) -> Trace:
    """The trace of all seeds, as far as the run went: Ctrl-C and callbacks end it between two records."""
    settings, population = plan.settings, plan.population
    records, slots, size = math.ceil(settings.rounds / settings.record_every), room(plan.models), 1
    placement = place(settings, population, plan.models, client_chunk)
    carry = start(settings, population, plan.models)
    pieces: list[Records] = []
    models, done = plan.models, 0
    with progress_bar(title, records, progress, compiles=True) as advance, deferred_interrupts() as pressed:
        while done < records and not over(carry) and not watch.stopped:
            began, end = time.perf_counter(), min(done + size, records)
            span = Span(done, end, settings.record_every, settings.rounds)
            carry, out = segment(settings, placement, slots, carry, population, plan.roots, span)
            pieces.append(jax.tree.map(lambda leaf, k=end - done: leaf[:, :k], records_on_host(out)))
            advance(end - done)
            watch.record(trace(models, pieces[-1], carry), done * settings.record_every)
            models, done = trees.take(pieces[-1].theta, (slice(None), -1)), end
            if pressed():
                watch.interrupt()
            size = 1 if watch.active else paced(size, time.perf_counter() - began, slots)
    found = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *pieces)
    return trace(plan.models, filled(found, records, carry), carry, ended(plan, carry))


def room(models: Theta) -> int:
    """How many records a segment hands over at most."""
    return max(1, min(SLOTS, MODELS // sum(leaf.nbytes for leaf in jax.tree.leaves(models))))


def paced(size: int, seconds: float, most: int) -> int:
    """How many records the next segment is to have, after one of ``size`` that took so long."""
    if seconds < QUICK:
        return min(2 * size, most)
    return max(size // 2, 1) if seconds > 2 * QUICK else size


def over(carry: Carry) -> bool:
    """Whether nothing is left to do: every seed is done, or one was given up for too few reports."""
    stopped, why = np.asarray(carry.stopped), np.asarray(carry.why)
    return bool(np.all(stopped >= 0) or np.any((stopped >= 0) & (why == 0)))


def filled(found: Records, records: int, carry: Carry) -> Records:
    """All records of seeds that were done before the last one: then the last model again, and no counts."""
    if not np.all(np.asarray(carry.why) > 0):
        return found
    last = jax.tree.map(lambda leaf: leaf[:, -1:], found)
    last = last._replace(tally=no_more(last.tally))
    missing = records - found.tally.regret.shape[1]
    return jax.tree.map(lambda leaf, end: np.concatenate([leaf, np.repeat(end, missing, 1)], axis=1), found, last)


def trace(models: Theta, records: Records, carry: Carry, last: Any = None) -> Trace:
    """What is handed over to be measured: the records with the ``models`` before them; ``last`` is what clients had."""
    joined = jax.tree.map(
        lambda start, later: np.concatenate([np.asarray(start)[:, None], later], axis=1), models, records.theta
    )
    ends = np.asarray(carry.stopped), np.asarray(carry.why)
    dropped = None if carry.dropped is None else mean_share(carry.dropped)
    return Trace(joined, records.tally._asdict(), records.figures, last, records.forecast, *ends, dropped)


def ended(plan: Plan, carry: Carry) -> Any:
    """What the run keeps of its clients."""
    return jax.tree.map(np.asarray, at_the_end(plan.settings, plan.population, carry))


def records_on_host(records: Records) -> Records:
    found = jax.tree.map(np.asarray, records)
    return found._replace(tally=on_host(records.tally))


@compiled
def at_the_end(settings: Settings, population: Population, carry: Carry) -> Any:
    return jax.vmap(partial(final, settings, population))(carry)


@compiled
def start(settings: Settings, population: Population, models: Theta) -> Carry:
    return jax.vmap(partial(begin, settings, population))(models)


@partial(compiled, static=(1, 2), donated=(3,))
def segment(
    settings: Settings,
    placement: Placement,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    span: Span,
) -> tuple[Carry, Records]:
    """The record intervals of a span, of every seed; ``records`` is how many there may be."""
    work = partial(_records, settings, placement, records)
    if placement.devices > 1 and placement.over == "seeds":  # each device holds all clients and works alone
        seeds, same = PartitionSpec("seeds"), PartitionSpec()
        shards = (seeds, same, seeds, same)
        work = jax.shard_map(work, mesh=placement.mesh, in_specs=shards, out_specs=(seeds, seeds), check_vma=False)
    with jax.default_matmul_precision("highest"):  # accelerators would round the factors of products
        return work(carry, population, roots, span)


def _records(
    settings: Settings,
    placement: Placement,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    span: Span,
) -> tuple[Carry, Records]:
    """``segment`` on one device."""
    seed_chunk = placement.seed_chunk

    def some_seeds(group: tuple[Carry, Key]) -> tuple[Carry, Records]:
        carry, roots = group
        # Means over samples are products with their weights: were these without the axis of seeds, XLA would transpose.
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seed_chunk, *leaf.shape)), population)

        def interval(carry: Carry, record: Array) -> tuple[Carry, Records]:
            start, there = record * span.record_every, record < span.end
            stop = jnp.where(there, jnp.minimum(start + span.record_every, span.rounds), start)

            def body(round_: Array, state: tuple[Carry, Tally]) -> tuple[Carry, Tally]:
                def at(n: int) -> tuple[Carry, Tally]:
                    def one(root: Key, population: Population, carry: Carry, tally: Tally) -> tuple[Carry, Tally]:
                        return one_round(settings, n, placement, population, root, round_, carry, tally)

                    return trees.map_chunks(one, seed_chunk, roots, copies, *state)

                return _at_size(settings, state[0].states, at)

            nothing = empty_tally(settings.method.info)
            tally = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seed_chunk,)), nothing)
            carry, tally = jax.lax.fori_loop(start, stop, body, (carry, tally))
            return carry, Records(carry.theta, tally, *trees.cond_or_zeros(there, figures, carry))

        def figures(carry: Carry) -> tuple[dict[str, Array], Forecast | None]:
            own = jax.vmap(partial(_figures, settings, placement.client_chunk, population))(carry)
            return own, jax.vmap(lambda carry: forecast(settings, carry.server))(carry)

        carry, found = jax.lax.scan(interval, carry, span.first + jnp.arange(records))
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), found)

    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, seed_chunk, *leaf.shape[1:]), (carry, roots))
    done = trees.map_chunks(lambda *group: some_seeds(group), 1, *groups)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), done)


def _at_size(settings: Settings, states: Any, work: Callable[[int], Any]) -> Any:
    """``work`` with the least of the compiled batch sizes that holds what every client wants to draw."""
    sizes = settings.sizes
    if len(sizes) == 1:
        return work(sizes[0])
    most = jnp.max(settings.method.samples_wanted(states.own))
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(sizes), most), [partial(work, size) for size in sizes])


def _figures(settings: Settings, chunk: int, population: Population, carry: Carry) -> dict[str, Array]:
    """The method's figures at the global model, means over the clients of one seed."""

    def of_one(row: Population, state: Any) -> dict[str, Array]:
        return settings.method.figures(client_view(settings, row), state.own, carry.theta)

    return jax.tree.map(jnp.mean, trees.map_chunks(of_one, chunk, population, carry.states))


def one_round(
    settings: Settings,
    n: int,
    placement: Placement,
    population: Population,
    root: Key,
    round_: Array,
    carry: Carry,
    tally: Tally,
) -> tuple[Carry, Tally]:
    """One round of one seed, in batches of n."""
    asked = ask(settings, population, root, round_, carry)

    def local(root: Key, round_: Array, theta: Theta, *rows: Any) -> Progress:
        steps = partial(local_steps, settings, n, root, round_, theta)
        return trees.map_chunks(steps, placement.client_chunk, *rows)

    if placement.devices > 1 and placement.over == "clients":  # each device its part of them; the rest XLA spreads
        same, rows = PartitionSpec(), PartitionSpec("clients")
        shards = (same, same, same, rows, rows, rows)
        local = jax.shard_map(local, mesh=placement.mesh, in_specs=shards, out_specs=rows, check_vma=False)
    done = local(root, round_, carry.theta, asked.clients, asked.rows, asked.states)
    wanted = samples_wanted(settings, asked.rows, asked.states)
    info = jax.tree.map(lambda total: total / settings.local_steps, done.info)
    chunk = placement.client_chunk
    work = Work(
        states=done.state,
        reports=reports(settings, asked.rows, done.state, done.theta, chunk if settings.method.exchanges else None),
        regret=done.regret,
        info=info,
        figures={},
        samples=settings.local_steps * wanted.reshape(wanted.shape[0], -1).sum(1),
        answered=jnp.ones(asked.clients.shape, bool),
        sound=jax.vmap(sound)(info["loss"], done.state),
    )
    return close(settings, chunk, population, root, round_, carry, tally, asked, work)
