"""Where a quadratic is least inside a region: steps that need no learning rate."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from profl.methods.prm.settings import ACTIVE_SET_ROUNDS, BOUND_PROBE, FARTHEST_MINIMUM, LEAST_CURVATURE
from profl.typing import Array


def make_positive_definite(curvature: Array, gradient: Array) -> Array:
    """A positive definite matrix (d, d) with the eigenvectors and the absolute eigenvalues of ``curvature``.

    Eigenvalues are at least a share of the largest, and so large that a step along ``gradient`` is not too long.

    >>> make_positive_definite(jnp.diag(jnp.array([2.0, -1.0])), jnp.zeros(2))
    Array([[2., 0.],
           [0., 1.]], dtype=float32)
    """
    values, axes = jnp.linalg.eigh((curvature + curvature.T) / 2)
    values = jnp.abs(values)
    least = LEAST_CURVATURE * jnp.max(values) + jnp.max(jnp.abs(gradient)) / FARTHEST_MINIMUM
    least = least + jnp.finfo(values.dtype).tiny
    return (axes * jnp.maximum(values, least)) @ axes.T


def inactive_bounds(gradient: Array, at: Array, project: Callable[[Array], Array]) -> Array:
    """Which coordinates could move on downhill from ``at``, (d,) bool; the region's bounds hold the others."""
    return project(at - BOUND_PROBE * jnp.sign(gradient)) != at


def minimise_quadratic(curvature: Array, gradient: Array, at: Array, project: Callable[[Array], Array]) -> Array:
    """Where gradient (y - at) + (y - at)' curvature (y - at) / 2 is least, (d,), in the region of ``project``.

    >>> box = lambda y: jnp.clip(y, -1.0, 1.0)
    >>> minimise_quadratic(jnp.eye(2), jnp.array([3.0, 0.5]), jnp.zeros(2), box)
    Array([-1. , -0.5], dtype=float32)
    """
    y = at
    for _ in range(ACTIVE_SET_ROUNDS):
        here = gradient + curvature @ (y - at)
        movable = inactive_bounds(here, y, project)
        held = jnp.diag(jnp.where(movable, 0.0, jnp.trace(jnp.abs(curvature)) / y.size + 1.0))
        definite = make_positive_definite(jnp.where(movable[:, None] & movable, curvature, held), here)
        y = project(y - jnp.linalg.solve(definite, jnp.where(movable, here, 0.0)))
    return y
