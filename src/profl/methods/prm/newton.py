"""Where a quadratic is least inside a region: steps that need no learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl.methods.prm.settings import (
    ACTIVE_SET_ROUNDS,
    BOUND_PROBE,
    CAUTION,
    FARTHEST_MINIMUM,
    LEAST_CURVATURE,
    REWEIGHTINGS,
)
from profl.numerics import short_loop
from profl.problem.polyhedron import Region, nearest_point, pull_inside
from profl.typing import Array


@dataclass(frozen=True, eq=False)
class LimitedSteps:
    """Steps (d,) from a model that linear limits allow; calling it projects onto them.

    A coordinate that could move downhill says nothing at a slanted face. There a quadratic is minimised over all
    limits at once.
    """

    region: Region  # of steps; that of length zero lies in it

    @classmethod
    def from_models(cls, region: Region, base: Array, units: Array, longest: Any) -> LimitedSteps:
        """The steps in ``units`` from ``base`` to the models of a ``region``, no entry larger than ``longest``."""
        rows = region.A * units
        lengths = jnp.sqrt(jnp.sum(rows**2, axis=1))
        room = jnp.maximum(region.b - region.A @ base, 0.0)
        lower, upper = (jnp.clip((bound - base) / units, -longest, longest) for bound in region.bounds)
        return cls(Region(rows / lengths[:, None], room / lengths, jnp.minimum(lower, 0.0), jnp.maximum(upper, 0.0)))

    def __call__(self, step: Array) -> Array:
        return self._inside(nearest_point(self.region, step)[0])

    def newton_turn(self, curvature: Array, gradient: Array, at: Array, y: Array) -> Array:
        """Where the quadratic of ``newton_turn``, with a positive curvature around ``y``, is least."""
        here = gradient + curvature @ (y - at)
        axes, values = positive_eigenvalues(curvature, here)
        target = y - axes @ ((here @ axes) / values)
        return self._inside(nearest_point(self.region, target, (axes * values) @ axes.T)[0])

    def _inside(self, step: Array) -> Array:
        return pull_inside(self.region, step, jnp.zeros_like(step))


def positive_eigenvalues(curvature: Array, gradient: Array) -> tuple[Array, Array]:
    """The eigenvectors (d, d) of ``curvature``, as columns, and its absolute eigenvalues (d,), made positive.

    They are at least a share of the largest, and so large that a step along ``gradient`` is not too long.

    >>> positive_eigenvalues(jnp.diag(jnp.array([2.0, -1.0])), jnp.zeros(2))[1]
    Array([1., 2.], dtype=float32)
    """
    axes, values = jax.lax.linalg.eigh((curvature + curvature.T) / 2, symmetrize_input=False)
    values = jnp.abs(values)
    least = LEAST_CURVATURE * jnp.max(values) + jnp.max(jnp.abs(gradient)) / FARTHEST_MINIMUM
    return axes, jnp.maximum(values, least + jnp.finfo(values.dtype).tiny)


def positive_inverse(curvature: Array, gradient: Array) -> Array:
    """The inverse (d, d) of ``curvature`` with those eigenvalues.

    >>> positive_inverse(jnp.diag(jnp.array([2.0, -1.0])), jnp.zeros(2))
    Array([[0.5, 0. ],
           [0. , 1. ]], dtype=float32)
    """
    axes, values = positive_eigenvalues(curvature, gradient)
    return (axes / values) @ axes.T


def inactive_bounds(gradient: Array, at: Array, project: Callable[[Array], Array]) -> Array:
    """Which coordinates could move on downhill from ``at``, (d,) bool; the region's bounds hold the others."""
    return project(at - BOUND_PROBE * jnp.sign(gradient)) != at


def minimise_quadratic(curvature: Array, gradient: Array, at: Array, project: Callable[[Array], Array]) -> Array:
    """Where gradient (y - at) + (y - at)' curvature (y - at) / 2 is least, (d,), in the region of ``project``.

    >>> box = lambda y: jnp.clip(y, -1.0, 1.0)
    >>> minimise_quadratic(jnp.eye(2), jnp.array([3.0, 0.5]), jnp.zeros(2), box)
    Array([-1. , -0.5], dtype=float32)
    """
    return short_loop(ACTIVE_SET_ROUNDS, lambda _, y: newton_turn(curvature, gradient, at, y, project), at)


def newton_turn(curvature: Array, gradient: Array, at: Array, y: Array, project: Callable[[Array], Array]) -> Array:
    """A Newton step of that quadratic from ``y`` in the coordinates that no bound holds there, (d,)."""
    if isinstance(project, LimitedSteps):
        return project.newton_turn(curvature, gradient, at, y)
    here = gradient + curvature @ (y - at)
    movable = inactive_bounds(here, y, project).astype(here.dtype)
    here = here * movable
    axes, values = positive_eigenvalues(curvature * movable[:, None] * movable, here)
    return project(y - movable * (axes @ ((here @ axes) / values)))


def minimise_cautiously(
    curvature: Array, covariance: Array, gradient: Array, project: Callable[[Array], Array]
) -> Array:
    """The step s (d,) in the region with the least gradient.s + s'Hs / 2 + CAUTION sqrt(s'Cs).

    That is the expected change of the risk and its standard error, where C is the ``covariance`` of the gradient. A few
    times the root is taken into the curvature anew.

    >>> box = lambda y: jnp.clip(y, -1.0, 1.0)
    >>> minimise_cautiously(jnp.eye(1), jnp.eye(1) * 0.04, jnp.array([0.5]), box).round(1)
    Array([-0.3], dtype=float32)
    """
    start = jnp.zeros_like(gradient)

    def turn(number: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        step, weighed = state
        weighed = jnp.where(jax.lax.rem(number, jnp.full_like(number, ACTIVE_SET_ROUNDS)) == 0, step, weighed)
        size = weighed @ covariance @ weighed
        weight = jnp.where(size > 0, CAUTION * jax.lax.rsqrt(size), 0.0)
        return newton_turn(curvature + weight * covariance, gradient, start, step, project), weighed

    return short_loop((1 + REWEIGHTINGS) * ACTIVE_SET_ROUNDS, turn, (start, start))[0]
