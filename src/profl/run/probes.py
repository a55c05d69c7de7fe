"""What a few deployments say of the world behind a client: memory, drift, and a spread that moves.

One model is held, then another, then the first again, ``hold`` deployments each. With x = 0, 1 for which of the two,

    f_hat(t) = a + b u(t) + c (1 - rate)^t + d t + noise,        u <- u + rate (x - u)

where b is the reaction, c what people were used to before, and d a trend. People who answer at once have rate 1, and
then c has nothing to say. In coordinates in which the noise of f_hat is white, sums of squares of such fits differ by
chi-squares, whose tails say what may be chance. Two models show no curvature, so none is mistaken for a memory.

Noise between batches beyond that of their samples (one day is not like another) counts as noise, too: where the widest
fit leaves more than there should be, everything is measured by that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

CHANCE = 3e-4
"""How often a finding may be chance, by the tails of chi-square and of Student's t."""

RATES = np.geomspace(0.05, 0.9, 24)  # of people who react slowly
NO_NOISE = 1e-9  # of the largest variance: directions with less do not vary (shares add up to one)
DRAWS_PER_ENTRY = 4  # draws of the noise that every entry of f needs for their covariance to be worth something
CLEAR = 4.0  # standard errors of a trend that would have been seen


class ReactionDynamics(NamedTuple):
    """Memory and drift of the population. Rates are the share of the way to the new state per deployment."""

    memory: bool
    rate: float  # 1 where people answer at once
    low: float  # of an interval of two standard errors or so
    high: float
    fastest: float  # people who react more slowly than that would have been seen; 0 for nobody
    drift: bool
    trend: np.ndarray  # of every entry of f, with a deployment
    visible: float  # the trend of one entry that would have been seen, in deviations of f_hat


def deployment_schedule(hold: int) -> np.ndarray:
    """x, shape (3 hold,): which of the two models is deployed at each step."""
    return np.repeat([0.0, 1.0, 0.0], hold)


def estimate_dynamics(f: np.ndarray, noise: np.ndarray, hold: int) -> ReactionDynamics:
    """The dynamics from f_hat of every deployment, (3 hold, p), and draws of its noise, (draws, p)."""
    white, back = whiten(f, noise)
    if white.shape[1] == 0:
        return ReactionDynamics(False, 1.0, 1.0, 1.0, 0.0, False, np.zeros(f.shape[1]), math.inf)
    size = white.shape[1]
    without_time, with_trend = (
        {rate: _residual(white, _columns(rate, hold, with_time)) for rate in (1.0, *RATES)}
        for with_time in (False, True)
    )
    best = min(RATES, key=lambda rate: with_trend[rate])
    scale = max(1.0, with_trend[best] / (size * (3 * hold - 4) - 1))
    gain = (with_trend[1.0] - with_trend[best]) / scale
    memory = _is_slow(gain, size)
    rate = best if memory else 1.0
    near = [r for r in RATES if with_trend[r] - with_trend[best] < 4 * scale]
    without_trend = min(without_time.values()) if memory else without_time[1.0]
    drift = _tail((without_trend - with_trend[rate]) / scale, size + memory) < CHANCE
    columns = _columns(rate, hold, True)
    trend = np.linalg.lstsq(columns, white, rcond=None)[0][-1] @ back
    error = math.sqrt(scale * np.linalg.pinv(columns.T @ columns)[-1, -1])
    fastest = max((r for r in RATES if _is_slow(_expected_gain(white, r, hold) / scale, size)), default=0.0)
    return ReactionDynamics(memory, rate, near[0], near[-1], fastest, bool(drift), trend, CLEAR * error)


class VarianceChange(NamedTuple):
    """How the standard deviation of the data differs between two models."""

    moves: bool
    ratio: float  # of the standard deviations under the two models, in the coordinate that shows it best
    error: float  # relative


def compare_variances(y: np.ndarray, rate: float, hold: int) -> VarianceChange:
    """The change in variance by Student's t test, from the log variance of every coordinate, (3 hold, m)."""
    columns = _columns(rate, hold, False)[:, :2]
    fit = np.linalg.lstsq(columns, y, rcond=None)[0]
    freedom = y.shape[0] - 2
    variance = np.sum((y - columns @ fit) ** 2, axis=0) / freedom * np.linalg.inv(columns.T @ columns)[1, 1]
    error = np.sqrt(np.maximum(variance, np.finfo(np.float32).eps ** 2))
    t = fit[1] / error
    most = int(np.argmax(np.abs(t)))
    tail = float(jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + float(t[most]) ** 2)))
    return VarianceChange(bool(t.size * tail < CHANCE), math.exp(fit[1, most] / 2), float(error[most]) / 2)


def _is_slow(gain: float, size: int) -> bool:
    """Whether the gain of a fit with a slow rate is significant, with the rate and b both free."""
    return len(RATES) * _tail(gain, 2 * size) < CHANCE


def _expected_gain(white: np.ndarray, rate: float, hold: int) -> float:
    """The expected gain of a fit with that rate if it were true, less two standard deviations."""
    at_once = _columns(1.0, hold, True)
    reaction = np.linalg.lstsq(at_once, white, rcond=None)[0][1]
    gain = float(np.sum(reaction**2)) * _residual(_columns(rate, hold, False)[:, 1:2], at_once)
    return gain - 4 * math.sqrt(gain)


def _columns(rate: float, hold: int, with_time: bool) -> np.ndarray:
    """The regressors (1, u, (1 - rate)^t, time), shape (3 hold, 2 to 4); the third only if rate < 1."""
    x = deployment_schedule(hold)
    time = np.arange(x.size, dtype=float)
    u = np.zeros_like(x)
    for t in range(x.size):
        u[t] = (u[t - 1] if t else 0.0) * (1 - rate) + rate * x[t]
    decay = [] if rate == 1.0 else [(1 - rate) ** (time + 1)]
    return np.stack([np.ones_like(x), u, *decay, *([time - time.mean()] if with_time else [])], axis=1)


def _residual(values: np.ndarray, columns: np.ndarray) -> float:
    """The residual sum of squares of a least-squares fit."""
    return float(np.sum((values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]) ** 2))


def whiten(f: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(f in coordinates in which its noise is white, (n, q); the matrix back to the entries of f, (q, p))."""
    draws, entries = noise.shape
    if draws < DRAWS_PER_ENTRY * entries:  # too few for a covariance: every entry by itself
        covariance = np.diag(noise.var(axis=0))
    else:  # an inverse of what is estimated is too large by so much (Hotelling)
        covariance = np.atleast_2d(np.cov(noise.T)) * (draws - 1) / (draws - entries - 2)
    values, vectors = np.linalg.eigh(covariance)
    varying = values > max(NO_NOISE * values.max(initial=0.0), np.finfo(np.float32).tiny)
    root = np.sqrt(values[varying])
    return (f - f.mean(0)) @ vectors[:, varying] / root, (vectors[:, varying] * root).T


def _tail(value: float, freedom: int) -> float:
    """The probability that a chi-squared variable exceeds a value."""
    return float(_chi_squared_tail(max(value, 0.0), float(freedom)))


_chi_squared_tail = jax.jit(jax.scipy.stats.chi2.sf)
