"""What clients are compared by, made of the Jacobians that they report (paper, Algorithm 1, line 18).

1. rows     the reported J_i, flattened. Refused rows, and rows farther from the coordinate median than OUTSIDE_DISTANCE
            times the larger of the 75 % distance and the median's own length (-50 J_i, say), belong to no cluster.
2. scores   rows on their leading principal directions, because distances over 25 noisy numbers are mostly noise. Rows
            are pulled to the median distance first, so that a few far ones cannot turn the axes, and the variance that
            noise explains is subtracted from a direction. A row that lies OFF_AXIS_DISTANCE times as far off these
            directions as usual counts in no centre and no aggregate; it gets the nearest label.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.numerics import exact_quantile
from profl.typing import Array

LARGEST_ENTRY = 1e15
"""Largest entry of a row: squares of larger ones, summed over a row, may overflow in single precision (3e38)."""

OUTSIDE_DISTANCE = 5.0
"""A row is outside where it is farther from the median than this times the OUTSIDE_QUANTILE distance. On the draws of
``profl.server.kmeans`` 2.5 and 10 do as well: honest sensitivities that differ by a factor of five must stay inside,
and -50 J_i must not."""

OUTSIDE_QUANTILE = 0.75
"""Share of the weight whose distance is taken as honest: with 20 % of clients hostile the 75 % distance is."""

DIRECTIONS = 5
"""Leading principal directions: five tell six groups apart, the most that "auto" looks for by default. On the draws of
``profl.server.kmeans`` 2 divide one group in one of 24; 10 find 70 : 20 : 10 in 0.33 (0.92 with 5)."""

NOISE_FACTOR = 1.5
"""The noise in a direction, as a multiple of the variance of the next direction: leading directions of noise have more
variance than those that follow. With 0 three groups are never found; 3 does as well."""

OFF_AXIS_DISTANCE = 3.0
"""Times the usual distance from the directions, beyond which a row counts in no aggregate. That distance sums about
twenty noisy squares and hardly varies among honest rows: three times it is no noise. 1.5 and 6 find the same."""

LEAST_PULL_SHARE = 1e-3
"""Share of the largest distance to which rows are pulled at least: where most rows agree, the median distance is zero.
"""

LEAST_OFF_AXIS_SHARE = 0.01
"""Share of the typical distance that is added to the usual distance off the directions: without noise that is rounding.
"""


class ScoredRows(NamedTuple):
    """Reported Jacobians as rows, and their scores."""

    vectors: Array  # (k, m), zero where outside
    weights: Array  # (k,), zero where the row must not count
    inside: Array  # (k,) bool: accepted, finite and not outside
    scores: Array  # (k, n) on the leading directions


def score_rows(jacobians: Array, weights: Array, accepted: Array) -> ScoredRows:
    """The rows of ``jacobians`` (k, p, s) that can be used, and their scores."""
    vectors = jacobians.reshape(jacobians.shape[0], -1)
    inside = accepted & jnp.all(jnp.abs(vectors) < LARGEST_ENTRY, 1)
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0).astype(vectors.dtype)
    median = exact_quantile(vectors, weights)
    distance = jnp.linalg.norm(vectors - median, axis=1)
    honest = exact_quantile(distance[:, None], weights, OUTSIDE_QUANTILE)
    inside &= distance <= OUTSIDE_DISTANCE * jnp.maximum(honest, jnp.linalg.norm(median))
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0)
    tiny = jnp.finfo(vectors.dtype).tiny
    weights = weights / jnp.maximum(jnp.sum(weights), tiny)

    moves, distance = jnp.where(inside[:, None], vectors - median, 0.0), jnp.where(inside, distance, 0.0)
    typical = jnp.maximum(exact_quantile(distance[:, None], weights), LEAST_PULL_SHARE * jnp.max(distance))
    pulled = jnp.minimum(1.0, typical / jnp.maximum(distance, tiny))[:, None] * moves
    _, singular, directions = jnp.linalg.svd(jnp.sqrt(weights)[:, None] * pulled, full_matrices=False)
    rank = singular.shape[0]
    variance, directions = singular**2, directions[:DIRECTIONS]
    noise = NOISE_FACTOR * variance[min(DIRECTIONS, rank - 1)] if rank > 2 else 0.0
    factor = jnp.sqrt(jnp.maximum(variance - noise, 0.0) / jnp.maximum(variance, tiny)).at[0].set(1.0)[:DIRECTIONS]
    scores = moves @ directions.T
    off_axis = jnp.linalg.norm(moves - scores @ directions, axis=1)
    usual = exact_quantile(off_axis[:, None], weights) + LEAST_OFF_AXIS_SHARE * typical
    return ScoredRows(vectors, jnp.where(off_axis <= OFF_AXIS_DISTANCE * usual, weights, 0.0), inside, scores * factor)
