"""Deterministic solvers for the two points every problem is measured against, on vectors, in double precision.

* the performative optimum: argmin over the model space of L(theta);
* a performatively stable point: theta = Proj(theta - g(theta)), where g is the gradient on the data theta brings in,
  holding those data fixed.

Both end on the residual theta - Proj(theta - g(theta)), which vanishes at a stationary point inside the model space and
also at one on its boundary: by Newton, and, where no risk says what is better, first along the flow. Each runs from
several starts in one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from profl.typing import Array

Field = Callable[[Array], Array]
SOLVED = 1e-9  # residuals below are rounding
STATIONARY = 1e-4  # residual of a stationary point, relative to the point's size
DESCENTS = 4  # from the best of the other starts


def minimise(risk: Field, project: Field, starts: Array, others: Array | None = None) -> tuple[Array, Array]:
    """(the best local minimum, its risk), by projected gradient descent and then Newton from the rows of ``starts``.

    Where the risk may have several minima, the rows of ``others`` with the least risk are starts as well. Their ends
    count only if they are stationary: a risk may fall without bound far away.
    """
    slope, count = jax.grad(risk), starts.shape[0]
    if others is not None:
        heights = jax.lax.map(risk, others)
        starts = jnp.concatenate([starts, others[jnp.argsort(heights)[:DESCENTS]]])  # NaN is last
    ends = jax.vmap(partial(_descend, risk, project))(starts)
    candidates = jnp.concatenate([ends, jax.vmap(partial(_newton, slope, project))(ends)])
    values = jax.vmap(risk)(candidates)
    if others is not None:
        sizes = jax.vmap(lambda point: jnp.max(jnp.abs(point - project(point - slope(point)))))(candidates)
        rests = sizes <= STATIONARY * (1 + jnp.max(jnp.abs(candidates), axis=1))
        values = jnp.where(rests | jnp.tile(jnp.arange(starts.shape[0]) < count, 2), values, jnp.nan)
    best = jnp.nanargmin(values)
    return candidates[best], values[best]


def stable_point(field: Field, project: Field, starts: Array) -> Array:
    """A fixed point of repeated gradient descent with the ``field`` g.

    Repeated gradient descent runs first, so that an attracting point is preferred; Newton finds others.
    """
    slopes = jax.vmap(jax.jacobian(field))(starts)
    eta = 0.5 / jnp.maximum(jnp.max(jnp.abs(slopes)) * starts.shape[1], 1.0)

    def descend(start: Array) -> Array:
        def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            theta, _, count = carry
            new = project(theta - eta * field(theta))
            return new, jnp.max(jnp.abs(new - theta)), count + 1

        first = (project(start), jnp.full((), jnp.inf), jnp.zeros((), int))
        return jax.lax.while_loop(lambda carry: (carry[1] > 1e-5 * eta) & (carry[2] < 1000), body, first)[0]

    ends = jax.vmap(descend)(starts)
    others = [jax.vmap(partial(way, field, project))(ends) for way in (_follow, _newton)]
    candidates = jnp.concatenate([ends, *others])
    sizes = jax.vmap(lambda theta: jnp.max(jnp.abs(theta - project(theta - field(theta)))))(candidates)
    return candidates[jnp.nanargmin(jnp.maximum(sizes, SOLVED))]  # of several that are solved, the first


def _follow(field: Field, project: Field, theta: Array, iterations: int = 500) -> Array:
    """Along the flow theta' = -r(theta) of the projected residual r to where it rests, by implicit steps

        theta <- theta - (dr/dtheta + I / step)^-1 r,    the step in inverse proportion to |r|

    (pseudo-transient continuation). Far away it is repeated gradient descent with steps as long as the flow allows,
    and so comes to points that attract; near one it is Newton. For models of at most 256 numbers.
    """
    if theta.shape[0] > 256:
        return theta

    def residual(point: Array) -> Array:
        return point - project(point - field(point))

    def body(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        point, damping, count = carry
        here = residual(point)
        matrix = jax.jacobian(residual)(point) + damping * jnp.eye(point.shape[0])
        trial = project(point - jnp.linalg.solve(matrix, here))
        size, new = jnp.sum(here**2), jnp.sum(residual(trial) ** 2)
        ratio = jnp.sqrt(new / size)
        good = jnp.isfinite(new) & (ratio < 2)
        damping = jnp.where(good, damping * jnp.clip(ratio, 0.1, 2.0), 4 * damping + 1e-3)
        return jnp.where(good, trial, point), damping, count + 1

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        return (carry[2] < iterations) & (jnp.max(jnp.abs(residual(carry[0]))) > 1e-11)

    return jax.lax.while_loop(unfinished, body, (theta, jnp.ones((), theta.dtype), jnp.zeros((), int)))[0]


def _descend(risk: Field, project: Field, start: Array, iterations: int = 1000) -> Array:
    """Projected gradient descent; the step halves until the risk falls enough and doubles after each success.

    Value and slope travel with the model: one evaluation per trial, which matters where the risk is a sum over rows.
    """
    Carry = tuple[Array, Array, Array, Array, Array]

    def body(carry: Carry) -> Carry:
        theta, value, slope, step, count = carry
        trial = project(theta - step * slope)
        new_value, new_slope = jax.value_and_grad(risk)(trial)
        good = value - new_value - 1e-4 * jnp.sum((trial - theta) ** 2) / step >= 0
        theta, value, slope = (
            jnp.where(good, new, old) for new, old in ((trial, theta), (new_value, value), (new_slope, slope))
        )
        return theta, value, slope, jnp.where(good, step * 2, step / 2), count + 1

    def unfinished(carry: Carry) -> Array:
        theta, _, slope, step, count = carry
        residual = theta - project(theta - slope)
        return (count < iterations) & (step > 1e-12) & (jnp.max(jnp.abs(residual)) > 1e-7)

    theta = project(start)
    first = (theta, *jax.value_and_grad(risk)(theta), jnp.ones((), start.dtype), jnp.zeros((), int))
    return jax.lax.while_loop(unfinished, body, first)[0]


def _newton(field: Field, project: Field, theta: Array, iterations: int = 100) -> Array:
    """Newton on the projected residual, kept only while the residual falls; for models of at most 256 numbers."""
    if theta.shape[0] > 256:
        return theta

    def residual(point: Array) -> Array:
        return point - project(point - field(point))

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        point, count = carry
        slope = jax.jacobian(residual)(point)
        step = jnp.linalg.solve(slope + 1e-14 * jnp.eye(point.shape[0]), residual(point))
        trials = jax.vmap(lambda size: project(point - size * step))(0.5 ** jnp.arange(6.0))
        norms = jax.vmap(lambda trial: jnp.sum(residual(trial) ** 2))(trials)
        best = jnp.argmin(jnp.where(jnp.isfinite(norms), norms, jnp.inf))
        better = norms[best] < jnp.sum(residual(point) ** 2)
        return jnp.where(better, trials[best], point), jnp.where(better, count + 1, iterations)

    def unfinished(carry: tuple[Array, Array]) -> Array:
        return (carry[1] < iterations) & (jnp.max(jnp.abs(residual(carry[0]))) > 1e-11)

    return jax.lax.while_loop(unfinished, body, (theta, jnp.zeros((), int)))[0]
