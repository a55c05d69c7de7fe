"""Whether the spread of the data moves with the model, where the family takes it for fixed.

A family with a ``shift`` says where samples lie under another f. Brought to f = 0 by it, they should be spread the same
whatever was deployed: a mean is then taken away, and a standard deviation divided by, where f has one. If

    y = log(variance of a coordinate of what is left) = a + b.s + noise

has a slope b, the family is wrong about the spread. A family without a shift states no such thing.

A client weighs two regressions as deployments come in, with b and without. With Gauss's noise of unknown size and a
conjugate prior the evidence for b is known in closed form, and every deployment is a rank-one update: no system is
solved. Where there is no b, a Bayes factor above c comes about in one of c runs at most, however long they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.problem.families import FLAT, Family, average
from profl.typing import Array, Batch

SLOPE = 25.0
"""Variance of a slope beforehand, per natural unit of the signal, in units of the noise of y. With 500 samples that is
a standard deviation that changes by 16 % in a unit; evidence hardly depends on it."""

BELIEVED = 4.0
"""Deployments' worth of belief that y has the noise of a Gaussian's log variance, 2 / n."""

SOON, EVERY = 100, 8
"""Every one of the first hundred deployments is looked at, then one in eight: what is not seen by then is small."""

MOST = 64
"""Numbers in the signal: with more, the covariance of their slopes is no longer next to nothing, and none is kept."""


class Spread(NamedTuple):
    """What is known of y; the noise of a coordinate is the unit of covariances."""

    first: Array  # y of the first deployment, (m,)
    made: Array  # deployments, () int32
    seen: Array  # those that were looked at, () int32
    fit: Array  # (a - first, b) of every coordinate, (m, 1 + s)
    cov: Array  # of that, (1 + s, 1 + s)
    squares: Array  # what the fit leaves, (m,)
    level: Array  # a - first where b is 0, (m,)
    level_cov: Array  # ()
    level_squares: Array  # (m,)
    price: Array  # half the log of how much more the fit with b could have said, ()


def begin(coordinates: int, signals: int) -> Spread:
    """Before the first deployment."""
    each, number = jnp.zeros(coordinates), jnp.zeros(())
    cov = jnp.diag(jnp.concatenate([jnp.ones(1), jnp.full(signals, SLOPE)]))
    none, fit = jnp.int32(0), jnp.zeros((coordinates, 1 + signals))
    return Spread(each, none, none, fit, cov, each, each, number + 1, each, number)


def followed(family: Family, state: Spread, signal: Array, some: Callable[[], tuple[Batch, Array]], f: Array) -> Spread:
    """The state after one more deployment, from ``some()`` of its samples (``scales.some``)."""

    def look() -> Spread:
        batch, weights = some()
        return update(state, signal, log_spread(family, batch, weights, f), jnp.sum(weights**2))

    due = (state.made < SOON) | (state.made % EVERY == 0)
    return trees.cond_or_keep(due, look, state)._replace(made=state.made + 1)


def update(state: Spread, signal: Array, y: Array, share: Array) -> Spread:
    """The state with one more deployment; ``signal`` in natural units from the first one, ``share`` is 1 / n."""
    start = BELIEVED * 2 * share * jnp.ones_like(y)
    new = state._replace(first=y, squares=start, level_squares=start)
    miss_of = y - state.first
    x = jnp.concatenate([jnp.ones(1, y.dtype), signal])
    gain = jnp.sum(state.cov * x, -1)
    room, level_room = 1 + jnp.maximum(jnp.sum(gain * x), 0.0), 1 + state.level_cov
    miss, level_miss = miss_of - jnp.sum(state.fit * x, -1), miss_of - state.level
    later = Spread(
        state.first,
        state.made,
        state.seen,
        state.fit + miss[:, None] * gain / room,
        state.cov - gain[:, None] * gain / room,
        state.squares + miss**2 / room,
        state.level + level_miss * state.level_cov / level_room,
        state.level_cov / level_room,
        state.level_squares + level_miss**2 / level_room,
        state.price + (jnp.log(room) - jnp.log(level_room)) / 2,
    )
    chosen = trees.where(state.seen == 0, new, later)
    return chosen._replace(seen=state.seen + 1)


def figures(state: Spread) -> dict[str, Array]:
    """Of the coordinate that shows it best, by the signal along which it changes most.

    Evidence in nats that its spread moves, none where that is negative; by how much the logarithm of its standard
    deviation changes with a natural unit, and the standard error of that.
    """
    freedom = BELIEVED + jnp.maximum(state.seen - 1, 0)
    least = jnp.finfo(state.squares.dtype).tiny
    ratio = jnp.log(jnp.maximum(state.level_squares, least)) - jnp.log(jnp.maximum(state.squares, least))
    evidence = freedom / 2 * ratio - state.price - math.log(state.first.size)
    best = jnp.argmax(evidence)
    slope, cov = state.fit[best, 1:], state.cov[1:, 1:]
    length = jnp.sqrt(jnp.sum(slope**2))
    along = slope / jnp.where(length > 0, length, 1.0)
    noise = state.squares[best] / freedom
    error = jnp.sqrt(jnp.maximum(noise * (along @ cov @ along), 0.0))
    return {"spread": jnp.maximum(evidence[best], 0.0), "spread_change": length / 2, "spread_error": error / 2}


def coordinates(family: Family, batch: Batch, f: Array) -> int:
    """How many numbers of a sample the family moves; shapes will do."""
    leaves = jax.tree.leaves(batch)
    return sum(leaves[i].size // leaves[i].shape[0] for i in _moved(family, batch, f))


def log_spread(family: Family, batch: Batch, weights: Array, f: Array) -> Array:
    """y of a batch, one number per coordinate of a sample that the family moves, (m,).

    >>> from profl.problem.families import GaussianMean
    >>> batch, equal = jnp.array([[1.0, 0.0], [3.0, 0.2]]), jnp.array([0.5, 0.5])
    >>> log_spread(GaussianMean(), batch, equal, jnp.array([2.0, 0.1])).round(3)
    Array([ 0.   , -4.605], dtype=float32)
    """
    left, old = jax.tree.leaves(jax.vmap(family.apply_shift, (0, None, None))(batch, -f, f)), jax.tree.leaves(batch)
    return jnp.concatenate([_of_leaf(left[i], old[i], weights) for i in _moved(family, batch, f)])


def _of_leaf(left: Array, old: Array, weights: Array) -> Array:
    """Around zero, where the family put them: one pass over the batch is all that it costs."""
    least = (FLAT * jnp.finfo(left.dtype).eps * old[0]) ** 2 + jnp.finfo(left.dtype).tiny
    return jnp.log(jnp.maximum(average(weights, left**2), least)).ravel()


def _moved(family: Family, batch: Batch, f: Array) -> list[int]:
    """Which leaves of a sample the family moves at all: not those that come out as they went in."""
    z, f = jax.eval_shape(lambda batch, f: (trees.take(batch, 0), f), batch, f)
    traced = jax.make_jaxpr(family.apply_shift)(z, f, f).jaxpr
    return [i for i, leaf in enumerate(traced.outvars) if leaf not in traced.invars and _is_float(leaf.aval)]


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
