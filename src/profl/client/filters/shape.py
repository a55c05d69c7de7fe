"""The shape of a batch: lines along which a group would lie apart, and how far every sample is from the middle.

In coordinates z that are measured by the bulk's sigma along each axis, around their mean, and with weights u that fall
with the distance r,

    C = sum_j u_j z_j z_j^T             r_j^2 = z_j^T C^-1 z_j
    t = C^-1 sum_j u_j r_j^2 z_j        M = sum_j u_j r_j^2 z_j z_j^T

Between a bulk and a group of the same covariance, the line that tells them apart best is C^-1 times their difference
(Fisher); t points along it unless both are as large, and then it is an end of the spectrum of C^-1 M. These see junk in
a thin direction of correlated data. Beside them the top of C, which is less noisy, and the axes. Coordinates without a
width (zeros, rare events) are left out of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.client.filters.lines import Bulk, bulk_of
from profl.client.filters.points import POWER_STEPS, SMALL, TILT
from profl.client.filters.table import FINE
from profl.linear import inverse
from profl.loops import short_loop
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


def shape_of(points: Array, present: Array, rows: int) -> Shape:
    """Of (d, n) points, of which those present count, ``rows`` at most."""
    d = points.shape[0]
    share = present / jnp.maximum(jnp.sum(present), 1)
    mean = points @ share
    deviation = jnp.sqrt((points - mean[:, None]) ** 2 @ share)
    axes = bulk_of(points, present, mean, jnp.where(deviation > 0, deviation, 1.0) / FINE)
    usable = axes.sigma > 0
    z = (points - axes.centre[:, None]) / jnp.where(usable, axes.sigma, 1.0)[:, None]
    z = jnp.where(usable[:, None], z, 0.0)
    free = jnp.maximum(jnp.sum(usable), 1)
    moved, weight, square, covariance, inverted = _around(z, present, usable, d <= SMALL and rows >= PER_DIMENSION * d)
    found = []
    if d > 1:
        heavy = weight * square / (1 + square / (CLIP * free))
        found.append(inverted @ (moved @ heavy) if inverted is not None else moved @ heavy)
    if d > 1 and covariance is not None:
        fourth = (moved * heavy) @ moved.T
        fourth = inverted @ fourth if inverted is not None else fourth
        top = _power(fourth)
        found += [top, _power(jnp.linalg.norm(fourth @ top) * jnp.eye(d, dtype=z.dtype) - fourth), _power(covariance)]
    found = [direction / jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(z.dtype).tiny) for direction in found]
    distance = jnp.sqrt(jnp.maximum(square, 0.0))[None]
    others = jnp.concatenate([jnp.stack(found) @ moved, distance]) if found else distance
    spread = jnp.sqrt(others**2 @ weight)
    own = bulk_of(others, present, 0 * spread, jnp.where(spread > 0, spread, 1.0) / FINE)
    spread = jnp.sqrt(jnp.diag(covariance)) if covariance is not None and inverted is not None else 1.0
    coarsest = jnp.max(jnp.where(usable, axes.grain / jnp.where(usable, axes.sigma * spread, 1.0), 0.0))
    smooth = (np.arange(len(others)) < len(others) - 1) | (coarsest < COARSE * own.sigma)
    own = own._replace(sigma=jnp.where(smooth, own.sigma, 0.0))
    directions = jnp.stack([*(each / jnp.where(usable, axes.sigma, 1.0) for each in found), jnp.zeros(d)])
    if inverted is not None and d > 1:
        return Shape(others, own, directions, free)
    chosen = jax.lax.top_k(jnp.where(usable, jnp.mean(jnp.abs(z), axis=1), 0.0), min(d, AXES))[1]
    if d <= AXES:
        chosen = jnp.arange(d)
    axes = jax.tree.map(lambda values: values[chosen], axes)
    lines = jnp.concatenate([points[chosen], others])
    bulk = jax.tree.map(lambda *pair: jnp.concatenate(pair), axes, own)
    return Shape(lines, bulk, jnp.concatenate([jax.nn.one_hot(chosen, d), directions]), free)


def _around(
    z: Array, present: Array, usable: Array, full: bool
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """z around their mean, u, r^2, C (where d is small) and its inverse (where there are samples enough)."""
    free = jnp.maximum(jnp.sum(usable), 1)
    moved, square, covariance, inverted = z, jnp.sum(z**2, axis=0), None, None
    weight = present.astype(z.dtype)
    for _ in range(2):
        weight = present / (1 + square / (CLIP * free))
        weight = weight / jnp.sum(weight)
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
    return moved, weight, square, covariance, inverted


def _power(matrix: Array) -> Array:
    """The leading eigenvector."""
    size = matrix.shape[0]

    def turn(_: int, v: Array) -> Array:
        turned = matrix @ v
        return turned / jnp.maximum(jnp.linalg.norm(turned), jnp.finfo(turned.dtype).tiny)

    return short_loop(POWER_STEPS, turn, 1 + TILT * jnp.arange(1, size + 1, dtype=matrix.dtype))
