"""A group of samples that lies apart from the rest and is larger than the robust filter may drop: kept, and told.

Nothing of this is in the compiled step. ``simulate`` looks at one more batch of some clients once a run is over, and
``train`` at the batches that come in. First comes a cheap look on the host, ``may_be_two``: along each coordinate, the
longest axis of the cloud and the distance from its middle, the samples are divided where that explains most of their
variance. Of one group, normal or exponential, a third of the variance is left. Only where it is at most ``LEFT`` the
filter itself is asked, with a limit of nearly half.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.methods.method import Method
from profl.parts import filters
from profl.parts.filters import RobustFilter
from profl.parts.trusted_samples import TrustedSamples, filter_weights, initial_memory, samples
from profl.problem.problem import Functions
from profl.problem.reaction import Reaction
from profl.run.plan import CompiledPlan
from profl.run.step import WORLD
from profl.typing import Array, Batch, Client, Key, Theta

HALF = 0.49  # what lies apart and is no junk for sure: a larger group is the bulk itself
NARROWER = 0.9  # where so many may be junk, fewer of the others are sure to be near
LEFT = 0.15  # of the variance, within two groups: 0.12 where they are 0.4 and 0.6, 5.5 deviations apart
CLIENTS = 20  # that are looked at after a simulation, from the first to the last
TURNS = 10  # of the power iteration for the longest axis
NO_SPREAD = 1e-15  # standard deviations below this count as this one
ADVICE = (
    "The filter may drop {most:.0%} at most and cannot tell which group is junk, so both stay. A vetted sample "
    "decides, RobustFilter(reference=...); or a limit for those who know that so much is junk, "
    "RobustFilter(at_most=0.45, core=0.9); or a family that knows the groups (group_of), or calls such values ordinary."
)


def robust_filter(method: Method) -> RobustFilter | None:
    """The robust filter of a method; None where it has another one or none."""
    for part in getattr(method, "parts", ()):
        if isinstance(part, TrustedSamples) and isinstance(chosen := filters.get(part.filter), RobustFilter):
            return chosen
    return None


def notes(plan: CompiledPlan, theta: Theta, rounds: int) -> tuple[str, ...]:
    """A warning where clients of a simulation have such a group, on one more batch each under the final ``theta``.

    ``theta`` has one model per seed; the first finite one is deployed, to people who do not remember earlier ones.
    """
    settings, rule = plan.settings, robust_filter(plan.settings.method)
    finite = np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in jax.tree.leaves(theta)], axis=0)
    if rule is None or not finite.any():
        return ()
    seed, found = int(np.argmax(finite)), {}
    model, root, step = trees.take(theta, seed), random.root_keys([plan.seeds[seed]]), rounds * settings.local_steps
    for client in np.unique(np.linspace(0, settings.clients - 1, CLIENTS, dtype=np.int32)):
        batch = _draw(
            settings.functions.reaction, settings.samples, root, client, np.int32(step), model, plan.population.clients
        )
        if words := group_apart(settings.functions, rule, model, jax.tree.map(np.asarray, batch)):
            found[client] = words
    if not found:
        return ()
    (client, words), more = next(iter(found.items())), len(found) - 1
    others = f" (and of {more} more of {min(CLIENTS, settings.clients)} looked at)" if more else ""
    return (f"WARNING: of client {client}{others}, {words} {ADVICE.format(most=rule.at_most)}",)


def group_apart(functions: Functions, rule: RobustFilter, theta: Theta, batch: Batch, count: int | None = None) -> str:
    """What share of a batch lies apart, undecided, and where; "" where none does.

    Only the first ``count`` rows are samples, where it is given: batches of different sizes share a program that way.
    """
    points, members = (np.asarray(part)[:count] for part in _points(functions, theta, batch))
    groups = [members == group for group in np.unique(members)]
    if not any(may_be_two(points[group], rule.at_most) for group in groups):
        return ""
    wider = replace(rule, at_most=max(rule.at_most, HALF), core=min(rule.core, NARROWER))
    dropped, apart = dropped_samples(functions, wider, theta, batch, count), np.zeros(len(points), bool)
    for group in groups:
        if np.sum(dropped & group) > np.floor(rule.at_most * np.sum(group)):
            apart |= dropped & group
    if not apart.any() or apart.all():
        return ""
    name, values = farthest(jax.tree.map(lambda leaf: leaf[:count], batch), apart)
    middle, rest = (float(np.median(values[which])) for which in (apart, ~apart))
    return f"{apart.mean():.0%} of the samples lie apart: {name} is about {middle:.3g} there, {rest:.3g} in the rest."


def may_be_two(points: np.ndarray, at_most: float) -> bool:
    """Whether some line through (n, d) points may have two groups, the smaller one of more than ``at_most`` of them.

    Zeros say nothing, as in the filter.

    >>> one = np.random.default_rng(0).normal(size=(500, 3))
    >>> may_be_two(one, 1 / 3), may_be_two(one + 9 * (np.arange(500) < 200)[:, None], 1 / 3)
    (False, True)
    """
    if len(points) < 2 or not points.shape[1] or not np.isfinite(points).all():
        return False
    middle = np.median(points, axis=0)
    z = np.where(points == 0, 0.0, points - middle) / np.maximum(points.std(0), NO_SPREAD)
    axis = np.random.default_rng(0).normal(size=z.shape[1])
    for _ in range(TURNS):
        axis = z.T @ (z @ axis)
        axis = axis / max(np.linalg.norm(axis), NO_SPREAD)
    lines = np.column_stack([np.where(points == 0, np.nan, z), z @ axis, np.sqrt(np.sum(z**2, axis=1))])
    lines = np.concatenate([lines, np.abs(lines)], axis=1)
    return any(_variance_left(line[~np.isnan(line)], at_most * len(points)) <= LEFT for line in lines.T)


def _variance_left(values: np.ndarray, least: float) -> float:
    """The share of the variance that is left within two parts of more than ``least`` values each, at the best cut."""
    values, n = np.sort(values), len(values)
    sizes = np.arange(int(least) + 1, n - int(least))
    total = float(np.sum((values - values.mean()) ** 2)) if n else 0.0
    if not sizes.size or total <= 0:
        return 1.0
    below = np.cumsum(values - values.mean())[sizes - 1]  # the parts' sums are this and its negative
    return float(1 - np.max(below**2 * n / (sizes * (n - sizes))) / total)


def dropped_samples(
    functions: Functions, rule: Any, theta: Theta, batch: Batch, count: int | None = None
) -> np.ndarray:
    """Which of the first ``count`` samples of a batch, or of all, a filter drops that remembers nothing."""
    rows = len(jax.tree.leaves(batch)[0])
    count = rows if count is None else count
    weights = np.where(np.arange(rows) < count, 1 / count, 0.0)
    return np.asarray(_filter(functions, rule, theta, batch, weights.astype(np.float32)))[:count] < 0.5 / count


def farthest(batch: Batch, apart: np.ndarray) -> tuple[str, np.ndarray]:
    """The coordinate, its name and values, in which some samples lie farthest from the mean of the others.

    The distance is a root mean square in standard deviations of the others, so samples on both sides count.
    """
    names, points = columns_of(batch)
    centre, spread = points[~apart].mean(0), points[~apart].std(0)
    away = np.sqrt(np.mean((points[apart] - centre) ** 2, axis=0)) / np.maximum(spread, NO_SPREAD)
    place = int(np.argmax(away))
    return names[place], points[:, place]


def columns_of(batch: Batch) -> tuple[list[str], np.ndarray]:
    """The names of a sample's numbers, and the samples as rows of them."""
    names, columns = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = leaf.shape[1:]
        names += [f"sample{jax.tree_util.keystr(path)}{list(place) if place else ''}" for place in np.ndindex(*shape)]
        columns.append(np.asarray(leaf, np.float64).reshape(len(leaf), -1))
    return names, np.concatenate(columns, axis=1)


@partial(jax.jit, static_argnums=(0, 1))
def _filter(functions: Functions, filter_: Any, theta: Theta, batch: Batch, weights: Array) -> Array:
    """The weights after filtering."""
    memory = initial_memory(functions, filter_, theta, batch)
    return filter_weights(functions, filter_, theta, batch, weights, memory)[0]


@partial(jax.jit, static_argnums=0)
def _points(functions: Functions, theta: Theta, batch: Batch) -> tuple[Array, Array]:
    """What the robust filter sees of a batch, (n, numbers), and the group of every sample, (n,)."""
    return samples(functions, theta, batch, jnp.ones(())), jax.vmap(functions.family.group_of)(batch)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(
    reaction: Reaction, samples: int, roots: Key, number: Array, step: Array, theta: Theta, clients: Client
) -> Batch:
    """A batch of a client's people, who meet a model for the first time."""
    key, client = random.data_key(roots[0], number, step), trees.take(clients, number)
    people = reaction.move(reaction.start(theta, client), jax.random.fold_in(key, WORLD), theta, client)
    return reaction.sample_in(people, key, theta, client, samples)
