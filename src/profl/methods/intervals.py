"""Intervals from what a method knows of the optimum: for its model, and for what it gains.

A method states a quadratic around its model, in natural units, and how well its slope is known:

    L(y) - L(best) = g (y - best) + (y - best)' H (y - best) / 2        g ~ N(gradient, covariance)

Each of a fixed set of draws of g has its own minimiser in the model space, and its own excess at the incumbent. The
intervals are quantiles of these: what the model space holds ends at its edge, and no excess is below zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

DRAWS = 4096
"""Draws of the slope: a quantile of 5 % then has an error of 0.3 % at most."""

SWEEPS = 500
"""Turns over all limits, at most, in which a draw's minimiser is moved into the model space."""

TOLERANCE = 1e-6
"""Natural units: a turn that moves no minimiser farther is the last."""


class Posterior(NamedTuple):
    """What is known of the optimum; every array may have an axis of seeds in front. Lengths are in natural units."""

    incumbent: Any  # (d,): the model, in its own units
    units: Any  # (d,)
    best: Any  # (d,): the model with the least fitted risk, as a step from the incumbent
    decrease: Any  # (): of the fitted risk, from the incumbent to the best model
    gradient: Any  # (d,): at the best model
    curvature: Any  # (d, d): positive definite
    covariance: Any  # (d, d): of the gradient
    fall: Any  # (): of the observed risk, from the first model to the incumbent
    fall_variance: Any  # ()
    lower: Any  # (d,): the least model, in its own units, and the largest
    upper: Any  # (d,)
    A: Any  # (m, d): A theta <= b
    b: Any  # (m,)

    def of_seed(self, seed: int) -> Posterior:
        """That of one seed, of a posterior with an axis of seeds."""
        return Posterior(*(part[seed] for part in self))


class Draws(NamedTuple):
    """The optimum, the excess of the incumbent, and the gain over the first model, by each draw."""

    optimum: np.ndarray  # (draws, d)
    excess: np.ndarray  # (draws,)
    gain: np.ndarray  # (draws,)


def normal_draws(size: int, count: int = DRAWS) -> np.ndarray:
    """Quasi-random standard normal numbers (count, size), the same ones always."""
    from scipy import special
    from scipy.stats import qmc

    return special.ndtri(qmc.Sobol(size, seed=0).random(count))


def draws_of(known: Posterior, noise: np.ndarray) -> Draws:
    """What each row of ``noise`` (draws, d + 1), standard normal, makes of a posterior without an axis of seeds."""
    known = Posterior(*(np.asarray(part, float) for part in known))
    axes, values = eigen(known.covariance)
    change = (noise[:, :-1] * np.sqrt(np.maximum(values, 0.0))) @ axes.T
    gradient = known.gradient + change
    y = minimisers(known, gradient)
    step = y - known.best
    below = -np.sum(gradient * step, 1) - np.sum((step @ known.curvature) * step, 1) / 2
    excess = np.maximum(known.decrease - change @ known.best + below, 0.0)
    gain = known.fall + np.sqrt(np.maximum(known.fall_variance, 0.0)) * noise[:, -1] + excess
    return Draws(known.incumbent + known.units * y, excess, gain)


def minimisers(known: Posterior, gradient: np.ndarray) -> np.ndarray:
    """Where the quadratic with each ``gradient`` (draws, d) is least in the model space, (draws, d) from the incumbent.

    Hildreth's method: the multiplier of one limit after the other, so that this limit holds.
    """
    units, inverse = known.units, np.linalg.inv(known.curvature)
    y = known.best - gradient @ inverse
    rows = np.concatenate([np.eye(units.size), np.reshape(known.A, (-1, units.size)) * units])
    here = np.concatenate([known.incumbent, np.reshape(known.A, (-1, units.size)) @ known.incumbent])
    scale = np.concatenate([units, np.ones(len(rows) - units.size)])
    top = (np.concatenate([known.upper, np.ravel(known.b)]) - here) / scale
    bottom = (np.concatenate([known.lower, np.full(len(rows) - units.size, -np.inf)]) - here) / scale
    limits = np.flatnonzero(np.isfinite(top) | np.isfinite(bottom))
    size = np.linalg.norm(rows, axis=1)
    outside = np.any(np.abs(y @ rows.T - np.clip(y @ rows.T, bottom, top)) > TOLERANCE * size, axis=1)
    if not outside.any():
        return y
    x, multipliers = y[outside], np.zeros((int(outside.sum()), len(rows)))
    for _ in range(SWEEPS):
        before = x.copy()
        for i in limits:
            direction = inverse @ rows[i]
            stiffness = rows[i] @ direction
            free = x @ rows[i] + stiffness * multipliers[:, i]
            new = (free - np.clip(free, bottom[i], top[i])) / stiffness
            x = x - np.outer(new - multipliers[:, i], direction)
            multipliers[:, i] = new
        if np.max(np.abs(x - before)) < TOLERANCE:
            break
    y[outside] = np.clip(x, bottom[: units.size], top[: units.size])
    return y


def eigen(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(eigenvectors (d, d), as columns, eigenvalues (d,)) of a symmetric matrix, by ``numpy``."""
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    return axes, values
