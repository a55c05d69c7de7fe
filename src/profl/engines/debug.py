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
from profl.client.believe import believe
from profl.client.gradient import terms
from profl.engines.plan import Plan, Population, Settings, draw, first_states, hand_out, own_jacobians
from profl.problem.oracle import told_jacobian
from profl.results.record import Jacobians, Trace
from profl.server.aggregate import receive
from profl.server.attacks import Report, apply
from profl.server.participation import choose
from profl.typing import Array, Key, Theta


def run_debug(plan: Plan) -> tuple[Trace, np.ndarray]:
    """Every seed, one after the other; also the round in which each was stopped (-1: it was not)."""
    traces = [_one_seed(plan, seed, index) for index, seed in enumerate(plan.seeds)]
    stopped = np.array([stop for _, stop in traces])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *[trace for trace, _ in traces]), stopped


def _one_seed(plan: Plan, seed: int, index: int) -> tuple[Trace, int]:
    settings, population = plan.settings, plan.population
    root = plan.roots[index]
    theta = trees.take(plan.models, index)
    stacked = first_states(settings, population, theta)
    states = [trees.take(stacked, i) for i in range(population.weights.shape[0])]
    first, stopped = theta, -1
    records, tallies = [theta], []
    regret, deployments, samples, refused, share_kept, bad = 0.0, 0, 0, 0, 0.0, (-1, -1)
    for round_ in range(settings.rounds):
        # line 3: the server sends the global model to the clients of this round
        key = random.participation_key(root, round_)
        chosen, weights = choose(key, settings.scheme, settings.slots, population.weights)
        asked = np.asarray(chosen).tolist()
        done: dict[int, tuple[Theta, parts.State, Array, Array, Array]] = {}
        drawn = 0
        for client in sorted(set(asked)):
            where = f"seed {seed}, round {round_ + 1}, client {client}"
            drawn += settings.local_steps * _count(settings, population, states, client)
            done[client] = _local(plan, root, round_, client, theta, states[client], where)
        models, new_states, losses, regrets, kept = (trees.stack([done[c][i] for c in asked]) for i in range(5))
        # lines 18-21: the server combines what comes back, and shares Jacobians
        reports = Report(models, losses, own_jacobians(settings, new_states))
        if settings.attack is not None:
            reports = apply(settings.attack, reports, theta, first, population.hostile[chosen])
        with _stage(f"seed {seed}, round {round_ + 1}", "aggregate") as check:
            server = random.server_key(root, round_)
            everyone = jnp.ones(len(asked), bool)
            answer = _receive(settings.rule, settings.clusters, server, reports, weights, everyone, theta)
            if stopped >= 0 or int(answer.accepted.sum()) < settings.min_reports:
                stopped = round_ if stopped < 0 else stopped
            else:
                theta = check(answer.theta)
                handed = hand_out(new_states, answer)
                for row, client in enumerate(asked):
                    if answer.accepted[row]:
                        states[client] = trees.take(handed, row)
                deployments += settings.local_steps * len(done)
                samples += drawn
                share = jnp.where(answer.accepted, weights, 0.0)
                regret += float(share @ regrets / share.sum())
                share_kept += float(jnp.mean(kept))
                turned_away = sorted({c for c, good in zip(asked, answer.accepted, strict=True) if not good})
                refused += len(turned_away)
                bad = (round_, turned_away[0]) if turned_away and bad[0] < 0 else bad
        if (round_ + 1) % settings.record_every == 0 or round_ + 1 == settings.rounds:
            records.append(theta)
            tallies.append((regret, deployments, samples, refused, *bad, share_kept))
            regret, deployments, samples, refused, share_kept, bad = 0.0, 0, 0, 0, 0.0, (-1, -1)
    columns = [np.array(column) for column in zip(*tallies, strict=True)]
    models = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *records)
    final = None
    if settings.recipe.share:
        end = trees.stack(states)
        own = np.asarray(own_jacobians(settings, end))
        final = Jacobians(own, np.asarray(end.shared.jacobian), np.asarray(end.shared.group))
    return Trace(models, *columns, final=final), stopped  # type: ignore[misc, arg-type]


def _count(settings: Settings, population: Population, states: list[parts.State], client: int) -> int:
    """How many samples a client draws in one step of this round."""
    return int(np.sum(population.counts[client] if settings.recipe.size is None else states[client].samples))


def _local(
    plan: Plan, root: Key, round_: int, client: int, theta: Theta, state: parts.State, where: str
) -> tuple[Theta, parts.State, Array, Array, Array]:
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
        with _stage(where, "explore") as check:  # what goes out in place of theta, where the recipe explores
            deployed, state = check(_deploy(rules, recipe, state, key, theta))
        if settings.measured:
            with _stage(where, "risk") as check:
                assert reaction.decoupled is not None
                regret = check(regret + reaction.decoupled(deployed, deployed, row.clients) - row.floor)
        with _stage(where, "sample") as check:  # line 5: deploy, the environment changes, draw n_i samples
            batch = check(_draw(settings, key, deployed, row.clients, n))
        with _stage(where, "filter") as check:  # lines 7 and 11: which samples to believe
            believed, kept = check(_believe(rules, recipe.filter, deployed, batch, weights))
        with _stage(where, "estimate f") as check:  # lines 8 and 12
            f = check(_estimate(rules, batch, believed))
            f = f if settings.attack is None else check(jnp.where(row.hostile, settings.attack.f_hat(f), f))
        with _stage(where, "Jacobian") as check:  # line 13, from the window of the last H deployments
            memory, jacobian = check(_remember(rules, recipe, state, theta, deployed, batch, believed, f))
            if recipe.told:
                jacobian = check(told_jacobian(reaction, deployed, row.clients))
        with _stage(where, "gradient") as check:  # lines 11 and 14: L1, and what f is worth
            found = check(_terms(rules, recipe.second, deployed, batch, believed, f))
            gradient, _ = check(_combine(rules, recipe, deployed, found, jacobian))
        with _stage(where, "sample size") as check:  # line 15
            samples = state.samples
            if recipe.size is not None and r == settings.local_steps - 1:
                samples = check(_next_size(rules, recipe, deployed, batch, believed, f, jacobian, gradient))
        with _stage(where, "update") as check:  # lines 9 and 14: project(theta - eta (L1 + L2))
            theta, optimiser = check(_descend(rules, recipe, state.optimiser, theta, gradient, batch, believed))
            state = parts.State(optimiser, memory, state.shared, state.explored, samples)
            shares.append(kept)
    return theta, state, found.loss, regret, jnp.mean(jnp.stack(shares))


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


_deploy = partial(jax.jit, static_argnums=(0, 1))(parts.deploy)
_draw = partial(jax.jit, static_argnums=(0, 4))(draw)
_receive = partial(jax.jit, static_argnums=(0, 1))(receive)
_next_size = partial(jax.jit, static_argnums=(0, 1))(parts.next_size)
_estimate = partial(jax.jit, static_argnums=0)(lambda rules, batch, weights: rules.family.estimate(batch, weights))
_believe = partial(jax.jit, static_argnums=(0, 1))(believe)
_remember = partial(jax.jit, static_argnums=(0, 1))(parts.remember)
_terms = partial(jax.jit, static_argnums=(0, 1))(terms)
_combine = partial(jax.jit, static_argnums=(0, 1))(parts.combine)
_descend = partial(jax.jit, static_argnums=(0, 1))(parts.descend)
