"""What of the reported Jacobians clients are compared by.

1. rows     the reported J_i, flattened. Refused rows, and rows further from the coordinate median than REACH times
            the larger of the 75 % distance and the median's own length (-50 J_i, say): outside, in no cluster.
2. scores   rows on their leading principal directions, since distances over 25 noisy numbers are mostly noise. Rows
            are pulled to the median distance first, so that a few far ones cannot turn the axes, and a direction
            loses the variance that noise explains. A row that lies APART times as far off these directions as usual
            counts in no centre and no aggregate; it gets the nearest label.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.numerics import exact_quantile
from profl.typing import Array

BOUND = 1e15
"""Of an entry: squares of larger ones, summed over a row, need not be numbers in single precision (3e38)."""

REACH, MOST = 5.0, 0.75
"""Times the distance that MOST of the weight lies within, beyond which a row is outside; with 20 % of clients hostile,
the 75 % distance is an honest one. On the draws of ``profl.server.kmeans`` 2.5 and 10 do as well: honest sensitivities
that differ by a factor of five are to stay inside, and -50 J_i is to be out."""

DIRECTIONS = 5
"""Leading directions kept: five tell six groups apart, the most that "auto" looks for by default. On the
draws of ``profl.server.kmeans`` 2 divide one group in one of 24; 10 find 70 : 20 : 10 in 0.33 (0.92 with 5)."""

FLOOR = 1.5
"""Times the variance of the next direction, which is taken for noise: leading directions of noise have more of it than
those that follow. With 0 three groups are never found; 3 do as well."""

APART = 3.0
"""Times the usual distance from these directions, beyond which a row counts in no aggregate. That distance sums some
twenty noisy squares, and hardly varies among honest rows: three times it is no noise. 1.5 and 6 find the same."""

LEAST_PULL = 1e-3
"""Of the largest distance, to which rows are pulled at least: where most rows agree, the median distance is zero."""

LEAST_OFF = 0.01
"""Of the typical distance, added to the usual distance off the directions: where there is no noise it is rounding."""


class Rows(NamedTuple):
    vectors: Array  # (k, m), zero where outside
    weights: Array  # (k,), zero where the row must not count
    inside: Array  # (k,) bool: accepted, finite and within reach
    scores: Array  # (k, n) on the leading directions


def prepare(jacobians: Array, weights: Array, accepted: Array) -> Rows:
    """Which rows can be used, and their scores."""
    vectors = jacobians.reshape(jacobians.shape[0], -1)
    inside = accepted & jnp.all(jnp.abs(vectors) < BOUND, 1)
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0).astype(vectors.dtype)
    middle = exact_quantile(vectors, weights)
    distance = jnp.linalg.norm(vectors - middle, axis=1)
    most = exact_quantile(distance[:, None], weights, MOST)
    inside &= distance <= REACH * jnp.maximum(most, jnp.linalg.norm(middle))
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0)
    tiny = jnp.finfo(vectors.dtype).tiny
    weights = weights / jnp.maximum(jnp.sum(weights), tiny)

    moves, distance = jnp.where(inside[:, None], vectors - middle, 0.0), jnp.where(inside, distance, 0.0)
    typical = jnp.maximum(exact_quantile(distance[:, None], weights), LEAST_PULL * jnp.max(distance))
    pulled = jnp.minimum(1.0, typical / jnp.maximum(distance, tiny))[:, None] * moves
    _, singular, directions = jnp.linalg.svd(jnp.sqrt(weights)[:, None] * pulled, full_matrices=False)
    rank = singular.shape[0]
    variance, directions = singular**2, directions[:DIRECTIONS]
    noise = FLOOR * variance[min(DIRECTIONS, rank - 1)] if rank > 2 else 0.0
    factor = jnp.sqrt(jnp.maximum(variance - noise, 0.0) / jnp.maximum(variance, tiny)).at[0].set(1.0)[:DIRECTIONS]
    scores = moves @ directions.T
    rest = jnp.linalg.norm(moves - scores @ directions, axis=1)
    usual = exact_quantile(rest[:, None], weights) + LEAST_OFF * typical
    return Rows(vectors, jnp.where(rest <= APART * usual, weights, 0.0), inside, scores * factor)
