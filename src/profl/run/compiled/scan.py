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

from profl import random, trees
from profl.interrupts import deferred_interrupts
from profl.methods.intervals import Posterior
from profl.methods.method import Forecast
from profl.packing import Packed, apply_unpacked, pack, unpack
from profl.progress import progress_bar
from profl.results.callbacks import Watch
from profl.results.measure import Trace
from profl.run.compiled import processes
from profl.run.compiled.placement import Placement, place
from profl.run.plan import CompiledPlan, Population, Settings, compile_for_settings, forecast
from profl.run.round import (
    FINAL_OUTPUTS,
    FINAL_SHAPES,
    Carry,
    RoundState,
    Work,
    choose_participants,
    collect_reports,
    distrusted_on_host,
    finish_round,
    initial_carry,
    is_finite,
    posterior_on_host,
)
from profl.run.step import Progress, client_view, local_steps, samples_wanted
from profl.run.totals import Totals, mean_dropped_share, totals_to_host, zero_counts, zero_totals
from profl.typing import Array, Key, Theta

MAX_RECORDS = 64  # records that a segment can hold
MAX_MODEL_BYTES = 2**26  # bytes of their models
SEGMENT_SECONDS = 0.25  # seconds: a segment that took less may be twice as long; one that took twice as much, half


class Records(NamedTuple):
    """The records of a run, each leaf of shape (seeds, records, ...). Checkpoints store the names of the fields."""

    theta: Theta
    tally: Totals  # between two records
    figures: dict[str, Array]  # means over all clients
    forecast: Forecast | None


class Span(NamedTuple):
    """The position of a segment in a run; not part of the compiled code."""

    first: Any  # its first record interval
    end: Any  # the one after its last
    record_every: Any
    rounds: Any


def run_compiled(plan: CompiledPlan, title: str, progress: bool, client_chunk: int | None, watch: Watch) -> Trace:
    """The trace of all seeds; Ctrl-C and callbacks end the run between two records."""
    settings, population, seeds = plan.settings, plan.population, len(plan.seeds)
    count, slots, size = math.ceil(settings.rounds / settings.record_every), records_per_segment(plan.models), 1
    filled = np.minimum(np.arange(shared_count(seeds)), seeds - 1)
    padded = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[filled]), plan.models)
    roots = random.root_keys(np.asarray(plan.seeds)[filled])
    placement = place(settings, population, padded, client_chunk)
    carry, population, roots = lay_out(plan, placement, initial_carries(settings, population, padded), roots)
    pieces: list[Records] = []
    ends, models, records_done = ends_of_seeds(carry, seeds), plan.models, 0
    with progress_bar(title, count, progress, compiles=True) as advance, deferred_interrupts() as pressed:
        while records_done < count and not is_over(ends) and not watch.stopped:
            started, end = time.perf_counter(), min(records_done + size, count)
            span = Span(records_done, end, settings.record_every, settings.rounds)
            carry, out = segment(settings, placement, slots, carry, population, roots, span)
            ends = ends_of_seeds(carry, seeds)
            pieces.append(trees.take(records_to_host(out), (slice(seeds), slice(end - records_done))))
            advance(end - records_done)
            watch.record(make_trace(models, pieces[-1], ends), records_done * settings.record_every)
            models, records_done = trees.take(pieces[-1].theta, (slice(None), -1)), end
            size = 1 if watch.active else next_segment_size(size, time.perf_counter() - started, slots)
            size = processes.agree_to_go_on(watch, pressed(), size)
    records = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *pieces)
    carry = processes.gathered(carry)
    last = trees.take(final_outputs_on_host(plan, carry), slice(seeds))
    distrusted = trees.take(distrusted_on_host(settings, carry.server), slice(seeds))
    known = trees.take(posterior_on_host(settings, carry.server), slice(seeds))
    return make_trace(plan.models, pad_records(records, count, ends), ends, last, distrusted, known)


def lay_out(plan: CompiledPlan, placement: Placement, carry: Carry, roots: Key) -> tuple[Carry, Population, Key]:
    """The arrays that a segment works on, over the devices of all processes where there are several."""
    layout = processes.Layout(placement.mesh, placement.axis, plan.settings.clients)
    return layout.spread(carry, plan.population, roots)


def ends_of_seeds(carry: Carry, seeds: int) -> Carry:
    """The carry of the first ``seeds`` seeds without states: what tells whether a run is over, and how it went."""
    ends = processes.gathered(carry._replace(states=(), server=()))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:seeds], ends)


def shared_count(seeds: int) -> int:
    """The number of seeds, the last one repeated, that a program is compiled for, so that many runs share it.

    Over several devices it stays what it is, because it decides how work is divided.

    >>> [shared_count(seeds) for seeds in (1, 7, 9, 11, 100)]  # less than a quarter is for nothing
    [1, 7, 10, 12, 112]
    """
    step = max(1, 2 ** (seeds.bit_length() - 3))
    return seeds if jax.device_count() > 1 else -(-seeds // step) * step


def records_per_segment(models: Theta) -> int:
    """The largest number of records of a segment."""
    return max(1, min(MAX_RECORDS, MAX_MODEL_BYTES // sum(leaf.nbytes for leaf in jax.tree.leaves(models))))


def next_segment_size(size: int, seconds: float, most: int) -> int:
    """The number of records of the next segment, after one of ``size`` records that took ``seconds``."""
    if seconds < SEGMENT_SECONDS:
        return min(2 * size, most)
    return max(size // 2, 1) if seconds > 2 * SEGMENT_SECONDS else size


def is_over(carry: Carry) -> bool:
    """Whether every seed has stopped, or one was stopped because too few reports came."""
    stopped, why = np.asarray(carry.stopped), np.asarray(carry.why)
    return bool(np.all(stopped >= 0) or np.any((stopped >= 0) & (why == 0)))


def pad_records(records: Records, count: int, carry: Carry) -> Records:
    """All ``count`` records: if all seeds settled early, the last model is repeated with zero counts."""
    if not np.all(np.asarray(carry.why) > 0):
        return records
    last = jax.tree.map(lambda leaf: leaf[:, -1:], records)
    last = last._replace(tally=zero_counts(last.tally))
    missing = count - records.tally.regret.shape[1]
    return jax.tree.map(lambda leaf, end: np.concatenate([leaf, np.repeat(end, missing, 1)], axis=1), records, last)


def make_trace(
    models: Theta,
    records: Records,
    carry: Carry,
    last: Any = None,
    distrusted: dict[str, np.ndarray] | None = None,
    known: Posterior | None = None,
) -> Trace:
    """The records as a trace, with the ``models`` before them; ``last`` is what the method returns for its clients."""
    joined = jax.tree.map(
        lambda start, later: np.concatenate([np.asarray(start)[:, None], later], axis=1), models, records.theta
    )
    ends = np.asarray(carry.stopped), np.asarray(carry.why)
    dropped = None if carry.dropped is None else mean_dropped_share(carry.dropped)
    totals = records.tally._asdict()
    return Trace(joined, totals, records.figures, last, records.forecast, *ends, dropped, distrusted or {}, known)


def final_outputs_on_host(plan: CompiledPlan, carry: Carry) -> Any:
    """What the method returns for every client at the end, as NumPy arrays (seeds, clients, ...)."""
    settings, population = plan.settings, plan.population
    if FINAL_SHAPES(settings, population, trees.row_shape(carry)) is None:
        return None
    return jax.tree.map(np.asarray, _final_outputs_of_seeds(settings, population, carry))


def records_to_host(packed: Packed) -> Records:
    """The records as NumPy arrays."""
    records = jax.tree.map(np.asarray, packed).unpack()
    return records._replace(tally=totals_to_host(records.tally))


@compile_for_settings
def _final_outputs_of_seeds(settings: Settings, population: Population, carry: Carry) -> Any:
    """``final_outputs`` for every seed, of a method that has some."""
    return jax.vmap(partial(FINAL_OUTPUTS, settings, population))(carry)


@compile_for_settings
def initial_carries(settings: Settings, population: Population, models: Theta) -> Carry:
    """The carry before the first round, for every seed; on a CPU the states of the clients are packed.

    An accelerator would take as long to gather them into rows, in every step, as to read a batch.
    """
    carry = jax.vmap(partial(initial_carry, settings, population))(models)
    return carry._replace(states=pack(carry.states, 2)) if jax.default_backend() == "cpu" else carry


@partial(compile_for_settings, static=(1, 2), donated=(3,))
def segment(
    settings: Settings,
    placement: Placement,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    span: Span,
) -> tuple[Carry, Packed]:
    """The carry and the packed ``Records`` of a span, for every seed; ``records`` is the largest number of records."""
    work = partial(_records, settings, placement, records)
    if placement.devices > 1 and placement.axis == "seeds":  # each device holds all clients and works alone
        seeds, same = PartitionSpec("seeds"), PartitionSpec()
        shards = (seeds, same, seeds, same)
        work = jax.shard_map(work, mesh=placement.mesh, in_specs=shards, out_specs=(seeds, seeds), check_vma=False)
    with jax.default_matmul_precision("highest"):  # accelerators would round the factors of products
        carry, out = work(carry, population, roots, span)
    return processes.Layout(placement.mesh, placement.axis, settings.clients).constrain(carry, out)


def _records(
    settings: Settings,
    placement: Placement,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    span: Span,
) -> tuple[Carry, Packed]:
    """``segment`` on one device."""
    seed_chunk = placement.seed_chunk

    def some_seeds(group: tuple[Carry, Key]) -> tuple[Carry, Packed]:
        carry, roots = group
        # Means over samples are products with their weights: were these without the axis of seeds, XLA would transpose.
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seed_chunk, *leaf.shape)), population)

        def interval(carry: Carry, record: Array) -> tuple[Carry, Packed]:
            start, in_run = record * span.record_every, record < span.end
            stop = jnp.where(in_run, jnp.minimum(start + span.record_every, span.rounds), start)

            def body(round_: Array, state: RoundState) -> RoundState:
                def with_batches_of(n: int) -> RoundState:
                    def one_seed(root: Key, population: Population, before: RoundState) -> RoundState:
                        before = before._replace(totals=before.totals.unpack())
                        after = simulated_round(settings, n, placement, population, root, round_, before)
                        return after._replace(totals=pack(after.totals))

                    return trees.map_chunks(one_seed, seed_chunk, roots, copies, state)

                return _switch_batch_size(settings, state.carry.states, with_batches_of)

            totals = trees.repeat(pack(zero_totals(settings.method.info)), seed_chunk)
            carry, totals = jax.lax.fori_loop(start, stop, body, RoundState(carry, totals))
            extra = trees.cond_or_zeros(in_run, figures, carry).unpack()
            return carry, pack(Records(carry.theta, totals.unpack(), *extra), 1)

        def figures(carry: Carry) -> Packed:
            figures_of_seeds = jax.vmap(partial(_figures, settings, placement.client_chunk, population))(carry)
            return pack((figures_of_seeds, jax.vmap(lambda carry: forecast(settings, carry.server))(carry)), 1)

        carry, by_record = jax.lax.scan(interval, carry, span.first + jnp.arange(records))
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), by_record)

    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, seed_chunk, *leaf.shape[1:]), (carry, roots))
    results = trees.map_chunks(lambda *group: some_seeds(group), 1, *groups)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)


def _switch_batch_size(settings: Settings, states: Any, work: Callable[[int], Any]) -> Any:
    """``work(n)`` with the smallest compiled batch size n that is enough for every client."""
    sizes = settings.sizes
    if len(sizes) == 1:
        return work(sizes[0])
    most = jnp.max(settings.method.samples_wanted(unpack(states).own))
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(sizes), most), [partial(work, size) for size in sizes])


def _figures(settings: Settings, chunk: int, population: Population, carry: Carry) -> dict[str, Array]:
    """The method's figures at the global model, by name: means over the clients of one seed."""

    def of_one(row: Population, state: Any) -> Packed:
        view = client_view(settings, row)
        return pack(apply_unpacked(lambda state: settings.method.figures(view, state.own, carry.theta), state))

    each = trees.map_chunks(of_one, chunk, population, carry.states)
    return jax.tree.map(lambda rows: jnp.mean(rows, 0), each).unpack()


def simulated_round(
    settings: Settings,
    n: int,
    placement: Placement,
    population: Population,
    root: Key,
    round_: Array,
    before: RoundState,
) -> RoundState:
    """The state of one seed after one more round, in batches of n."""
    carry = before.carry
    participants = choose_participants(settings, population, root, round_, carry)

    def local(root: Key, round_: Array, theta: Theta, *rows: Any) -> Progress:
        steps = partial(local_steps, settings, n, root, round_, theta)
        return trees.map_chunks(steps, placement.client_chunk, *rows)

    if placement.devices > 1 and placement.axis == "clients":  # each device its part of them; the rest XLA spreads
        same, rows = PartitionSpec(), PartitionSpec("clients")
        shards = (same, same, same, rows, rows, rows)
        local = jax.shard_map(local, mesh=placement.mesh, in_specs=shards, out_specs=rows, check_vma=False)
    progress = local(root, round_, carry.theta, participants.clients, participants.rows, participants.states)
    wanted = samples_wanted(settings, participants.rows, participants.states)
    info = jax.tree.map(lambda total: total / settings.local_steps, progress.info)
    chunk, reports = placement.client_chunk, None
    if not settings.method.exchanges:  # else every turn collects them, the first one too
        reports = collect_reports(settings, participants.rows, progress.state, progress.theta)
    work = Work(
        states=progress.state,
        reports=reports,
        regret=progress.regret,
        info=info,
        figures={},
        samples=settings.local_steps * wanted.reshape(wanted.shape[0], -1).sum(1),
        answered=jnp.ones(participants.clients.shape, bool),
        finite=jax.vmap(is_finite)(info["loss"], progress.state),
    )
    return finish_round(settings, chunk, population, root, round_, before, participants, work, progress.theta)
