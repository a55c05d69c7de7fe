"""The plain-loop twin of ``simulate``: the paper's Algorithm 1 line by line, in Python, one client after the other.

Slow, and made to be read and stepped through. It stops at the first number that is not finite, or the first error
inside a user's function, and names the seed, the round, the client and the stage.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.client import step as parts
from profl.client.filtering import filter_weights
from profl.client.gradient import terms
from profl.engines.plan import Plan, draw
from profl.engines.rounds import Work, begin, final_jacobians, one_round, own_jacobian, stage, trace
from profl.problem.oracle import told_jacobian
from profl.results.record import Trace
from profl.typing import Key, Theta


def run_debug(plan: Plan) -> tuple[Trace, np.ndarray]:
    """Every seed, one after the other; also the round in which each was stopped (-1: it was not)."""
    traces = [_one_seed(plan, seed, index) for index, seed in enumerate(plan.seeds)]
    stopped = np.array([stop for _, stop in traces])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *[trace for trace, _ in traces]), stopped


def _one_seed(plan: Plan, seed: int, index: int) -> tuple[Trace, int]:
    root = plan.roots[index]

    def work(round_: int, clients: list[int], theta: Theta, states: list[parts.State]) -> dict[int, Work]:
        places = {client: f"seed {seed}, round {round_ + 1}, client {client}" for client in clients}
        return {c: _local(plan, root, round_, c, theta, states[c], where) for c, where in places.items()}

    server = begin(plan, index)
    while server.round < plan.settings.rounds:
        server = one_round(plan, root, server, work, f"seed {seed}")
    return trace(server)[0]._replace(final=final_jacobians(plan.settings, server.states)), server.stopped


def _local(plan: Plan, root: Key, round_: int, client: int, theta: Theta, state: parts.State, where: str) -> Work:
    """R local steps of one client (lines 5-16): as ``simulate`` counts them."""
    settings = plan.settings
    rules, recipe, reaction = settings.rules, settings.recipe, settings.rules.reaction
    row = trees.take(plan.population, client)
    wanted = row.counts if recipe.size is None else state.samples
    n = settings.samples if recipe.size is None else next(size for size in settings.sizes if size >= int(wanted))
    weights = reaction.weights(row.clients, n, wanted)
    regret, shares = jnp.zeros(()), []
    for r in range(settings.local_steps):
        key = random.data_key(root, client, round_ * settings.local_steps + r)
        with stage(where, "explore") as check:  # what goes out in place of theta, where the recipe explores
            deployed, state = check(_deploy(rules, recipe, state, key, theta))
        if settings.measured:
            with stage(where, "risk") as check:
                assert reaction.decoupled is not None
                regret = check(regret + reaction.decoupled(deployed, deployed, row.clients) - row.floor)
        with stage(where, "sample") as check:  # line 5: deploy, the environment changes, draw n_i samples
            batch = check(_draw(settings, key, deployed, row.clients, n))
        with stage(where, "filter") as check:  # lines 7 and 11: which samples to believe
            believed, kept = check(_filter_weights(rules, recipe.filter, deployed, batch, weights))
        with stage(where, "estimate f") as check:  # lines 8 and 12
            f = check(_estimate(rules, batch, believed))
            f = f if settings.attack is None else check(jnp.where(row.hostile, settings.attack.f_hat(f), f))
        with stage(where, "Jacobian") as check:  # line 13, from the window of the last H deployments
            memory, jacobian = check(_remember(rules, recipe, state, theta, deployed, batch, believed, f))
            if recipe.told:
                jacobian = check(told_jacobian(reaction, deployed, row.clients))
        with stage(where, "gradient") as check:  # lines 11 and 14: L1, and what f is worth
            found = check(_terms(rules, recipe.second, deployed, batch, believed, f))
            gradient, _ = check(_combine(rules, recipe, deployed, found, jacobian))
        with stage(where, "sample size") as check:  # line 15
            samples = state.samples
            if recipe.size is not None and r == settings.local_steps - 1:
                samples = check(_next_size(rules, recipe, deployed, batch, believed, f, jacobian, gradient))
        with stage(where, "update") as check:  # lines 9 and 14: project(theta - eta (L1 + L2))
            theta, optimiser = check(_descend(rules, recipe, state.optimiser, theta, gradient, batch, believed))
            state = parts.State(optimiser, memory, state.shared, state.explored, samples)
            shares.append(kept)
    drawn = settings.local_steps * int(np.sum(np.asarray(wanted)))
    own = own_jacobian(settings, state)
    stated = float("nan") if recipe.estimator is None else jnp.mean(recipe.estimator.error(state.jacobian))
    return Work(theta, state, found.loss, regret, jnp.mean(jnp.stack(shares)), drawn, own, stated)


_deploy = partial(jax.jit, static_argnums=(0, 1))(parts.deploy)
_draw = partial(jax.jit, static_argnums=(0, 4))(draw)
_next_size = partial(jax.jit, static_argnums=(0, 1))(parts.next_size)
_estimate = partial(jax.jit, static_argnums=0)(lambda rules, batch, weights: rules.family.estimate(batch, weights))
_filter_weights = partial(jax.jit, static_argnums=(0, 1))(filter_weights)
_remember = partial(jax.jit, static_argnums=(0, 1))(parts.remember)
_terms = partial(jax.jit, static_argnums=(0, 1))(terms)
_combine = partial(jax.jit, static_argnums=(0, 1))(parts.combine)
_descend = partial(jax.jit, static_argnums=(0, 1))(parts.descend)
