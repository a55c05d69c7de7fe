"""The fast engine: every client of every seed at once, compiled (jit, vmap over clients and seeds, scan over rounds).

Memory is bounded by chunks: at most ``_BLOCK`` sampled numbers are alive at a time, whatever the number of clients
and seeds. Rounds run in a few segments of one compiled program, so that progress can be shown and what is finished
lies on the host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.algorithms.base import Algorithm
from profl.client.step import State, step
from profl.engines.debug import run_debug
from profl.engines.plan import Plan, Population, Settings, batch_shape, describe, first_states, make_plan
from profl.engines.progress import progress_bar
from profl.problem.oracle import told_jacobian
from profl.problem.problem import Problem
from profl.results.record import Run, Trace, make_run
from profl.server.aggregate import accept, weighted_mean
from profl.server.participation import choose, first_occurrence
from profl.typing import Array, Client, Key, Theta

_BLOCK = 2**18
_SEGMENTS = 20


class Carry(NamedTuple):
    """What goes from round to round, for one seed."""

    theta: Theta
    states: State  # one row per client


class Tally(NamedTuple):
    """What is counted between two records, for one seed."""

    regret: Array  # sum over local steps of the participants' weighted risk above L(PO)
    deployments: Array
    samples: Array
    refused: Array
    bad_round: Array  # of the first refused report, -1 where there was none
    bad_client: Array


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
    progress: bool = True,
    engine: str = "fast",
) -> Run:
    """Run ``algorithm`` on ``problem`` for ``rounds`` rounds and measure it against the exact answers.

    It computes in JAX's current precision: single unless ``jax.enable_x64`` is on. Exact answers are always double.

    Args:
      local_steps: R, steps per round; each deploys and draws fresh data.
      samples: n_i per deployment: one number, or one per client.
      seeds: one run each; a seed fixes the start and every draw.
      participation: share of clients asked per round, in (0, 1].
      scheme: "uniform" (without replacement) or "weighted" (by alpha_i, with replacement).
      record_every: rounds between two records; the start and the last round are always recorded.
      initial: the model to start from, instead of the problem's own start.
      progress: show a progress bar on a terminal.
      engine: "fast", or "debug": a plain loop that names client, round and stage in its errors.

    >>> import profl
    >>> case = profl.cases.housing(clients=4, heterogeneity=0)
    >>> run = profl.simulate(case, profl.pofl(), rounds=100, samples=200, seeds=range(2), progress=False)
    >>> bool(run.tail_excess().mean() < 0.05)
    True
    """
    checks.one_of("engine", engine, ["fast", "debug"])
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
    )
    started = time.perf_counter()
    trace = run_debug(plan) if engine == "debug" else _run(plan, f"{algorithm.name} on {problem.name}", progress)
    return make_run(problem, algorithm, trace, describe(plan), time.perf_counter() - started)


def _run(plan: Plan, title: str, progress: bool) -> Trace:
    settings, population = plan.settings, plan.population
    records = math.ceil(settings.rounds / settings.record_every)
    per_segment = math.ceil(records / min(records, _SEGMENTS))
    chunks = _chunks(settings, population, plan.models)
    carry = _start(settings, population, plan.models)
    pieces = [(jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], plan.models), None)]
    with progress_bar(title, records, progress) as advance:
        for first in range(0, records, per_segment):
            carry, out = _segment(settings, chunks, per_segment, carry, population, plan.roots, first)
            done = min(per_segment, records - first)
            pieces.append(jax.tree.map(lambda leaf, k=done: np.asarray(leaf)[:, :k], out))
            advance(done)
    models = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[models for models, _ in pieces])
    tallies = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *[tally for _, tally in pieces[1:]])
    return Trace(theta=models, **tallies._asdict())


def _chunks(settings: Settings, population: Population, models: Theta) -> tuple[int, int]:
    """(seeds, clients) worked on at once, so that a block of samples stays in the cache."""
    batch = batch_shape(settings, population, trees.take(models, 0))
    numbers = sum(leaf.size for leaf in jax.tree.leaves(batch))
    clients = min(settings.slots, max(1, _BLOCK // numbers))
    return min(trees.rows(models), max(1, _BLOCK // (numbers * clients))), clients


@partial(jax.jit, static_argnums=0)
def _start(settings: Settings, population: Population, models: Theta) -> Carry:
    return jax.vmap(lambda theta: Carry(theta, first_states(settings, population, theta)))(models)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def _segment(
    settings: Settings,
    chunks: tuple[int, int],
    records: int,
    carry: Carry,
    population: Population,
    roots: Key,
    first: Array,
) -> tuple[Carry, tuple[Theta, Tally]]:
    """``records`` record intervals of every seed; intervals past the last round change nothing."""
    seed_chunk, client_chunk = chunks

    def one_seed(carry: Carry, root: Key) -> tuple[Carry, tuple[Theta, Tally]]:
        def interval(carry: Carry, record: Array) -> tuple[Carry, tuple[Theta, Tally]]:
            start = record * settings.record_every
            stop = jnp.minimum(start + settings.record_every, settings.rounds)

            def body(round_: Array, state: tuple[Carry, Tally]) -> tuple[Carry, Tally]:
                return _round(settings, client_chunk, population, root, round_, *state)

            carry, tally = jax.lax.fori_loop(start, stop, body, (carry, _empty_tally()))
            return carry, (carry.theta, tally)

        return jax.lax.scan(interval, carry, first + jnp.arange(records))

    return trees.map_chunks(one_seed, seed_chunk, carry, roots)


def _empty_tally() -> Tally:
    zero = jnp.zeros((), jnp.int32)
    return Tally(jnp.zeros(()), zero, zero, zero, zero - 1, zero - 1)


def _round(
    settings: Settings,
    chunk: int,
    population: Population,
    root: Key,
    round_: Array,
    carry: Carry,
    tally: Tally,
) -> tuple[Carry, Tally]:
    """One round of one seed (Algorithm 1, lines 3-21)."""
    everyone = settings.scheme == "uniform" and settings.slots == population.weights.shape[0]
    chosen, weights = choose(
        random.participation_key(root, round_), settings.scheme, settings.slots, population.weights
    )
    asked, states = (population, carry.states) if everyone else trees.take((population, carry.states), chosen)

    def local(client: Array, row: Population, state: State) -> tuple[Theta, State, Array, Array]:
        return _local_steps(settings, root, round_, carry.theta, client, row, state)

    models, new_states, losses, regrets = trees.map_chunks(local, chunk, chosen, asked, states)
    accepted = accept((models, losses, new_states.jacobian))
    theta = weighted_mean(models, weights, accepted)
    new_states = trees.where(accepted, new_states, states)
    if not everyone:
        new_states = jax.tree.map(lambda all_, new: all_.at[chosen].set(new), carry.states, new_states)
    return Carry(theta, new_states), _count(settings, tally, round_, chosen, asked, weights, accepted, regrets)


def _local_steps(
    settings: Settings, root: Key, round_: Array, theta: Theta, client: Array, row: Population, state: State
) -> tuple[Theta, State, Array, Array]:
    """R local steps of one client: its model, its state, its last loss, and the risk it deployed above L_i(PO)."""
    rules, reaction = settings.rules, settings.rules.reaction
    weights = reaction.weights(row.clients, settings.samples, row.counts)

    def body(carry: tuple[Theta, State, Array], r: Array) -> tuple[tuple[Theta, State, Array], Array]:
        theta, state, regret = carry
        key = random.data_key(root, client, round_ * settings.local_steps + r)
        batch = reaction.sample(key, theta, row.clients, settings.samples)
        told = told_jacobian(reaction, theta, row.clients) if settings.recipe.told else None
        if settings.measured:
            regret = regret + deployed_risk(settings, theta, row.clients) - row.floor
        theta, state, info = step(rules, settings.recipe, state, theta, batch, weights, told)
        return (theta, state, regret), info.loss

    (theta, state, regret), losses = jax.lax.scan(body, (theta, state, jnp.zeros(())), jnp.arange(settings.local_steps))
    return theta, state, losses[-1], regret


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
    asked: Population,
    weights: Array,
    accepted: Array,
    regrets: Array,
) -> Tally:
    distinct = first_occurrence(chosen) if settings.scheme == "weighted" else jnp.ones_like(accepted)
    per_step = asked.counts.reshape(asked.counts.shape[0], -1).sum(1)
    bad = ~accepted & distinct
    is_first = (tally.bad_round < 0) & jnp.any(bad)
    return Tally(
        tally.regret + weighted_mean(regrets, weights, accepted),
        tally.deployments + settings.local_steps * _whole(distinct),
        tally.samples + settings.local_steps * _whole(jnp.where(distinct, per_step, 0)),
        tally.refused + _whole(bad),
        jnp.where(is_first, jnp.int32(round_), tally.bad_round),
        jnp.where(is_first, jnp.int32(chosen[jnp.argmax(bad)]), tally.bad_client),
    )


def _whole(values: Array) -> Array:
    return jnp.sum(values, dtype=jnp.int32)
