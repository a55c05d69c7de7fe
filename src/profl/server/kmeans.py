"""k-means for clustering clients, without outliers (paper, Algorithm 1, line 18).

    seeds      k-means++: each centre is a row, drawn with probability proportional to its squared distance from the
               centres before it
    Lloyd      rows to their nearest centre, centres to their rows' mean; the best of several restarts
    outliers   where a cluster comes out small, or a row lies OUTLIER_DISTANCE times as far from its centre as usual,
               such rows are left out (if they are few) and the rest is divided again: one odd client must neither use
               up a cluster nor hide how well the others fall into groups

The number of clusters in use may be traced: arrays have ``slots`` places, of which the first ``count`` are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.numerics import exact_quantile
from profl.typing import Array, Key

# Figures: how often "auto" finds the right count among 100 clients, J_i = -gamma_i I_5 + noise of 0.3, in 24 draws: for
# one group, three even ones, 70 : 20 : 10 (1.00, 1.00, 0.92 as it is), and three even ones with junk among them: 20 %
# send -50 J_i, 20 % anything, or, at noise of 0.15, one client -J_i (1.00 each).

RESTARTS = 8
"""Seedings, of which the best counts. With 1: 0.96, 1.00, 0.88; with 3 as with 8, which suffice for six groups."""

LLOYD_STEPS = 20
"""Lloyd steps from each seeding. With 4 or 50 the same: clear groups converge at once."""

OUTLIER_PASSES = 3
"""How often rows are left out. With 0 one client that sends -J_i hides the groups in every draw; with 1 in none. Far
rows are left out first, those they hid next, so there are more than one."""

OUTLIER_DISTANCE = 8.0
"""Times the median distance from the own centre, beyond which a row is an outlier. With 4 honest rows are: 0.83 of
70 : 20 : 10, 0.92 of 20 % anything; with 16 the same as with 8."""

LEAST_MEMBERS = 3
"""Clients that a large cluster has at least: of two, nobody can say which is hostile."""

LEAST_CLUSTER_SHARE = 0.05
"""Share of the clients that a large cluster has at least."""


class Groups(NamedTuple):
    """A division of k rows into clusters, in ``slots`` places."""

    labels: Array  # (k,) in 0..slots-1
    in_centre: Array  # (k,) bool: whether the row counts in its cluster's centre and aggregate
    mass: Array  # (slots,) weight of the rows that count
    large: Array  # (slots,) bool
    centres: Array  # (slots, n)


def kmeans(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Array, Array]:
    """(centres, inertia) of the best restart; each is seeded by a row of draws (restarts, slots). count <= slots."""
    slot = jnp.arange(draws.shape[1])
    used = (slot < count)[:, None]

    def seed(near: Array, unit: Array) -> tuple[Array, Array]:
        total = jnp.cumsum(weights * jnp.where(jnp.isinf(near), 1.0, near))
        centre = x[jnp.argmax(total > unit * total[-1])]
        return jnp.minimum(near, jnp.sum((x - centre) ** 2, 1)), centre

    def step(_: int, centres: Array) -> Array:
        compare = jnp.where(used, jnp.sum(centres**2, 1)[:, None] - 2 * centres @ x.T, jnp.inf)
        member = weights * (jnp.argmin(compare, 0) == slot[:, None])
        mass = jnp.sum(member, 1)[:, None]
        return jnp.where(mass > 0, member @ x / jnp.where(mass > 0, mass, 1.0), centres)

    def restart(draws: Array) -> tuple[Array, Array]:
        centres = jax.lax.scan(seed, jnp.full(x.shape[0], jnp.inf, x.dtype), draws)[1]
        centres = jax.lax.fori_loop(0, LLOYD_STEPS, step, centres)
        return centres, jnp.sum(weights * jnp.min(distances(x, centres, count), 1))

    centres, inertia = jax.vmap(restart)(draws)
    return centres[jnp.argmin(inertia)], jnp.min(inertia)


def kmeans_without_outliers(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Groups, Array]:
    """The first division whose clusters are all large and without outliers, and whether there is one, () bool.

    Rows that belong to no large cluster and outliers are left out from one division to the next. Where there is no such
    division it is the very first. ``draws``: (OUTLIER_PASSES + 1, RESTARTS, slots).
    """

    def divide(in_centre: Array, draws: Array) -> tuple[Array, tuple[Groups, Array]]:
        used = weights * in_centre
        centres, _ = kmeans(draws, x, used, count)
        labels = jnp.argmin(distances(x, centres, count), 1)
        member = (labels[:, None] == jnp.arange(draws.shape[1])) & in_centre[:, None]
        mass = used @ member
        large = (jnp.sum(member, 0) >= LEAST_MEMBERS) & (mass >= LEAST_CLUSTER_SHARE)
        distance = jnp.sqrt(jnp.min(distances(x, centres, count), 1))
        far = member & (distance > OUTLIER_DISTANCE * exact_quantile(distance[:, None], used))[:, None]
        few = (jnp.sum(far, 0) < LEAST_MEMBERS) | (
            used @ far < LEAST_CLUSTER_SHARE
        )  # more of them are a group, not outliers
        outlier = jnp.any(far & few, 1)
        fits = (jnp.sum(large) == count) & ~jnp.any(outlier)
        return in_centre & large[labels] & ~outlier, (Groups(labels, in_centre, mass, large, centres), fits)

    _, (groups, fits) = jax.lax.scan(divide, weights > 0, draws)
    return trees.take(groups, jnp.argmax(fits)), jnp.any(fits)


def silhouette(x: Array, weights: Array, groups: Groups, count: Array) -> Array:
    """Mean of 1 - (distance to the own centre) / (distance to the next one)."""
    table = jnp.sqrt(distances(x, groups.centres, count))
    own = jnp.arange(table.shape[1]) == groups.labels[:, None]
    next_one = jnp.min(jnp.where(own, jnp.inf, table), 1)
    values = 1 - jnp.min(table, 1) / jnp.maximum(next_one, jnp.finfo(x.dtype).tiny)
    used = weights * groups.in_centre
    return jnp.sum(used * values) / jnp.sum(used)


def distances(x: Array, centres: Array, count: Array | int) -> Array:
    """Squared distances (k, slots) to the centres in use; infinite to the others."""
    return jnp.where(jnp.arange(centres.shape[0]) < count, jnp.sum((x[:, None] - centres) ** 2, -1), jnp.inf)


def random_like(like: Array, sampler: Callable[..., Array], key: Key, shape: tuple[int, ...]) -> Array:
    """Random numbers in ``like``'s precision, drawn as one flat row.

    In several dimensions they take XLA's CPU compiler eight times as long.
    """
    return sampler(key, (math.prod(shape),), like.dtype).reshape(shape)
