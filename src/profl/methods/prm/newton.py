"""Where a quadratic is least inside a region: steps that need no learning rate."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from profl.typing import Array

FLATTEST = 1e-4  # of the largest curvature: a direction flatter than that is taken to be as curved
FARTHEST = 16.0  # units: a minimum farther away is not believed, so that a straight line has a curvature as well
ROUNDS = 4  # of guessing which coordinates are held by the region; each starts from the last one's answer
TOUCH = 2.0**-10  # units: what a coordinate is moved by to see whether it is held


def upright(curvature: Array, slope: Array) -> Array:
    """A positive definite matrix that bends as much as ``curvature``, downwards where that bends upwards.

    >>> upright(jnp.diag(jnp.array([2.0, -1.0])), jnp.zeros(2))
    Array([[2., 0.],
           [0., 1.]], dtype=float32)
    """
    values, axes = jnp.linalg.eigh((curvature + curvature.T) / 2)
    values = jnp.abs(values)
    least = FLATTEST * jnp.max(values) + jnp.max(jnp.abs(slope)) / FARTHEST + jnp.finfo(values.dtype).tiny
    return (axes * jnp.maximum(values, least)) @ axes.T


def free(slope: Array, at: Array, inside: Callable[[Array], Array]) -> Array:
    """Which coordinates could go on downhill from ``at``; the others are held by the region, (d,) bool."""
    return inside(at - TOUCH * jnp.sign(slope)) != at


def least_inside(curvature: Array, slope: Array, at: Array, inside: Callable[[Array], Array]) -> Array:
    """Where slope (y - at) + (y - at)' curvature (y - at) / 2 is least, as far as ``inside(y)`` lets it go.

    >>> box = lambda y: jnp.clip(y, -1.0, 1.0)
    >>> least_inside(jnp.eye(2), jnp.array([3.0, 0.5]), jnp.zeros(2), box)
    Array([-1. , -0.5], dtype=float32)
    """
    y = at
    for _ in range(ROUNDS):
        here = slope + curvature @ (y - at)
        loose = free(here, y, inside)
        held = jnp.diag(jnp.where(loose, 0.0, jnp.trace(jnp.abs(curvature)) / y.size + 1.0))
        whole = upright(jnp.where(loose[:, None] & loose, curvature, held), here)
        y = inside(y - jnp.linalg.solve(whole, jnp.where(loose, here, 0.0)))
    return y
