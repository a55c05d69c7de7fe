"""The fast engine: every client of every seed at once, compiled (jit, vmap over clients and seeds, scan over rounds).

Memory is bounded by chunks: at most a block of sampled numbers is alive at a time, whatever the number of clients
and seeds (``profl.engines.spread``). Rounds run in a few segments of one compiled program, so that progress can be
shown and what is finished lies on the host.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from profl import checks, random, trees
from profl.algorithms.base import Algorithm
from profl.client.step import State, deploy, step
from profl.engines.debug import run_debug
from profl.engines.fingerprint import fingerprint
from profl.engines.plan import (
    Plan,
    Population,
    Settings,
    describe,
    draw,
    first_states,
    hand_out,
    make_plan,
    own_jacobians,
    poison,
    stated_errors,
)
from profl.engines.spread import Spread, spread_out
from profl.problem.oracle import told_jacobian
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.results.record import Jacobians, Run, Trace, make_run
from profl.server.aggregate import receive, weighted_mean
from profl.server.attacks import Report, apply
from profl.server.participation import choose, first_occurrence
from profl.storage.checkpoints import Checkpoints
from profl.typing import Array, Batch, Client, Key, Theta

_SEGMENTS = 20


class Carry(NamedTuple):
    """What goes from round to round, for one seed."""

    theta: Theta
    states: State  # one row per client
    first: Theta  # the model that the run began with
    stopped: Array  # the round in which too few reports could be used, -1 where there was none


class Count(NamedTuple):
    """A whole number past 2**31, in two of 32 bits: ``units + 1024 * thousands``."""

    units: Array
    thousands: Array


class Tally(NamedTuple):
    """What is counted between two records, for one seed."""

    regret: Array  # sum over local steps of the participants' weighted risk above L(PO)
    deployments: Any  # a Count on the device, on the host one number; so are the samples
    samples: Any
    refused: Array
    bad_round: Array  # of the first refused report, -1 where there was none
    bad_client: Array
    kept: Array  # sum over rounds of the share of the samples' weight that passed the filter
    jacobian_error: Array  # at the record: mean squared error of an entry of J as the clients state it
    jacobian_off: Array  # ... and as it is; both NaN where nobody estimates J or knows it


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int,
    local_steps: int = 5,
    samples: Any = 500,
    seeds: Iterable[int] | int = range(10),
    participation: float = 1.0,
    scheme: str = "uniform",
    record_every: int = 1,
    initial: Theta | None = None,
    attack: Any = None,
    hostile: Any = 0.2,
    min_reports: int = 0,
    progress: bool = True,
    engine: str = "fast",
    client_chunk: int | None = None,
    prng: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callbacks: Iterable[Callable[[Run], None]] = (),
) -> Run:
    """Run ``algorithm`` on ``problem`` for ``rounds`` rounds and measure it against the exact answers.

    It computes in JAX's current precision: single unless ``jax.enable_x64`` is on. Exact answers are always double.

    Args:
      local_steps: R, steps per round; each deploys and draws fresh data.
      samples: n_i per deployment: one number, or one per client; the first one where the algorithm adapts it.
      seeds: one run each; a seed fixes the start and every draw.
      participation: share of clients asked per round, in (0, 1].
      scheme: "uniform" (without replacement) or "weighted" (by alpha_i, with replacement).
      record_every: rounds between two records; the start and the last round are always recorded.
      initial: the model to start from, instead of the problem's own start.
      attack: what hostile clients do: a name of ``profl.ATTACKS`` or a ``profl.Attack``.
      hostile: which clients do it: a share of them, spread evenly, or their numbers.
      min_reports: stop with ``profl.TooFewReports``, which holds what was done, when fewer can be used in a round.
      progress: show a progress bar on a terminal.
      engine: "fast", or "debug": a plain loop that names client, round and stage in its errors.
      client_chunk: clients worked on at once, which bounds memory; by itself, what a cache or an accelerator holds.
      prng: how Threefry's rounds are written, "unrolled" or "stock": the same numbers; "auto" is what is fast here.
      checkpoint: a folder; after every round all that the next one needs is written there ("fast" only).
      resume: go on from the newest checkpoint in that folder.
      callbacks: called with the finished run; ready ones are in ``profl.results.tracking``.

    >>> import profl
    >>> case = profl.cases.housing(clients=4, heterogeneity=0)
    >>> run = profl.simulate(case, profl.pofl(), rounds=100, samples=200, seeds=range(2), progress=False)
    >>> bool(run.tail_excess().mean() < 0.05)
    True
    """
    checks.one_of("engine", engine, ["fast", "debug"])
    if checkpoint is not None and engine != "fast":
        raise checks.InputError("checkpoint needs engine='fast'")
    plan = make_plan(
        problem,
        algorithm,
        rounds=rounds,
        local_steps=local_steps,
        samples=samples,
        seeds=seeds,
        participation=participation,
        scheme=scheme,
        record_every=record_every,
        initial=initial,
        attack=attack,
        hostile=hostile,
        min_reports=min_reports,
        prng=prng,
    )
    started = time.perf_counter()
    title = f"{algorithm.name} on {problem.name}"
    if checkpoint is not None:
        from profl.engines.saved import run_saved

        saved = Checkpoints(checkpoint, fingerprint("simulate", problem, algorithm, plan), resume)
        trace, stopped = run_saved(plan, title, progress, saved, client_chunk)
    else:
        trace, stopped = run_debug(plan) if engine == "debug" else _run(plan, title, progress, client_chunk)
    run = make_run(problem, algorithm, trace, describe(plan), time.perf_counter() - started)
    if np.any(stopped >= 0):
        raise checks.TooFewReports(_why_stopped(plan, stopped), run)
    for callback in callbacks:
        callback(run)
    return run


def _why_stopped(plan: Plan, stopped: np.ndarray) -> str:
    seed = int(np.argmax(stopped >= 0))
    return (
        f"seed {plan.seeds[seed]}, round {int(stopped[seed]) + 1}: fewer than min_reports={plan.settings.min_reports} "
        f"of the {plan.settings.slots} reports could be used; what was done until then is in the error's .run"
    )


def _run(plan: Plan, title: str, progress: bool, client_chunk: int | None) -> tuple[Trace, np.ndarray]:
    """The trace, and the round in which each seed was stopped (-1: it was not)."""
    settings, population = plan.settings, plan.population
    records = math.ceil(settings.rounds / settings.record_every)
    per_segment = math.ceil(records / min(records, _SEGMENTS))
    spread = spread_out(settings, population, plan.models, client_chunk)
    carry = _start(settings, population, plan.models)
    pieces = [(jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], plan.models), None)]
    with progress_bar(title, records, progress) as advance:
        for first in range(0, records, per_segment):
            carry, out = _segment(settings, spread, per_segment, carry, population, plan.roots, first)
            done = min(per_segment, records - first)
            pieces.append(jax.tree.map(lambda leaf, k=done: leaf[:, :k], _on_host(out)))
            advance(done)
            if np.any(np.asarray(carry.stopped) >= 0):
                break
    models = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[models for models, _ in pieces])
    tallies = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[tally for _, tally in pieces[1:]])
    final = None if not settings.recipe.share else _final(settings, carry.states)
    return Trace(theta=models, **tallies._asdict(), final=final), np.asarray(carry.stopped)


def _on_host(records: tuple[Theta, Tally]) -> tuple[Theta, Tally]:
    """Records as NumPy arrays, with counts as single numbers of 64 bits."""
    models, tally = jax.tree.map(np.asarray, records)
    whole = {
        name: count.units + 1024 * count.thousands.astype(np.int64)
        for name, count in (("deployments", tally.deployments), ("samples", tally.samples))
    }
    return models, tally._replace(**whole)


def _final(settings: Settings, states: State) -> Jacobians:
    own = jax.vmap(partial(own_jacobians, settings))(states)
    return Jacobians(np.asarray(own), np.asarray(states.shared.jacobian), np.asarray(states.shared.group))


@partial(jax.jit, static_argnums=0)
def _start(settings: Settings, population: Population, models: Theta) -> Carry:
    def start(theta: Theta) -> Carry:
        return Carry(theta, first_states(settings, population, theta), theta, jnp.int32(-1))

    return jax.vmap(start)(models)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _segment(
    settings: Settings,
    spread: Spread,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    first: Array,
) -> tuple[Carry, tuple[Theta, Tally]]:
    """``records`` record intervals of every seed; intervals past the last round change nothing."""
    work = partial(_records, settings, spread, records)
    if spread.devices > 1 and spread.over == "seeds":  # each device holds all clients and works alone
        seeds, same = PartitionSpec("seeds"), PartitionSpec()
        shards = (seeds, same, seeds, same)
        work = jax.shard_map(work, mesh=spread.mesh, in_specs=shards, out_specs=(seeds, seeds), check_vma=False)
    with jax.default_matmul_precision("highest"):  # accelerators would round the factors of products
        return work(carry, population, roots, jnp.asarray(first))


def _records(
    settings: Settings,
    spread: Spread,
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    first: Array,
) -> tuple[Carry, tuple[Theta, Tally]]:
    """``_segment`` on one device."""
    seed_chunk = spread.seed_chunk

    def some_seeds(group: tuple[Carry, Key]) -> tuple[Carry, tuple[Theta, Tally]]:
        carry, roots = group
        # Means over samples are products with their weights: were these without the axis of seeds, XLA would transpose.
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seed_chunk, *leaf.shape)), population)

        def interval(carry: Carry, record: Array) -> tuple[Carry, tuple[Theta, Tally]]:
            start = record * settings.record_every
            stop = jnp.minimum(start + settings.record_every, settings.rounds)

            def body(round_: Array, state: tuple[Carry, Tally]) -> tuple[Carry, Tally]:
                def at(n: int) -> tuple[Carry, Tally]:
                    def one(root: Key, population: Population, carry: Carry, tally: Tally) -> tuple[Carry, Tally]:
                        return _round(settings, n, spread, population, root, round_, carry, tally)

                    return trees.map_chunks(one, seed_chunk, roots, copies, *state)

                return _at_size(settings, state[0].states, at)

            tally = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seed_chunk,)), _empty_tally())
            carry, tally = jax.lax.fori_loop(start, stop, body, (carry, tally))
            stated, off = jax.vmap(partial(_jacobian_errors, settings, spread.client_chunk, population))(carry)
            return carry, (carry.theta, tally._replace(jacobian_error=stated, jacobian_off=off))

        carry, records_ = jax.lax.scan(interval, carry, first + jnp.arange(records))
        return carry, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), records_)

    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, seed_chunk, *leaf.shape[1:]), (carry, roots))
    done = trees.map_chunks(lambda *group: some_seeds(group), 1, *groups)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), done)


def _at_size(settings: Settings, states: State, work: Callable[[int], Any]) -> Any:
    """``work`` with the least of the compiled batch sizes that holds what every client wants to draw."""
    sizes = settings.sizes
    if len(sizes) == 1:
        return work(sizes[0])
    index = jnp.searchsorted(jnp.asarray(sizes), jnp.max(states.samples))
    return jax.lax.switch(index, [partial(work, size) for size in sizes])


def _empty_tally() -> Tally:
    zero = jnp.zeros((), jnp.int32)
    unknown = jnp.full((), jnp.nan)
    none = Count(zero, zero)
    return Tally(jnp.zeros(()), none, none, zero, zero - 1, zero - 1, jnp.zeros(()), unknown, unknown)


def _jacobian_errors(settings: Settings, chunk: int, population: Population, carry: Carry) -> tuple[Array, Array]:
    """Mean squared error of an entry of J over the clients of one seed: as they state it, and at the global model."""
    recipe, rules = settings.recipe, settings.rules
    if recipe.estimator is None:
        return jnp.full((), jnp.nan), jnp.full((), jnp.nan)

    def errors(client: Client, state: State) -> tuple[Array, Array]:
        stated = jnp.mean(recipe.estimator.error(state.jacobian))
        if rules.reaction.parameters is None:
            return stated, jnp.full((), jnp.nan)
        used = recipe.estimator.estimate(state.jacobian)
        if recipe.share:
            used = jnp.where(state.shared.ready, state.shared.jacobian, used)
        to_theta = jax.vmap(lambda row: trees.ravel(jax.vjp(rules.signal, carry.theta)[1](row)[0]))
        return stated, jnp.mean((to_theta(used) - told_jacobian(rules.reaction, carry.theta, client)) ** 2)

    both = trees.map_chunks(errors, chunk, population.clients, carry.states)
    return jnp.mean(both[0]), jnp.mean(both[1])


def _round(
    settings: Settings,
    n: int,
    spread: Spread,
    population: Population,
    root: Key,
    round_: Array,
    carry: Carry,
    tally: Tally,
) -> tuple[Carry, Tally]:
    """One round of one seed (Algorithm 1, lines 3-21), in batches of n."""
    everyone = settings.scheme == "uniform" and settings.slots == population.weights.shape[0]
    chosen, weights = choose(
        random.participation_key(root, round_), settings.scheme, settings.slots, population.weights
    )
    asked, states = (population, carry.states) if everyone else trees.take((population, carry.states), chosen)

    def local(root: Key, round_: Array, theta: Theta, *rows: Any) -> tuple[Theta, State, Array, Array, Array]:
        return trees.map_chunks(partial(_local_steps, settings, n, root, round_, theta), spread.client_chunk, *rows)

    if spread.devices > 1 and spread.over == "clients":  # each device does its part of them; the rest is spread by XLA
        same, rows = PartitionSpec(), PartitionSpec("clients")
        shards = (same, same, same, rows, rows, rows)
        local = jax.shard_map(local, mesh=spread.mesh, in_specs=shards, out_specs=rows, check_vma=False)
    models, new_states, losses, regrets, kept = local(root, round_, carry.theta, chosen, asked, states)
    reports = Report(models, losses, own_jacobians(settings, new_states), stated_errors(settings, new_states))
    if settings.attack is not None:
        reports = apply(settings.attack, reports, carry.theta, carry.first, asked.hostile)
    sound = jax.vmap(lambda loss, memory: trees.all_finite((loss, memory)))(losses, new_states.jacobian)
    answer = receive(
        settings.rule, settings.clusters, random.server_key(root, round_), reports, weights, sound, carry.theta
    )
    new_states = trees.where(answer.accepted, hand_out(new_states, answer), states)
    if not everyone:
        new_states = jax.tree.map(lambda all_, new: all_.at[chosen].set(new), carry.states, new_states)
    drawn = asked.counts if settings.recipe.size is None else states.samples
    after = Carry(answer.theta, new_states, carry.first, carry.stopped)
    tally_after = _count(settings, tally, round_, chosen, drawn, weights, answer.accepted, regrets, kept)
    if settings.min_reports == 0:
        return after, tally_after
    few = (jnp.sum(answer.accepted) < settings.min_reports) | (carry.stopped >= 0)
    halted = carry._replace(stopped=jnp.where(carry.stopped >= 0, carry.stopped, jnp.int32(round_)))
    return trees.where(few, (halted, tally), (after, tally_after))


def _local_steps(
    settings: Settings, n: int, root: Key, round_: Array, theta: Theta, client: Array, row: Population, state: State
) -> tuple[Theta, State, Array, Array, Array]:
    """R local steps of one client: model, state, last loss, the risk it deployed above L_i(PO), and the share kept."""
    rules, reaction = settings.rules, settings.rules.reaction
    weights = reaction.weights(row.clients, n, row.counts if settings.recipe.size is None else state.samples)

    def drawn(key: Key, deployed: Theta) -> Batch:
        make = partial(draw, settings, key, deployed, row.clients, n)
        return make() if settings.recipe.filter is None else trees.written(make, round_ >= 0)

    def body(carry: tuple[Theta, State, Array], r: Array) -> tuple[tuple[Theta, State, Array], tuple[Array, Array]]:
        theta, state, regret = carry
        key = random.data_key(root, client, round_ * settings.local_steps + r)
        deployed, state = deploy(rules, settings.recipe, state, key, theta)
        batch = drawn(key, deployed)
        told = told_jacobian(reaction, deployed, row.clients) if settings.recipe.told else None
        if settings.measured:
            regret = regret + deployed_risk(settings, deployed, row.clients) - row.floor
        last = r == settings.local_steps - 1
        poisoned = poison(settings, row.hostile)
        theta, state, info = step(rules, settings.recipe, state, theta, batch, weights, told, deployed, poisoned, last)
        return (theta, state, regret), (info.loss, info.kept)

    start = (theta, state, jnp.zeros(()))
    (theta, state, regret), (losses, kept) = jax.lax.scan(body, start, jnp.arange(settings.local_steps))
    return theta, state, losses[-1], regret, jnp.mean(kept)


def deployed_risk(settings: Settings, theta: Theta, client: Client) -> Array:
    """L_i of the model that is deployed at a client, exactly."""
    decoupled = settings.rules.reaction.decoupled
    assert decoupled is not None
    return decoupled(theta, theta, client)


def _count(
    settings: Settings,
    tally: Tally,
    round_: Array,
    chosen: Array,
    drawn: Array,
    weights: Array,
    accepted: Array,
    regrets: Array,
    kept: Array,
) -> Tally:
    distinct = first_occurrence(chosen) if settings.scheme == "weighted" else jnp.ones_like(accepted)
    per_step = drawn.reshape(drawn.shape[0], -1).sum(1)
    bad = ~accepted & distinct
    is_first = (tally.bad_round < 0) & jnp.any(bad)
    return Tally(
        tally.regret + weighted_mean(regrets, weights, accepted),
        _add(tally.deployments, settings.local_steps, distinct.astype(jnp.int32)),
        _add(tally.samples, settings.local_steps, jnp.where(distinct, per_step, 0)),
        tally.refused + _whole(bad),
        jnp.where(is_first, jnp.int32(round_), tally.bad_round),
        jnp.where(is_first, jnp.int32(chosen[jnp.argmax(bad)]), tally.bad_client),
        tally.kept + jnp.mean(kept),
        tally.jacobian_error,
        tally.jacobian_off,
    )


def _add(count: Count, times: int, values: Array) -> Count:
    """The count with ``times`` the sum of the values added."""
    groups = jnp.pad(values % 1024, (0, -values.shape[0] % 1024)).reshape(-1, 1024).sum(1, dtype=jnp.int32)
    units, thousands = _whole(groups % 1024), _whole(values // 1024) + _whole(groups // 1024)
    total = count.units + times * (units % 1024)
    return Count(total % 1024, count.thousands + times * (thousands + units // 1024) + total // 1024)


def _whole(values: Array) -> Array:
    return jnp.sum(values, dtype=jnp.int32)
