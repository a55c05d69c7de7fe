"""The point of a polyhedron that is nearest to a target: projections, and quadratics with linear constraints.

    minimise (x - target)' H (x - target) / 2    subject to    A x <= b,  lower <= x <= upper

by the dual active-set method of Goldfarb and Idnani (1983): begin with the target inside the bounds alone, take in the
constraint that is violated most, let go of one whose multiplier would become negative, until none is violated. It ends
after finitely many turns at the exact answer, which is then computed once more from the constraints that hold it.
Bounds are no rows of A: what they hold is left out of the equations, which have as many unknowns as A has rows.

The same lines run in NumPy, where a problem is made, and compiled. optax has projections onto boxes and onto one
halfspace or ball, none onto several halfspaces at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.numerics import inverse_logdet
from profl.typing import Array

ROUNDING = 16.0
"""Machine epsilons of the numbers in a sum by which a constraint may be missed: less is rounding."""

DEPENDENT = 100.0
"""Machine epsilons of a normal's squared length: with less left beside the others it points where they do."""

TURNS = 8
"""Turns per constraint at most. A constraint is seldom taken in twice."""


class Region(NamedTuple):
    """A x <= b and bounds; the rows of A have length one."""

    A: Any  # (m, d)
    b: Any  # (m,)
    lower: Any  # (d,)
    upper: Any  # (d,)

    @property
    def bounds(self) -> tuple[Any, Any]:
        return self.lower, self.upper


class Turn(NamedTuple):
    """The method after some turns."""

    point: Any  # (d,)
    rows: Any  # (m,) bool: the rows that hold the point
    side: Any  # (d,): -1 where the lower bound holds it, 1 where the upper one does, else 0
    row_multipliers: Any  # (m,)
    side_multipliers: Any  # (d,)
    chosen: Any  # (m + 2 d,) bool: the constraint that is being taken in
    multiplier: Any  # and its multiplier so far
    pending: Any  # bool: whether it is to be taken in further
    violation: Any  # (m + 2 d,): by how much more than rounding each other constraint is violated
    stuck: Any  # bool: no point satisfies all constraints
    number: Any


class Metric(NamedTuple):
    """H, or None for the identity, and the functions that it comes with."""

    H: Any
    xp: Any  # numpy or jax.numpy

    def inverse(self, matrix: Any) -> Any:
        return np.linalg.inv(matrix) if self.xp is np else inverse_logdet(matrix)[0]

    def times(self, vector: Any) -> Any:
        return vector if self.H is None else vector @ self.H

    def solve_free(self, free: Any) -> Callable[[Any], Any]:
        """A function that solves H x = v among the coordinates that are ``free`` (d,), for v (d,) or rows of them."""
        if self.H is None:
            return lambda v: v * free
        both = free[:, None] * free
        inverse = self.inverse(self.H * both + self.xp.diag(1 - free)) * both
        return lambda v: v @ inverse


def nearest_point(region: Region, target: Any, H: Any = None, xp: Any = jnp) -> tuple[Any, Any]:
    """(the nearest point (d,), whether no point satisfies all constraints ()); see the equation above.

    >>> ladder = Region(np.array([[1.0, -1.0]]) / 2**0.5, np.zeros(1), np.zeros(2), np.full(2, 5.0))
    >>> nearest_point(ladder, np.array([3.0, 1.0]), xp=np)[0]
    array([2., 2.])
    """
    end = active_set(region, target, H, xp)
    return held_point(region, Metric(H, xp), target, end.rows, end.side), end.stuck


def active_set(region: Region, target: Any, H: Any = None, xp: Any = jnp) -> Turn:
    """The method's last turn: which constraints hold the nearest point, and with which multipliers."""
    metric, fixed = Metric(H, xp), target if xp is np else jax.lax.stop_gradient(target)
    m, d = region.A.shape
    most, start = TURNS * (m + 2 * d), first_turn(region, metric, fixed)

    def goes_on(now: Turn) -> Any:
        return ~now.stuck & (now.number < most) & (now.pending | xp.any(now.violation > 0))

    def turn(now: Turn) -> Turn:
        return next_turn(region, metric, now)

    end = start
    if xp is np:
        while goes_on(end):
            end = turn(end)
    else:
        end = jax.lax.while_loop(goes_on, turn, start)
    return end


def first_turn(region: Region, metric: Metric, target: Any) -> Turn:
    """Without rows: where distances are plain ones the target is clipped, else it stands as it is."""
    xp, (m, d) = metric.xp, region.A.shape
    point = xp.clip(target, *region.bounds) if metric.H is None else target
    side, none = xp.sign(target - point), xp.zeros_like(point[0])
    rows = xp.zeros(m, bool)
    return Turn(
        point=point,
        rows=rows,
        side=side,
        row_multipliers=xp.zeros_like(region.b),
        side_multipliers=xp.abs(target - point),
        chosen=xp.zeros(m + 2 * d, bool),
        multiplier=none,
        pending=none > 0,
        violation=violations(region, xp, point, rows, side),
        stuck=none > 0,
        number=0,
    )


def misses(region: Region, xp: Any, point: Any) -> Any:
    """By how much each constraint is missed, (m + 2 d,): rows, lower bounds, upper bounds."""
    return xp.concatenate([region.A @ point - region.b, region.lower - point, point - region.upper])


def tolerances(region: Region, xp: Any, point: Any) -> Any:
    """What of that is rounding, (m + 2 d,)."""
    A, b, *bounds = region
    sizes = [xp.where(xp.isfinite(bound), xp.abs(bound), 0.0) + xp.abs(point) for bound in bounds]
    epsilon = xp.finfo(point.dtype).eps
    return ROUNDING * epsilon * xp.concatenate([xp.abs(A) @ xp.abs(point) + xp.abs(b), *sizes])


def violations(region: Region, xp: Any, point: Any, rows: Any, side: Any) -> Any:
    """``Turn.violation``; those that hold the point are not asked."""
    asked = xp.concatenate([~rows, side == 0, side == 0])
    return xp.where(asked, misses(region, xp, point) - tolerances(region, xp, point), -xp.inf)


def multiplier_inverse(metric: Metric, region: Region, rows: Any, solve: Callable[[Any], Any]) -> Any:
    """The inverse (m, m) of what the rows that hold a point see of each other; the identity for the others."""
    on = rows.astype(region.b.dtype)
    return metric.inverse((solve(region.A) @ region.A.T) * (on[:, None] * on) + metric.xp.diag(1 - on))


def next_turn(region: Region, metric: Metric, now: Turn) -> Turn:
    """One turn: the violated constraint is taken in, or another one is let go for it."""
    xp, A, (m, d) = metric.xp, region.A, region.A.shape
    on, dtype = now.rows.astype(region.b.dtype), region.b.dtype
    chosen = xp.where(now.pending, now.chosen, xp.arange(m + 2 * d) == xp.argmax(now.violation))
    of_row, of_lower, of_upper = (part.astype(dtype) for part in (chosen[:m], chosen[m : m + d], chosen[m + d :]))
    normal = of_row @ A + of_upper - of_lower
    multiplier = xp.where(now.pending, now.multiplier, 0.0)

    solve = metric.solve_free((now.side == 0).astype(dtype))
    row_change = on * (multiplier_inverse(metric, region, now.rows, solve) @ (A @ solve(normal)))
    left = normal - row_change @ A
    step = -solve(left)
    side_change = now.side * (left + metric.times(step))
    slope, whole = -(normal @ step), normal @ solve(normal)
    dependent = slope <= DEPENDENT * xp.finfo(dtype).eps * whole

    miss = xp.sum(xp.where(chosen, misses(region, xp, now.point), 0.0))
    full = xp.where(dependent, xp.inf, xp.maximum(miss, 0.0) / xp.where(dependent, 1.0, slope))
    change = xp.concatenate([row_change, side_change])
    multipliers = xp.concatenate([now.row_multipliers, now.side_multipliers])
    shrinks = change > 0
    lengths = xp.where(shrinks, multipliers / xp.where(shrinks, change, 1.0), xp.inf)
    partial = xp.min(lengths)
    length = xp.minimum(full, partial)
    stuck = ~xp.isfinite(length)
    length = xp.where(stuck, 0.0, length)
    taken, freed = ~stuck & (full <= partial), ~stuck & (full > partial)

    point = now.point + xp.where(dependent, 0.0, length) * step
    let_go = freed & (xp.arange(m + d) == xp.argmin(lengths))
    multipliers = xp.where(let_go, 0.0, xp.maximum(multipliers - length * change, 0.0))
    multiplier = multiplier + length
    rows = (now.rows & ~let_go[:m]) | (taken & chosen[:m])
    new_side = (of_upper - of_lower) * taken
    side = xp.where(let_go[m:], 0.0, now.side) + new_side
    return Turn(
        point=point,
        rows=rows,
        side=side,
        row_multipliers=multipliers[:m] + of_row * taken * multiplier,
        side_multipliers=multipliers[m:] + xp.abs(new_side) * multiplier,
        chosen=chosen,
        multiplier=multiplier,
        pending=freed,
        violation=violations(region, xp, point, rows, side),
        stuck=stuck,
        number=now.number + 1,
    )


def held_point(region: Region, metric: Metric, target: Any, rows: Any, side: Any) -> Any:
    """The nearest point (d,) with those rows and bounds as equations: also right as a function of the target."""
    xp, fixed = metric.xp, side != 0
    solve = metric.solve_free((~fixed).astype(target.dtype))
    bound = xp.where(side > 0, region.upper, xp.where(side < 0, region.lower, target))
    point = bound - solve(metric.times(bound - target))
    inverse, on = multiplier_inverse(metric, region, rows, solve), rows.astype(target.dtype)
    for _ in range(3):  # the second and the third take away rounding
        point = point - solve((on * (inverse @ (on * (region.A @ point - region.b)))) @ region.A)
    return point


def pull_inside(region: Region, point: Array, centre: Array) -> Array:
    """``point`` if it satisfies the constraints but for rounding; else what is inside of the way there from ``centre``.

    So nothing leaves the region, whatever became of the arithmetic. ``centre`` lies inside.
    """
    m, inside = region.b.size, jnp.clip(point, *region.bounds)
    over = misses(region, jnp, inside)[:m]
    room = jnp.maximum(-misses(region, jnp, centre)[:m], 0.0)
    bad = over > tolerances(region, jnp, inside)[:m]
    share = jnp.min(jnp.where(bad, room / jnp.where(bad, room + over, 1.0), 1.0))
    return jnp.where(share < 1, jnp.clip(centre + share * (inside - centre), *region.bounds), inside)
