"""The shape of a batch: lines along which a group would lie apart, and how far every sample is from the middle.

In coordinates z that are measured by the bulk's sigma along each axis, and with samples far out counting less (u),

    C = sum_j u_j z_j z_j^T,    r_j^2 = z_j^T C^-1 z_j,    t = C^-1 sum_j u_j r_j^2 z_j,    M = sum_j u_j r_j^2 z_j z_j^T

Between a bulk and a group of the same covariance, the line that tells them apart best is C^-1 times their difference
(Fisher); t points along it unless both are as large, and then it is an end of the spectrum of C^-1 M. None of these
depends on the coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl.client.filters.lines import bulk_of
from profl.client.filters.points import SMALL
from profl.linear import inverse
from profl.loops import short_loop
from profl.typing import Array

CLIP = 9.0
RIDGE = 1e-5
PER_DIMENSION = 8
TURNS = 12
AXES = 8


class Shape(NamedTuple):
    """(k, n) lines through the samples, and the (n,) distances from their middle."""

    lines: Array
    distance: Array


def shape_of(points: Array, present: Array) -> Shape:
    """Of (d, n) points."""
    d, n = points.shape
    points = jnp.where(present, points, 0.0)
    bulk = bulk_of(points, present)
    usable = bulk.sigma > 0
    z = jnp.where(usable[:, None], (points - bulk.centre[:, None]) / jnp.where(usable, bulk.sigma, 1.0)[:, None], 0.0)
    z = jnp.where(present, z, 0.0)
    full = d <= SMALL and n >= PER_DIMENSION * d
    free = jnp.maximum(jnp.sum(usable), 1)
    share = present / jnp.sum(present)
    weight = share
    whiten = jnp.eye(d) if d <= SMALL else None
    moved, square = z, jnp.sum(z**2, axis=0)
    covariance = whiten
    for _ in range(2):
        weight = share / (1 + square / (CLIP * free))
        weight = weight / jnp.sum(weight)
        moved = jnp.where(present, z - (z @ weight)[:, None], 0.0)
        if full:
            covariance = (moved * weight) @ moved.T
            size = jnp.trace(covariance) / free
            covariance = covariance + jnp.diag(jnp.where(usable, RIDGE * size, 1.0))
            whiten = inverse(covariance)
            square = jnp.sum(moved * (whiten @ moved), axis=0)
        else:
            square = jnp.sum(moved**2, axis=0)
    square = jnp.maximum(square, 0.0)
    if d == 1:
        return Shape(points, jnp.sqrt(square))
    heavy = weight * square / (1 + square / (CLIP * free))
    skewed = moved @ heavy
    found = [whiten @ skewed if full else skewed]
    if d <= SMALL:
        fourth = (moved * heavy) @ moved.T
        shape = whiten @ fourth if full else fourth
        start = jnp.ones(d) + 0.01 * jnp.arange(d)
        top = _power(shape, start)
        most = jnp.linalg.norm(shape @ top)
        found += [top, _power(most * jnp.eye(d) - shape, start)]
        if full:
            found.append(_power(covariance, start))
    directions = jnp.stack([v / jnp.maximum(jnp.linalg.norm(v), 1e-30) for v in found])
    lines = directions @ moved
    if d > AXES:
        wide = jnp.where(usable, jnp.mean(jnp.abs(z), axis=1), 0.0)
        points = points[jax.lax.top_k(wide, AXES)[1]]
    return Shape(jnp.concatenate([points, lines]), jnp.sqrt(square))


def _power(matrix: Array, start: Array) -> Array:
    def turn(_: int, v: Array) -> Array:
        new = matrix @ v
        return new / jnp.maximum(jnp.linalg.norm(new), 1e-30)

    return short_loop(TURNS, turn, start / jnp.linalg.norm(start))
