"""The shape of a batch: lines along which a group would lie apart, and how far every sample is from the middle.

In coordinates z that are measured by the bulk's sigma along each axis, around their mean, and with weights u that fall
with the distance r,

    C = sum_j u_j z_j z_j^T             r_j^2 = z_j^T C^-1 z_j
    t = C^-1 sum_j u_j r_j^2 z_j        M = sum_j u_j r_j^2 z_j z_j^T

Between a bulk and a group of the same covariance, the line that tells them apart best is C^-1 times their difference
(Fisher); t points along it unless both are as large, and then it is an end of the spectrum of C^-1 M. Another line is
Fisher's own, between what lies ahead along t and the rest. These see junk in a thin direction of correlated data.
Beside them the top of C, which is less noisy, and the axes where C cannot be inverted. Coordinates without a width
(zeros, rare events) are left out of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.numerics import inverse, short_loop
from profl.parts.filters.gap_test import Bulk, bulk_of
from profl.parts.filters.points import POWER_STEPS, SMALL, TILT, shares
from profl.typing import Array

CLIP = 9.0
"""u = 1 / (1 + r^2 / (9 d)): a sample at three times the usual distance counts half."""

RIDGE = 1e-5
"""Of the mean variance, added to C: single precision tells no thinner direction."""

PER_DIMENSION = 8
"""Samples per coordinate from which on C says more than noise; with fewer it is the identity."""

COARSE = 1.0
"""Distances say nothing where one of the coordinates has a grain of more than so many of their sigmas: those of a
lattice lie apart. Of Gaussian coordinates it is half of that, of Poisson(1) counts one and a half."""

AHEAD = 1.0
"""Deviations along t from which on samples may be of a group: with 20 % of them that far out, they lie at two."""

AXES = 8
"""So many axes are looked along at most: those with the largest mean distance in sigmas."""


class Shape(NamedTuple):
    """(k, n) lines through the samples, of which the last is the distance from the middle, and the bulk along each."""

    lines: Array
    bulk: Bulk
    directions: Array
    """(k, d): the lines as functions of the points; zero for the distance."""
    free: Array
    """How many coordinates have a width."""


class Spread(NamedTuple):
    """z around their mean, u, r^2, C (where d is small), its inverse (where there are samples enough), and how many
    coordinates have a width."""

    moved: Array
    weight: Array
    square: Array
    covariance: Array | None
    inverted: Array | None
    free: Array


def shape_of(points: Array, present: Array, rows: int) -> Shape:
    """Of (d, n) points, of which those present count, ``rows`` at most."""
    d = points.shape[0]
    share = present / jnp.maximum(jnp.sum(present), 1)
    mean = points @ share
    axes = bulk_of(points, present, mean, (points - mean[:, None]) ** 2 @ share)
    usable = axes.sigma > 0
    sigma = jnp.where(usable, axes.sigma, 1.0)
    z = jnp.where(usable[:, None], (points - axes.centre[:, None]) / sigma[:, None], 0.0)
    spread = _around(z, present, usable, d <= SMALL and rows >= PER_DIMENSION * d)
    found = _directions(spread) if d > 1 else jnp.zeros((0, d))
    lines = jnp.concatenate([found @ spread.moved, jnp.sqrt(jnp.maximum(spread.square, 0.0))[None]])
    bulk = bulk_of(lines, present, jnp.zeros(len(lines)), lines**2 @ spread.weight)
    deviation = jnp.ones(d) if spread.covariance is None else jnp.sqrt(jnp.diag(spread.covariance))
    coarsest = jnp.max(jnp.where(usable, axes.grain / jnp.where(usable, sigma * deviation, 1.0), 0.0))
    smooth = (np.arange(len(lines)) < len(lines) - 1) | (coarsest < COARSE * bulk.sigma)
    bulk = bulk._replace(sigma=jnp.where(smooth, bulk.sigma, 0.0))
    directions = jnp.concatenate([found / sigma, jnp.zeros((1, d))])
    if spread.inverted is None or d == 1:  # then the axes too, which need no covariance
        chosen = jax.lax.top_k(jnp.where(usable, jnp.abs(z) @ share, 0.0), min(d, AXES))[1]
        lines = jnp.concatenate([points[chosen], lines])
        bulk = jax.tree.map(lambda first, last: jnp.concatenate([first[chosen], last]), axes, bulk)
        directions = jnp.concatenate([jax.nn.one_hot(chosen, d), directions])
    return Shape(lines, bulk, directions, jnp.sum(usable))


def _directions(spread: Spread) -> Array:
    """t, the ends of the spectrum of C^-1 M and the top of C, as rows of length one; only t where there is no C."""
    moved, weight, square, covariance, inverted, free = spread
    heavy = weight * square / (1 + square / (CLIP * free))
    towards = moved @ heavy
    rows = [towards if inverted is None else inverted @ towards]
    if covariance is not None and inverted is not None:
        rows.append(_refined(spread, rows[0]))
    if covariance is not None:
        fourth = (moved * heavy) @ moved.T
        fourth = fourth if inverted is None else inverted @ fourth
        top = _power(fourth)
        bottom = _power(jnp.linalg.norm(fourth @ top) * jnp.eye(top.size, dtype=top.dtype) - fourth)
        rows += [top, bottom, _power(covariance)]
    found = jnp.stack(rows)
    return found / jnp.maximum(jnp.linalg.norm(found, axis=1, keepdims=True), jnp.finfo(found.dtype).tiny)


def _refined(spread: Spread, direction: Array) -> Array:
    """Fisher's line between the samples that lie ahead along a direction and the others, from the others' covariance.

    C holds the group itself: along it clean data look narrow, and t is blurred by all that is as wide.
    """
    moved, weight, _, covariance, _, _ = spread
    assert covariance is not None
    along = direction @ moved
    ahead = along > AHEAD * jnp.sqrt(direction @ covariance @ direction)

    return between(moved, jnp.where(ahead, 0.0, weight), jnp.where(ahead, weight, 0.0))


def between(points: Array, here: Array, there: Array) -> Array:
    """Fisher's line from samples with the weights ``here`` to those ``there``, by the covariance of the first.

    Beyond ``SMALL`` coordinates by their variances alone.
    """
    here, there = shares(here), shares(there)
    centre = points @ here
    rest, apart = points - centre[:, None], points @ there - centre
    variance = rest**2 @ here
    usable = variance > 0
    scale = jnp.where(usable, jax.lax.rsqrt(jnp.where(usable, variance, 1.0)), 0.0)
    if points.shape[0] > SMALL:
        return apart * scale**2
    rest = rest * scale[:, None]
    return scale * (inverse((rest * here) @ rest.T + jnp.diag(jnp.where(usable, RIDGE, 1.0))) @ (scale * apart))


def _around(z: Array, present: Array, usable: Array, full: bool) -> Spread:
    free = jnp.maximum(jnp.sum(usable), 1)
    moved, square, covariance, inverted = z, jnp.sum(z**2, axis=0), None, None
    weight = present.astype(z.dtype)
    for _ in range(2):
        weight = present / (1 + square / (CLIP * free))
        weight = weight / jnp.maximum(jnp.sum(weight), jnp.finfo(z.dtype).tiny)
        moved = z - (z @ weight)[:, None]
        if z.shape[0] <= SMALL:
            covariance = (moved * weight) @ moved.T
        if full:
            assert covariance is not None
            ridge = jnp.where(usable, RIDGE * jnp.trace(covariance) / free, 1.0)
            inverted = inverse(covariance + jnp.diag(ridge))
            square = jnp.sum(moved * (inverted @ moved), axis=0)
        else:
            square = jnp.sum(moved**2, axis=0)
    return Spread(moved, weight, square, covariance, inverted, free)


def _power(matrix: Array) -> Array:
    """The leading eigenvector."""
    size = matrix.shape[0]

    def turn(_: int, v: Array) -> Array:
        turned = matrix @ v
        return turned / jnp.maximum(jnp.linalg.norm(turned), jnp.finfo(turned.dtype).tiny)

    return short_loop(POWER_STEPS, turn, 1 + TILT * jnp.arange(1, size + 1, dtype=matrix.dtype))
