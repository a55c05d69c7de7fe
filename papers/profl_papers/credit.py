"""Give Me Some Credit as in Perdomo et al. (2020), and logistic regression on it, minimised exactly.

120,269 complete rows are standardised, and of them all 8,357 defaults and the first 10,000 others are kept, with a
column of ones. People answer to theta by x_S <- x_S - eps theta_S, whoever they are: three of their features, the same
shift for all. So a crowd that has answered is a shift of the rows, and crowds with shifts v_g and shares w_g give

    loss = sum_g w_g mean_i [log(1 + e^s_gi) - y_i s_gi] + (lam / 2) |theta without its last entry|^2,
    s_gi = (x_i + v_g).theta
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from profl.data.credit import benchmark, table
from profl.data.registry import load

STRATEGIC = (0, 5, 7)
TOLERANCE = 1e-13
"""Of the gradient, at an exact minimum."""


class Rows(NamedTuple):
    x: np.ndarray  # (n, 11), the last column ones
    y: np.ndarray  # (n,)

    @property
    def smoothness(self) -> float:
        """mean |x|^2 / 4, which bounds the curvature of the mean loss."""
        return float(np.mean(np.sum(self.x**2, axis=1)) / 4)


@lru_cache(maxsize=1)
def rows() -> Rows:
    """The 18,357 rows, standardised over all complete ones."""
    x, y = benchmark(table(load("credit"), "all"))
    return Rows(np.column_stack([x, np.ones(len(y))]), y.astype(float))


def response(theta: np.ndarray, eps: float, features: tuple[int, ...] = STRATEGIC) -> np.ndarray:
    """By how much people shift their row once theta is deployed.

    >>> response(np.arange(11.0), 0.5)
    array([-0. ,  0. ,  0. ,  0. ,  0. , -2.5,  0. , -3.5,  0. ,  0. ,  0. ])
    """
    shift = np.zeros_like(theta)
    shift[list(features)] = -eps * theta[list(features)]
    return shift


class Fit(NamedTuple):
    loss: float
    gradient: np.ndarray
    hessian: np.ndarray


def logistic(data: Rows, theta: np.ndarray, lam: float, shifts: np.ndarray, shares: np.ndarray | None = None) -> Fit:
    """Loss, gradient and curvature on crowds with ``shifts`` (g, 11); of one size, unless ``shares`` says otherwise."""
    shifts = np.atleast_2d(shifts)
    shares = np.full(len(shifts), 1 / len(shifts)) if shares is None else shares
    penalty = lam * np.append(np.ones(len(theta) - 1), 0.0)
    loss, gradient, hessian = float(penalty @ theta**2 / 2), penalty * theta, np.diag(penalty)
    base, n = data.x @ theta, len(data.y)
    for shift, share in zip(shifts, shares, strict=True):
        scores = base + shift @ theta
        chance = 0.5 * (1 + np.tanh(scores / 2))
        off, curve = chance - data.y, chance * (1 - chance)
        loss += share * float(np.mean(np.logaddexp(0, scores) - data.y * scores))
        gradient = gradient + share * (off @ data.x / n + off.mean() * shift)
        cross = np.outer(curve @ data.x / n, shift)
        inner = (data.x.T * curve) @ data.x / n + cross + cross.T + curve.mean() * np.outer(shift, shift)
        hessian = hessian + share * inner
    return Fit(loss, gradient, hessian)


def minimise(data: Rows, theta: np.ndarray, lam: float, shifts: np.ndarray) -> np.ndarray:
    """The exact minimum, by Newton's steps from ``theta`` or 0, whichever is lower, each halved until the loss falls.

    The intercept is measured at the middle of the crowds, b + middle.theta: far shifts would lose digits.
    """
    shifts = np.atleast_2d(shifts)
    middle = shifts.mean(0)
    shifts = shifts - middle
    here = np.append(theta[:-1], theta[-1] + middle @ theta)  # where scores are far out, the loss is a straight line
    theta = min((here, np.zeros_like(here)), key=lambda start: logistic(data, start, lam, shifts).loss)
    fit = logistic(data, theta, lam, shifts)
    for _ in range(100):
        if np.max(np.abs(fit.gradient)) < TOLERANCE:
            break
        step = np.linalg.solve(fit.hessian, fit.gradient)
        size = 1.0
        while (new := logistic(data, theta - size * step, lam, shifts)).loss > fit.loss + 1e-14 and size > 1e-8:
            size /= 2
        if size <= 1e-8 or np.max(np.abs(step)) < TOLERANCE:
            break
        theta, fit = theta - size * step, new
    return np.append(theta[:-1], theta[-1] - middle[:-1] @ theta[:-1])
