"""The plain-loop twin of ``simulate``: the paper's Algorithm 1 line by line, in Python, one client after the other.

Slow, and made to be read and stepped through. It stops at the first number that is not finite, or the first error
inside a user's function, and names the seed, the round, the client and the stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.checks import DivergedError
from profl.client import step as parts
from profl.client.gradient import terms
from profl.engines.plan import Plan, first_states
from profl.problem.oracle import told_jacobian
from profl.results.record import Trace
from profl.server.participation import choose
from profl.typing import Array, Key, Theta


def run_debug(plan: Plan) -> Trace:
    """Every seed, one after the other."""
    traces = [_one_seed(plan, seed, index) for index, seed in enumerate(plan.seeds)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *traces)


def _one_seed(plan: Plan, seed: int, index: int) -> Trace:
    settings, population = plan.settings, plan.population
    root = plan.roots[index]
    theta = trees.take(plan.models, index)
    stacked = first_states(settings, population, theta)
    states = [trees.take(stacked, i) for i in range(population.weights.shape[0])]
    records, tallies = [theta], []
    regret, deployments, samples = 0.0, 0, 0
    for round_ in range(settings.rounds):
        # line 3: the server sends the global model to the clients of this round
        key = random.participation_key(root, round_)
        chosen, weights = choose(key, settings.scheme, settings.slots, population.weights)
        models, regrets = {}, {}
        for client in sorted(set(np.asarray(chosen).tolist())):
            where = f"seed {seed}, round {round_ + 1}, client {client}"
            models[client], states[client], regrets[client] = _local(
                plan, root, round_, client, theta, states[client], where
            )
            deployments += settings.local_steps
            samples += settings.local_steps * int(np.sum(population.counts[client]))
        # line 21: the server averages what comes back
        theta = jax.tree.map(jnp.zeros_like, theta)
        for client, weight in zip(np.asarray(chosen).tolist(), weights, strict=True):
            theta = jax.tree.map(lambda total, own, w=weight: total + w * own, theta, models[client])
            regret += float(weight * regrets[client])
        if (round_ + 1) % settings.record_every == 0 or round_ + 1 == settings.rounds:
            records.append(theta)
            tallies.append((regret, deployments, samples, 0, -1, -1))
            regret, deployments, samples = 0.0, 0, 0
    columns = [np.array(column) for column in zip(*tallies, strict=True)]
    return Trace(jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *records), *columns)


def _local(
    plan: Plan, root: Key, round_: int, client: int, theta: Theta, state: parts.State, where: str
) -> tuple[Theta, parts.State, Array]:
    """R local steps of one client (lines 5-16)."""
    settings = plan.settings
    rules, recipe, reaction = settings.rules, settings.recipe, settings.rules.reaction
    row = trees.take(plan.population, client)
    weights = reaction.weights(row.clients, settings.samples, row.counts)
    regret = jnp.zeros(())
    for r in range(settings.local_steps):
        if settings.measured:
            with _stage(where, "risk") as check:
                assert reaction.decoupled is not None
                regret = check(regret + reaction.decoupled(theta, theta, row.clients) - row.floor)
        with _stage(where, "sample") as check:  # line 5: deploy theta, the environment changes, draw n_i samples
            key = random.data_key(root, client, round_ * settings.local_steps + r)
            batch = check(_sample(reaction, settings.samples, key, theta, row.clients))
        with _stage(where, "estimate f") as check:  # lines 8 and 12
            f = check(_estimate(rules, batch, weights))
        with _stage(where, "Jacobian") as check:  # line 13, from the window of the last H deployments
            memory, jacobian = check(_remember(rules, recipe, state.jacobian, theta, batch, weights, f))
            if recipe.told:
                jacobian = check(told_jacobian(reaction, theta, row.clients))
        with _stage(where, "gradient") as check:  # lines 11 and 14: L1, and what f is worth
            found = check(_terms(rules, recipe.second, theta, batch, weights, f))
            gradient, _ = check(_combine(rules, recipe, theta, found, jacobian))
        with _stage(where, "update") as check:  # lines 9 and 14: project(theta - eta (L1 + L2))
            theta, optimiser = check(_descend(rules, recipe, state.optimiser, theta, gradient, batch, weights))
            state = parts.State(optimiser, memory)
    return theta, state, regret


@contextmanager
def _stage(where: str, name: str) -> Iterator[Any]:
    """Yields a check that lets finite values through; errors inside are raised again with the place in front."""

    def check(values: Any) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise DivergedError(f"{where}, stage {name!r}: NaN or Inf in the result{jax.tree_util.keystr(path)}")
        return values

    try:
        yield check
    except DivergedError:
        raise
    except Exception as error:
        raise RuntimeError(f"{where}, stage {name!r}: {type(error).__name__}: {error}") from error


_sample = partial(jax.jit, static_argnums=(0, 1))(
    lambda reaction, n, key, theta, row: reaction.sample(key, theta, row, n)
)
_estimate = partial(jax.jit, static_argnums=0)(lambda rules, batch, weights: rules.family.estimate(batch, weights))
_remember = partial(jax.jit, static_argnums=(0, 1))(parts.remember)
_terms = partial(jax.jit, static_argnums=(0, 1))(terms)
_combine = partial(jax.jit, static_argnums=(0, 1))(parts.combine)
_descend = partial(jax.jit, static_argnums=(0, 1))(parts.descend)
