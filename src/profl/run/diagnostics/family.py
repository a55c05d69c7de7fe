"""The family: does its estimate maximise its likelihood, and is the noise that it states the noise there is?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np

from profl.problem.families import Family
from profl.problem.problem import Problem
from profl.run.diagnostics.subject import Finding
from profl.run.live import batches
from profl.typing import Array, Batch

# At the maximum of the likelihood the mean score is zero but for rounding, whatever the noise.
REWEIGHTED = 8  # random weights, whose estimates say in which directions f_hat can move
FITS = 1.0  # standard errors up to which the estimate is the maximum, as one that is robust or rounded is nearly
FAR_OFF = 3.0  # from here on it is another point: a bias that noise cannot explain
NO_ERROR = 1e-12  # a score that does not vary along a direction has no standard error

RESAMPLED = 64  # bootstrap batches: their standard deviation is known to 1 / sqrt(128), 9 %
NOISE_LOW, NOISE_HIGH = 0.5, 2.0  # stated over measured noise: a factor of two costs the estimators little
NO_NOISE = 1e-30  # variances below this count as this one


def family_findings(world: Problem, batch: Batch) -> Iterator[Finding]:
    """The findings on the family's estimate and on the noise that it states."""
    n = batches.rows(batch)
    weights = jax.device_put(np.full(n, 1 / n, np.float32))
    f = _estimates(world.family, batch, weights[None])[0]
    yield _likelihood(world, batch, weights, f)
    yield _noise(world, batch, weights, f)


def _likelihood(world: Problem, batch: Batch, weights: Array, f: Array) -> Finding:
    """Whether the mean score is zero, in standard errors, along directions in which other weights move f_hat."""
    scores = np.asarray(_scores(world.family, batch, f))
    others = np.random.default_rng(2).exponential(size=(REWEIGHTED, weights.shape[0]))
    moves = np.asarray(_estimates(world.family, batch, others / others.sum(axis=1, keepdims=True))) - np.asarray(f)
    along = scores @ moves.T  # (n, REWEIGHTED)
    if not np.all(np.isfinite(along)):
        return Finding("family", "fail", "the score or the estimate is not finite")
    error = along.std(axis=0) / math.sqrt(along.shape[0])
    worst = float(np.max(np.abs(along.mean(axis=0)) / np.maximum(error, NO_ERROR)))
    hint = ": the estimate does not fit log_prob" if worst > FITS else ""
    verdict = "ok" if worst <= FITS else "warn" if worst < FAR_OFF else "fail"
    return Finding("family", verdict, f"the score at the estimate is {worst:.2g} standard errors from zero{hint}")


def _noise(world: Problem, batch: Batch, weights: Array, f: Array) -> Finding:
    """Whether the variance that the family states agrees with the bootstrap."""
    declared = np.asarray(_variance(world.family, batch, weights, f))
    measured = estimate_and_noise(world.family, batch)[1].var(axis=0, ddof=1)
    ratio = float(np.sqrt(declared.sum() / max(float(measured.sum()), NO_NOISE)))
    if NOISE_LOW <= ratio <= NOISE_HIGH:
        return Finding("noise", "ok", f"the family states {ratio:.2f} times the noise that the data show")
    return Finding("noise", "warn", f"the family states {ratio:.2g} times the noise that the data show: set its sd")


def estimate_and_noise(family: Family, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """(f_hat, shape (p,); draws of its noise, shape (RESAMPLED, p)).

    The noise is that of bootstrap batches around their mean, because the variance that the family states may be wrong.
    """
    n = batches.rows(batch)
    draws = np.random.default_rng(4).multinomial(n, np.full(n, 1 / n), size=RESAMPLED) / n
    both = np.asarray(_estimates(family, batch, np.concatenate([np.full((1, n), 1 / n), draws])), float)
    return both[0], both[1:] - both[1:].mean(0)


@partial(jax.jit, static_argnums=0)
def _estimates(family: Family, batch: Batch, weights: Array) -> Array:
    """f_hat under each row of weights, shape (rows, p)."""
    return jax.vmap(family.estimate, (None, 0))(batch, weights)


@partial(jax.jit, static_argnums=0)
def _variance(family: Family, batch: Batch, weights: Array, f: Array) -> Array:
    """The variance of f_hat that the family states, shape (p,)."""
    return family.variance(batch, weights, f)


@partial(jax.jit, static_argnums=0)
def _scores(family: Family, batch: Batch, f: Array) -> Array:
    """The gradient of log_prob with respect to f, one row per sample."""
    return jax.vmap(jax.grad(family.log_prob, argnums=1), (0, None))(batch, f)
