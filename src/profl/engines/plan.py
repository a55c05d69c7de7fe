"""What every engine does before its first round: check the request, and lay out what a run needs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.algorithms.base import Algorithm
from profl.client.step import Poison, Recipe, Shared, State, init
from profl.problem.problem import Problem, Rules
from profl.results.record import Layout
from profl.server.aggregate import Answer
from profl.server.attacks import Attack, hostile_clients
from profl.server.attacks import get as get_attack
from profl.server.clusters import Clusters
from profl.server.participation import SCHEMES, slots
from profl.server.rules import Rule
from profl.server.rules import get as get_rule
from profl.typing import Array, Batch, Client, Key, Theta


class Settings(NamedTuple):
    """The fixed part of a run. Hashable: equal settings share compiled code."""

    rules: Rules
    recipe: Recipe
    rounds: int
    local_steps: int  # R
    samples: int  # the largest n_i
    record_every: int
    scheme: str
    slots: int  # how many clients a round asks
    rule: Rule  # how the server combines models
    clusters: Clusters | None  # how Jacobians are shared
    attack: Attack | None
    min_reports: int  # fewer usable reports than this in a round stop the run
    measured: bool  # whether the exact risk is known

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that may occur."""
        return (self.samples,) if self.recipe.size is None else self.recipe.size.sizes


class Population(NamedTuple):
    """The clients as arrays, one row each."""

    clients: Client
    weights: Array  # alpha_i
    counts: Array  # n_i
    floor: Array  # L_i(PO), or NaN where it is not known
    hostile: Array  # bool


class Plan(NamedTuple):
    settings: Settings
    population: Population
    seeds: tuple[int, ...]
    roots: Key  # one key per seed
    models: Theta  # one initial model per seed
    members: int  # clients behind each row: more than one when pooled


def make_plan(
    problem: Problem,
    algorithm: Algorithm,
    *,
    rounds: int,
    local_steps: int,
    samples: Any,
    seeds: Iterable[int] | int,
    participation: float,
    scheme: str,
    record_every: int,
    initial: Theta | None,
    attack: Any = None,
    hostile: Any = 0.2,
    min_reports: int = 0,
    prng: str = "auto",
) -> Plan:
    """Check everything, then lay it out; raises ``profl.InputError`` before any work is done."""
    if not isinstance(problem, Problem):
        raise checks.InputError(f"problem must be a profl.Problem such as profl.cases.pricing(), got {problem!r}")
    if not isinstance(algorithm, Algorithm):
        raise checks.InputError(f"algorithm must be one such as profl.pofl(), got {algorithm!r}")
    counts = checks.client_counts(samples, problem.count)
    members = problem.count if algorithm.pooled else 1
    world = problem.pooled() if algorithm.pooled else problem
    settings = Settings(
        rules=world.rules,
        recipe=algorithm.recipe(world),
        rounds=checks.positive_int("rounds", rounds),
        local_steps=checks.positive_int("local_steps", local_steps),
        samples=int(counts.max()),
        record_every=checks.positive_int("record_every", record_every),
        scheme=checks.one_of("scheme", scheme, SCHEMES),
        slots=slots(checks.fraction("participation", participation), world.count),
        rule=get_rule(algorithm.aggregate),
        clusters=algorithm.clusters(world.count),
        attack=None if attack is None else get_attack(attack),
        min_reports=_min_reports(min_reports, slots(participation, world.count)),
        measured=problem.exact,
    )
    numbers = _seeds(seeds)
    checks.one_of("prng", prng, random.PRNGS)
    roots = jax.vmap(partial(random.seed_key, prng=prng))(jnp.asarray(numbers, dtype=jnp.uint32))
    models = _models(problem, roots, initial)
    floor = world.client_risks(problem.optimum) if problem.exact else np.full(world.count, np.nan)
    population = Population(
        clients=trees.cast(world.clients),
        weights=jnp.asarray(world.weights, dtype=float),
        counts=jnp.asarray(counts[None] if algorithm.pooled else counts),
        floor=jnp.asarray(floor, dtype=float),
        hostile=jnp.asarray(np.zeros(world.count, bool) if attack is None else hostile_clients(hostile, world.count)),
    )
    return Plan(settings, population, numbers, roots, models, members)


def first_states(settings: Settings, population: Population, theta: Theta) -> State:
    """The state of every client before its first step, stacked."""
    state = init(settings.rules, settings.recipe, theta, batch_shape(settings, population, theta), settings.samples)
    count = trees.rows(population.clients)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), state)


def draw(settings: Settings, key: Key, theta: Theta, client: Client, n: int) -> Batch:
    """n samples of what comes in when theta is deployed at a client.

    Where n varies, they are drawn in blocks with a key each, so that a smaller batch is the beginning of a larger one
    and the samples do not depend on how many more an engine draws for its own convenience.
    """
    reaction, size = settings.rules.reaction, settings.recipe.size
    if size is None:
        return reaction.sample(key, theta, client, n)
    block = size.min_samples
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n // block))
    blocks = jax.vmap(lambda k: reaction.sample(k, theta, client, block))(keys)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), blocks)


def poison(settings: Settings, hostile: Array) -> Poison | None:
    """What becomes of a client's f_hat under the attack, if any."""
    attack = settings.attack
    return None if attack is None else lambda f: jnp.where(hostile, attack.f_hat(f), f)


def own_jacobians(settings: Settings, states: State) -> Array | None:
    """What the clients report of their Jacobians; None where they are not shared."""
    return jax.vmap(settings.recipe.estimator.estimate)(states.jacobian) if settings.recipe.share else None


def stated_errors(settings: Settings, states: State) -> Array | None:
    """What the clients state of their Jacobians' mean squared error; None where Jacobians are not shared."""
    if not settings.recipe.share:
        return None
    return jax.vmap(lambda memory: jnp.mean(settings.recipe.estimator.error(memory)))(states.jacobian)


def hand_out(states: State, answer: Answer) -> State:
    """The states with the shared Jacobians in them."""
    if answer.shared is None or answer.groups is None:
        return states
    ready = jnp.broadcast_to(jnp.all(jnp.isfinite(answer.shared)), answer.groups.shape)
    shared = jnp.where(ready[:, None, None], answer.shared, states.shared.jacobian)
    return states._replace(shared=Shared(shared, ready | states.shared.ready, answer.groups))


def batch_shape(settings: Settings, population: Population, theta: Theta) -> Batch:
    """The shapes of what one client draws in one step."""

    def draw(theta: Theta, clients: Client) -> Batch:
        return settings.rules.reaction.sample(random.seed_key(0), theta, trees.take(clients, 0), settings.sizes[-1])

    return jax.eval_shape(draw, theta, population.clients)


def describe(plan: Plan) -> Layout:
    """What a record needs to know of the plan."""
    settings, population = plan.settings, plan.population
    batch = batch_shape(settings, population, trees.take(plan.models, 0))
    rows = jax.tree.leaves(batch)[0].shape[0]
    sample_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch)) // rows
    return Layout(
        seeds=plan.seeds,
        rounds=settings.rounds,
        local_steps=settings.local_steps,
        record_every=settings.record_every,
        members=plan.members,
        clients=population.weights.shape[0] * plan.members,
        sample_bytes=sample_bytes,
        jacobian_numbers=_jacobian_numbers(settings, population, trees.take(plan.models, 0)),
    )


def _jacobian_numbers(settings: Settings, population: Population, theta: Theta) -> int:
    """How many numbers a shared Jacobian has; 0 where none is shared."""
    if not settings.recipe.share:
        return 0
    state = jax.eval_shape(lambda t: first_states(settings, population, t), theta)
    return int(np.prod(state.shared.jacobian.shape[1:]))


def _min_reports(least: int, asked: int) -> int:
    if checks.positive_int("min_reports", least, least=0) > asked:
        raise checks.InputError(f"min_reports must be at most {asked}, the clients that a round asks, got {least}")
    return least


def _seeds(seeds: Iterable[int] | int) -> tuple[int, ...]:
    numbers = (seeds,) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise checks.InputError("seeds must hold at least one seed, got none; try seeds=range(10)")
    checked = tuple(checks.positive_int("every seed", seed, least=0) for seed in numbers)
    if max(checked) >= 2**32:
        raise checks.InputError(f"every seed must be below 2**32, got {max(checked)}")
    return checked


def _models(problem: Problem, roots: Key, initial: Theta | None) -> Theta:
    if initial is None:
        models = jax.vmap(lambda root: problem.initial(random.start_key(root)))(roots)
    else:
        like = jax.eval_shape(problem.initial, random.seed_key(0))
        checks.same_structure("initial", initial, like)
        shape = roots.shape[0]
        models = jax.tree.map(lambda a: jnp.broadcast_to(a, (shape, *jnp.shape(a))), initial)
    checks.finite_tree("the initial model", models)
    return jax.vmap(problem.project)(trees.cast(models))
