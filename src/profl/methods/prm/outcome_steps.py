"""Steps that keep limits on what comes in with the stated confidence, and where a quadratic is least among them.

    g_k(y, x) = level_k + slope_k'(y - at) + x^2 bend_k + z_k sqrt(v(y)' V_k v(y) + x^2 spread_k)  <=  0

y is a step from the base in natural units, x the size of the perturbations that clients add, v(y) = (1, y - anchor),
V_k the covariance of value and gradient at the anchor, and z_k the normal quantile of the limit's confidence. Where the
response is unknown the root grows with every step: then steps are short.

g_k is convex in y. Its tangents are rows of a ``Region``, in which the quadratic is minimised exactly; they are taken
anew at every answer, and the last answer is drawn back until g_k itself holds.

Where nothing near the best model keeps the limits, a normal step goes first (Byrd 1987, Omojokun 1989): towards the
nearest model that does, as far as the trust region allows and as the root does not eat up what is gained. What is still
missing there is allowed to the step that follows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.methods.prm.newton import positive_eigenvalues
from profl.methods.prm.settings import ACTIVE_SET_ROUNDS, CAUTION, HALVINGS, NORMAL_SHARES, REWEIGHTINGS
from profl.numerics import short_loop
from profl.problem.polyhedron import Metric, Region, active_set, held_point, nearest_point, pull_inside
from profl.typing import Array


class Cone(NamedTuple):
    """What is predicted of K limited outcomes around the best model, as in the equation above."""

    at: Array  # (d,): the best model
    level: Array  # (K,): there, above the bound
    slope: Array  # (K, d)
    anchor: Array  # (d,)
    covariance: Array  # (K, 1 + d, 1 + d)
    spread: Array  # (K,)
    bend: Array  # (K,): zero or more, for a favourable one is not relied upon
    quantile: Any  # (K,)

    def mean(self, y: Array) -> Array:
        """The expected outcomes above their bounds, (K,)."""
        return self.level + self.slope @ (y - self.at)

    def variance(self, y: Array) -> Array:
        """The variance of that, (K,), from what is unknown of the response."""
        v = jnp.append(1.0, y - self.anchor)
        return jnp.maximum((self.covariance @ v) @ v, 0.0)

    def excess(self, y: Array, size: Array) -> Array:
        """g (K,)."""
        spread = self.variance(y) + size**2 * self.spread
        return self.mean(y) + size**2 * self.bend + self.quantile * jnp.sqrt(spread)

    def tangent(self, y: Array, size: Array) -> tuple[Array, Array]:
        """(A (K, d), b (K,)): A x <= b is the tangent of g <= 0 at y."""
        v = jnp.append(1.0, y - self.anchor)
        spread = self.variance(y) + size**2 * self.spread
        root = jnp.where(spread > 0, jax.lax.rsqrt(jnp.where(spread > 0, spread, 1.0)), 0.0)
        A = self.slope + (self.quantile * root)[:, None] * (self.covariance @ v)[:, 1:]
        return A, A @ y - self.excess(y, size)

    def curvature(self, y: Array, size: Array, multipliers: Array) -> Array:
        """The second derivative (d, d) of sum_k multipliers_k g_k."""
        v = jnp.append(1.0, y - self.anchor)
        spread = self.variance(y) + size**2 * self.spread
        root = jnp.where(spread > 0, jax.lax.rsqrt(jnp.where(spread > 0, spread, 1.0)), 0.0)
        slope, weight = (self.covariance @ v)[:, 1:], multipliers * self.quantile * root
        return jnp.tensordot(weight, self.covariance[:, 1:, 1:], 1) - slope.T @ ((weight * root**2)[:, None] * slope)

    def largest_size(self, y: Array) -> Array:
        """The largest perturbations with which every limit holds at y, (); 0 where one does not hold without any."""
        room, z2 = -self.mean(y), self.quantile**2
        left = room**2 - z2 * self.variance(y)
        half = 2 * room * self.bend + z2 * self.spread
        root = half + jnp.sqrt(jnp.maximum(half**2 - 4 * self.bend**2 * left, 0.0))
        square = jnp.where(root > 0, 2 * left / jnp.where(root > 0, root, 1.0), jnp.inf)
        return jnp.sqrt(jnp.min(jnp.where((room >= 0) & (left >= 0), square, 0.0)))


class Start(NamedTuple):
    """Where the minimisation starts, and what it may assume."""

    point: Array  # (d,): it keeps the limits, or is as near to that as a normal step comes
    size: Array  # (): of the perturbations that are allowed for
    slack: Array  # (K,): what is still missing


def with_rows(region: Region, A: Array, b: Array, kept: Array) -> Region:
    """The region with the rows A x <= b, of length one and not stricter than ``kept`` (d,) allows."""
    lengths = jnp.sqrt(jnp.sum(A**2, 1))
    scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
    rows = A * scale[:, None]
    return region._replace(
        A=jnp.concatenate([region.A, rows]), b=jnp.concatenate([region.b, jnp.maximum(b * scale, rows @ kept)])
    )


def inside(region: Region, point: Array, centre: Array) -> Array:
    """``pull_inside``, also for a region that has no rows."""
    return pull_inside(region, point, centre) if region.b.size else jnp.clip(point, *region.bounds)


def normal_start(cone: Cone, region: Region, planned: Array, floor: Array) -> Start:
    """The normal step from the best model, which is in the region: as long as it makes most room for perturbations of
    the ``planned`` size, and where no room is to be had, misses least."""
    at, far = cone.at, cone.at
    for _ in range(2):  # the second one knows how the root grows
        A, b = cone.tangent(far, planned)
        lengths = jnp.sqrt(jnp.sum(A**2, 1))
        scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1.0), 0.0)
        rows = jnp.concatenate([region.A, A * scale[:, None]]), jnp.concatenate([region.b, b * scale])
        nearest = nearest_point(region._replace(A=rows[0], b=rows[1]), at)[0]
        far = inside(region, jnp.where(jnp.all(jnp.isfinite(nearest)), nearest, at), at)

    def worth(share: Array) -> Array:
        y = at + share * (far - at)
        lengths = jnp.sqrt(jnp.sum(cone.slope**2, 1))
        missing = jnp.max(cone.excess(y, jnp.zeros_like(planned)) / jnp.where(lengths > 0, lengths, 1.0))
        return jnp.where(missing > 0, -missing, jnp.minimum(cone.largest_size(y), planned))

    shares = jnp.asarray(np.linspace(0.0, 1.0, NORMAL_SHARES), at.dtype)
    point = at + shares[jnp.argmax(jax.vmap(worth)(shares))] * (far - at)
    size = jnp.maximum(jnp.minimum(cone.largest_size(point), planned), floor)
    return Start(point, size, jnp.maximum(cone.excess(point, size), 0.0))


def minimise_in_limits(
    cone: Cone, region: Region, start: Start, curvature: Array, covariance: Array, gradient: Array
) -> tuple[Array, Array]:
    """(the step (d,) that ``newton.minimise_cautiously`` finds inside the limits, their multipliers (K,)).

    ``gradient`` is that at the base.
    """

    def turn(number: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, weighed, multipliers = state
        weighed = jnp.where(jax.lax.rem(number, jnp.full_like(number, ACTIVE_SET_ROUNDS)) == 0, step, weighed)
        size = weighed @ covariance @ weighed
        weight = jnp.where(size > 0, CAUTION * jax.lax.rsqrt(size), 0.0)
        H = curvature + weight * covariance
        bent = cone.curvature(step, start.size, multipliers)
        new = constrained_newton_step(cone, region, start, H, bent, gradient, step)
        step, multipliers = trees.where(trees.all_finite(new), new, (start.point, jnp.zeros_like(multipliers)))
        return step, weighed, multipliers

    first = start.point, start.point, jnp.zeros_like(cone.level)
    step, _, multipliers = short_loop((1 + REWEIGHTINGS) * ACTIVE_SET_ROUNDS, turn, first)
    return step, multipliers


def constrained_newton_step(
    cone: Cone, region: Region, start: Start, curvature: Array, bent: Array, gradient: Array, y: Array
) -> tuple[Array, Array]:
    """(where the quadratic is least under the tangents at y and at the start, its multipliers (K,)).

    ``bent`` is the curvature around y that the limits add.
    """
    here = gradient + curvature @ y
    curvature = curvature + bent
    axes, values = positive_eigenvalues(curvature, here)
    H, target = (axes * values) @ axes.T, y - axes @ ((here @ axes) / values)
    tangents = [cone.tangent(point, start.size) for point in (y, start.point)]
    A, b = (jnp.concatenate(parts) for parts in zip(*tangents, strict=True))
    limited = with_rows(region, A, b + jnp.tile(start.slack, 2), start.point)
    end = active_set(limited, target, H)
    point = held_point(limited, Metric(H, jnp), target, end.rows, end.side)
    point = inside(region, point, start.point)
    lengths = jnp.sqrt(jnp.sum(A**2, 1))
    of_rows = end.row_multipliers[region.b.size :] / jnp.where(lengths > 0, lengths, 1.0)
    return draw_back(cone, start, point), jnp.sum(of_rows.reshape(2, -1), 0)


def draw_back(cone: Cone, start: Start, point: Array) -> Array:
    """The farthest step towards ``point`` from the start at which g does not exceed the slack, to 1 / 2^HALVINGS."""

    def holds(share: Array) -> Array:
        g = cone.excess(start.point + share * (point - start.point), start.size)
        return jnp.all(g <= start.slack)

    def halve(number: Any, low: Array) -> Array:
        middle = low + 2.0 ** -(number + 1.0)
        return jnp.where(holds(middle), middle, low)

    one = jnp.ones_like(start.size)
    share = short_loop(HALVINGS, halve, jnp.zeros_like(one))
    return start.point + jnp.where(holds(one), one, share) * (point - start.point)
