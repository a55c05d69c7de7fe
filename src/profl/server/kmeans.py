"""k-means for clustering clients, with what does not belong set aside.

    seeds      k-means++: each centre a row, drawn with a chance that grows with its squared distance from those before
    Lloyd      rows to their nearest centre, centres to their rows' mean; the best of several restarts
    peeling    where a cluster comes out small, or a row lies STRAY times as far from its centre as usual, such rows are
               set aside (if they are few) and the rest is divided anew: a stray client must neither use up a cluster
               nor hide how well the others fall into groups

The number of clusters in use may be traced: arrays have ``slots`` places, of which the first ``count`` are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.quantiles import exact_quantile
from profl.typing import Array, Key

RESTARTS = 8
"""Seedings, of which the best is kept. On three groups of 34, 33 and 33 or 70, 20 and 10 clients one seeding of
k-means++ in ten starts two centres in one group; eight that all do are one case in 10^8."""

STEPS = 20
"""Lloyd steps from each seeding. Groups that are any use settle in five; more cost time in every round."""

PEELS = 3
"""How often rows are set aside: far rows come first, those they hid next. Those left after three are not few."""

STRAY = 8.0
"""Times the median distance from the own centre, beyond which a row is a stray: noise in five directions has 2.4 times
the median as its largest of a hundred, a sensitivity of another group 5 to 20 times."""

MEMBERS = 3
"""Clients that a large cluster has at least: of two, nobody can say which is hostile."""

SHARE = 0.05
"""Of the weight, that a large cluster has at least, for the same reason where weights differ."""


class Groups(NamedTuple):
    labels: Array  # (k,) in 0..slots-1
    kept: Array  # (k,) bool: counts in its cluster's centre and aggregate
    mass: Array  # (slots,) weight of those kept
    large: Array  # (slots,) bool
    centres: Array  # (slots, n)


def kmeans(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Array, Array]:
    """(centres, inertia) of the best restart; each is seeded by a row of draws (restarts, slots). count <= slots."""
    slot = jnp.arange(draws.shape[1])
    used = (slot < count)[:, None]

    def seed(near: Array, draw: Array) -> tuple[Array, Array]:
        total = jnp.cumsum(weights * jnp.where(jnp.isinf(near), 1.0, near))
        centre = x[jnp.argmax(total > draw * total[-1])]
        return jnp.minimum(near, jnp.sum((x - centre) ** 2, 1)), centre

    def step(_: int, centres: Array) -> Array:
        compare = jnp.where(used, jnp.sum(centres**2, 1)[:, None] - 2 * centres @ x.T, jnp.inf)
        member = weights * (jnp.argmin(compare, 0) == slot[:, None])
        mass = jnp.sum(member, 1)[:, None]
        return jnp.where(mass > 0, member @ x / jnp.where(mass > 0, mass, 1.0), centres)

    def restart(draws: Array) -> tuple[Array, Array]:
        centres = jax.lax.scan(seed, jnp.full(x.shape[0], jnp.inf, x.dtype), draws)[1]
        centres = jax.lax.fori_loop(0, STEPS, step, centres)
        return centres, jnp.sum(weights * jnp.min(distances(x, centres, count), 1))

    centres, inertia = jax.vmap(restart)(draws)
    return centres[jnp.argmin(inertia)], jnp.min(inertia)


def peel(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Groups, Array]:
    """The first division all of whose clusters are large and close, rows that are not set aside each time.

    Also whether there is one; the first division of all if there is none. draws: (PEELS + 1, RESTARTS, slots).
    """

    def divide(kept: Array, draws: Array) -> tuple[Array, tuple[Groups, Array]]:
        used = weights * kept
        centres, _ = kmeans(draws, x, used, count)
        labels = jnp.argmin(distances(x, centres, count), 1)
        member = (labels[:, None] == jnp.arange(draws.shape[1])) & kept[:, None]
        mass = used @ member
        large = (jnp.sum(member, 0) >= MEMBERS) & (mass >= SHARE)
        off = jnp.sqrt(jnp.min(distances(x, centres, count), 1))
        apart = member & (off > STRAY * exact_quantile(off[:, None], used))[:, None]
        few = (jnp.sum(apart, 0) < MEMBERS) | (used @ apart < SHARE)  # more of them are a group, and no strays
        stray = jnp.any(apart & few, 1)
        fits = (jnp.sum(large) == count) & ~jnp.any(stray)
        return kept & large[labels] & ~stray, (Groups(labels, kept, mass, large, centres), fits)

    _, (groups, fits) = jax.lax.scan(divide, weights > 0, draws)
    return trees.take(groups, jnp.argmax(fits)), jnp.any(fits)


def silhouette(x: Array, weights: Array, groups: Groups, count: Array) -> Array:
    """Mean of 1 - (distance to the own centre) / (distance to the next one)."""
    table = jnp.sqrt(distances(x, groups.centres, count))
    own = jnp.arange(table.shape[1]) == groups.labels[:, None]
    next_one = jnp.min(jnp.where(own, jnp.inf, table), 1)
    values = 1 - jnp.min(table, 1) / jnp.maximum(next_one, jnp.finfo(x.dtype).tiny)
    used = weights * groups.kept
    return jnp.sum(used * values) / jnp.sum(used)


def distances(x: Array, centres: Array, count: Array | int) -> Array:
    """Squared distances (k, slots) to the centres in use; infinite to the others."""
    return jnp.where(jnp.arange(centres.shape[0]) < count, jnp.sum((x[:, None] - centres) ** 2, -1), jnp.inf)


def random_like(like: Array, sampler: Callable[..., Array], key: Key, shape: tuple[int, ...]) -> Array:
    """Random numbers in ``like``'s precision, drawn as one flat row.

    In several dimensions they take XLA's CPU compiler eight times as long.
    """
    return sampler(key, (math.prod(shape),), like.dtype).reshape(shape)
