"""The unknown numbers pi in a push-forward, from how f moves between deployments.

With c the first model that was deployed, a the f that belongs to it, and s what was deployed now,

    f_hat(batch pushed from s to c; pi) = a + noise of variance v

whatever s was, if pi is right. What is left over, linearised in pi, is one observation of (a, pi): an extended Kalman
filter, with v from the batch. All deployments count the same, and no samples are kept. At s = c nothing is learned of
pi; where the push is linear in pi, so is f's location, and the filter is recursive least squares.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import numerics, trees
from profl.problem.problem import View
from profl.problem.push import Push
from profl.typing import Array, Batch, Theta

ROUNDING = 8
"""Machine epsilons of f, or of one where f is smaller: the least noise that is taken to be there, lest an f without
noise have the filter divide by zero."""


class Pushing(NamedTuple):
    """What is believed of (a, pi), p + m numbers."""

    mean: Array  # (p + m,)
    cov: Array  # (p + m, p + m)
    origin: Theta  # c
    seen: Array  # () bool: whether there has been a deployment


class Learned(NamedTuple):
    """What a client knows of a push's parameters, (m,) each: the estimate, and its stated variance."""

    parameters: Array
    variance: Array


def begin(push: Push, theta: Theta, f: Array) -> Pushing:
    """Before the first deployment; ``theta`` and ``f`` give shapes and types."""
    start, level = jnp.asarray(push.parameters, f.dtype), jnp.zeros(f.shape, f.dtype)
    cov = jnp.diag(jnp.concatenate([level, jnp.asarray(push.spread, f.dtype) ** 2]))
    origin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), theta)
    return Pushing(jnp.concatenate([level, start]), cov, origin, jnp.asarray(False))


def learn(problem: View, state: Pushing, deployed: Theta, batch: Batch, weights: Array) -> Pushing:
    """One more deployment weighed in."""
    family, push = problem.family, problem.push
    assert push is not None
    origin = trees.where(state.seen, state.origin, deployed)

    def back(pi: Array) -> Batch:
        return jax.vmap(push.at(pi), (0, None, None))(batch, deployed, origin)

    size = state.mean.size - len(push.parameters)
    level, pi = state.mean[:size], state.mean[size:]
    f = family.estimate(back(pi), weights)
    noise = family.variance(back(pi), weights, f)
    noise = jnp.maximum(noise, (ROUNDING * jnp.finfo(f.dtype).eps) ** 2 * (1 + f**2))
    slope = jax.jacfwd(lambda pi: family.estimate(back(pi), weights))(pi)  # (p, m)
    level = jnp.where(state.seen, level, f)
    cov = state.cov + jnp.where(state.seen, 0.0, jnp.diag(jnp.concatenate([noise, jnp.zeros_like(pi)])))

    row = jnp.concatenate([-jnp.eye(size, dtype=f.dtype), slope], 1)  # of f_hat - a in (a, pi)
    gain = cov @ row.T @ numerics.inverse(row @ cov @ row.T + jnp.diag(noise))
    mean = jnp.concatenate([level, pi]) - gain @ (f - level)
    rest = jnp.eye(mean.size, dtype=f.dtype) - gain @ row
    cov = rest @ cov @ rest.T + (gain * noise) @ gain.T  # Joseph's form, which rounding does not make negative
    return Pushing(mean, cov, origin, jnp.asarray(True))


def learned(push: Push, state: Pushing) -> Learned:
    count = len(push.parameters)
    return Learned(state.mean[-count:], jnp.diagonal(state.cov)[-count:])


def kept(push: Push, state: Pushing) -> Learned:
    """What is learned, for the record; not a number where nothing was seen, or where a client kept it to itself."""
    return trees.where(state.seen, learned(push, state), Learned(*[jnp.full(len(push.parameters), jnp.nan)] * 2))


def ignorance(push: Push, state: Pushing) -> Array:
    """The share of the parameters' variance that is left, (): one before anything was seen."""
    spread = jnp.asarray(push.spread, state.mean.dtype)
    return jnp.clip(jnp.mean(learned(push, state).variance / spread**2), 0.0, 1.0)
