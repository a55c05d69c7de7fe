"""Deterministic solvers for the two points every problem is measured against, on vectors, in double precision.

* the performative optimum: argmin over the model space of L(theta);
* a performatively stable point: theta = Proj(theta - g(theta)), where g is the gradient on the data theta brings in,
  holding those data fixed.

Both end on the residual theta - Proj(theta - g(theta)), which vanishes at a stationary point inside the model space and
also at one on its boundary: by Newton, and, where no risk says what is better, first along the flow. Each runs from
several starts at once. The loops are NumPy's and only what they evaluate is compiled, because compiling the loops took
longer than all their turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Rows = np.ndarray
"""One row per start, float64."""

SOLVED = 1e-9  # residuals below are rounding
STATIONARY = 1e-4  # residual of a stationary point, relative to the point's size
DESCENTS = 4  # from the best of the other starts
LARGEST_NEWTON = 256  # numbers of the largest model whose equations are solved
EXACT = 1e-11  # the residual at which Newton stops


class Point(NamedTuple):
    """Points of the model space and what is known there, one row each."""

    theta: Rows  # (k, d)
    value: Rows  # the risk, (k,); zero where there is only a gradient
    slope: Rows  # g, (k, d)
    residual: Rows  # theta - Proj(theta - g(theta)), (k, d)

    @property
    def size(self) -> Rows:
        """The largest entry of the residual, (k,)."""
        return np.max(np.abs(self.residual), axis=1)


class Field(NamedTuple):
    """A gradient, alone or of a risk, on the model space."""

    at: Callable[[Rows], Point]  # of the projected rows
    jacobian: Callable[[Rows], Rows]  # of g, (k, d, d)
    residual_jacobian: Callable[[Rows], Rows]  # of the residual, (k, d, d)


def minimise(risk: Field, starts: Rows, others: Rows | None = None) -> tuple[Rows, Rows]:
    """(the best local minimum (d,), its risk ()), by projected gradient descent and then Newton from ``starts``.

    Where the risk may have several minima, the rows of ``others`` with the least risk are starts as well. Their ends
    count only if they are stationary: a risk may fall without bound far away.
    """
    count = starts.shape[0]
    if others is not None:
        heights = risk.at(others).value
        starts = np.concatenate([starts, others[np.argsort(heights)[:DESCENTS]]])  # NaN is last
    ends = _descend(risk, starts)
    candidates = _concatenate(ends, _newton(risk, ends))
    values = candidates.value
    if others is not None:
        rests = candidates.size <= STATIONARY * (1 + np.max(np.abs(candidates.theta), axis=1))
        values = np.where(rests | np.tile(np.arange(starts.shape[0]) < count, 2), values, np.nan)
    best = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
    return candidates.theta[best], candidates.value[best]


def stable_point(field: Field, starts: Rows) -> Rows:
    """A fixed point (d,) of repeated gradient descent with the ``field`` g.

    Repeated gradient descent runs first, so that an attracting point is preferred; Newton finds others.
    """
    eta = 0.5 / max(np.max(np.abs(field.jacobian(starts))) * starts.shape[1], 1.0)
    ends = _retrain(field, starts, eta)
    candidates = _concatenate(ends, _follow(field, ends), _newton(field, ends))
    sizes = np.where(np.isnan(candidates.size), np.inf, candidates.size)
    return candidates.theta[np.argmin(np.maximum(sizes, SOLVED))]  # of several that are solved, the first


def _retrain(field: Field, starts: Rows, eta: float, iterations: int = 1000) -> Point:
    """Repeated gradient descent, each row until it hardly moves."""
    here, active = field.at(starts), np.ones(starts.shape[0], bool)
    for _ in range(iterations):
        new = field.at(here.theta - eta * here.slope)
        moved = np.max(np.abs(new.theta - here.theta), axis=1)
        here = _choose(active, new, here)
        active &= moved > 1e-5 * eta
        if not active.any():
            break
    return here


def _follow(field: Field, here: Point, iterations: int = 500) -> Point:
    """Along the flow theta' = -r(theta) of the projected residual r to where it rests, by implicit steps

        theta <- theta - (dr/dtheta + I / step)^-1 r,    the step in inverse proportion to |r|

    (pseudo-transient continuation). Far away it is repeated gradient descent with steps as long as the flow allows,
    and so comes to points that attract; near one it is Newton.
    """
    if here.theta.shape[1] > LARGEST_NEWTON:
        return here
    damping = np.ones(here.theta.shape[0])
    for _ in range(iterations):
        active = here.size > EXACT
        if not active.any():
            break
        matrix = field.residual_jacobian(here.theta) + damping[:, None, None] * np.eye(here.theta.shape[1])
        trial = field.at(here.theta - _solve(matrix, here.residual))
        before, after = np.sum(here.residual**2, axis=1), np.sum(trial.residual**2, axis=1)
        ratio = np.sqrt(after / np.where(before > 0, before, 1.0))
        good = np.isfinite(after) & (ratio < 2)
        damping = np.where(good, damping * np.clip(ratio, 0.1, 2.0), 4 * damping + 1e-3)
        here = _choose(active & good, trial, here)
    return here


def _descend(risk: Field, starts: Rows, iterations: int = 1000) -> Point:
    """Projected gradient descent; the step halves until the risk falls enough and doubles after each success.

    Value and slope travel with the model: one evaluation per trial, which matters where the risk is a sum over rows.
    """
    here, step = risk.at(starts), np.ones(starts.shape[0])
    for _ in range(iterations):
        active = (step > 1e-12) & (here.size > 1e-7)
        if not active.any():
            break
        trial = risk.at(here.theta - step[:, None] * here.slope)
        squares = np.sum((trial.theta - here.theta) ** 2, axis=1)
        good = here.value - trial.value - 1e-4 * squares / step >= 0
        here = _choose(active & good, trial, here)
        step = np.where(active, np.where(good, step * 2, step / 2), step)
    return here


def _newton(field: Field, here: Point, iterations: int = 100) -> Point:
    """Newton on the projected residual, each row only while its residual falls."""
    if here.theta.shape[1] > LARGEST_NEWTON:
        return here
    active = np.ones(here.theta.shape[0], bool)
    for _ in range(iterations):
        active &= here.size > EXACT
        if not active.any():
            break
        matrix = field.residual_jacobian(here.theta) + 1e-14 * np.eye(here.theta.shape[1])
        step, improved = _solve(matrix, here.residual), np.zeros_like(active)
        best = here
        for size in 0.5 ** np.arange(6.0):
            trial = field.at(here.theta - size * step)
            better = active & (np.sum(trial.residual**2, axis=1) < np.sum(best.residual**2, axis=1))
            best, improved = _choose(better, trial, best), improved | better
        here, active = best, improved
    return here


def _solve(matrices: Rows, vectors: Rows) -> Rows:
    """The solutions (k, d) of k systems of equations; NaN for one that has none."""
    solutions = np.full_like(vectors, np.nan)
    for row, (matrix, vector) in enumerate(zip(matrices, vectors, strict=True)):
        try:
            solutions[row] = np.linalg.solve(matrix, vector)
        except np.linalg.LinAlgError:  # singular
            continue
    return solutions


def _choose(which: Rows, new: Point, old: Point) -> Point:
    """The rows of ``new`` where ``which`` holds, else those of ``old``."""
    chosen = (np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True))
    return Point(*chosen)


def _concatenate(*points: Point) -> Point:
    return Point(*(np.concatenate(leaves) for leaves in zip(*points, strict=True)))
