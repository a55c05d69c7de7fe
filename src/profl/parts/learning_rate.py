"""A client's part in a learning rate that the server finds (``profl.server.learning_rate``).

    theta_j <- theta_j + rate scale_j^2 (what the optimiser makes of the gradient, with a learning rate of one)

rate and scales are the server's and the same everywhere, so that they do not shift where the federation rests; with SGD
the step is free of units. Before the first mail both are zero: the first round only measures. A client reports the mean
of its gradients and of what it deployed, where they are the gradients; a copy of their sampling noise (the same mean
with the samples' signs alternating, in which what they have in common cancels); its own scales; how many steps it made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.parts.units import COMMON, some, theta_scales
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class Pace(NamedTuple):
    rate: Array  # (), the server's
    scales: Array  # (d,), the server's
    own: Array  # (d,): this client's; zeros before its first batch
    gradient: Array  # (d,): sum over the round so far
    noise: Array  # (d,): likewise
    deployed: Array  # (d,): likewise
    steps: Array  # ()


def begin(theta: Theta) -> Pace:
    flat = ravel_pytree(theta)[0]
    zeros, nothing = jnp.zeros_like(flat), jnp.zeros((), flat.dtype)
    return Pace(nothing, zeros, zeros, zeros, zeros, zeros, nothing)


def noted(problem: View, pace: Pace, deployed: Theta, batch: Batch, weights: Array, gradient: Theta) -> Pace:
    """The pace with one more gradient in its sums."""
    losses = jax.vmap(problem.loss, (None, 0))
    signs = jnp.where(jnp.arange(weights.shape[0]) % 2, 1.0, -1.0).astype(weights.dtype)
    noise = jax.grad(lambda t: (weights * signs) @ losses(t, batch))(deployed)
    few = some(batch, weights)
    own = trees.cond_or_keep(
        jnp.all(pace.own == 0), lambda theta: theta_scales(problem, theta, *few(), COMMON), pace.own, deployed
    )
    news = zip((pace.gradient, pace.noise, pace.deployed), (gradient, noise, deployed), strict=True)
    gradients, noises, models = (old + trees.ravel(new) for old, new in news)
    return Pace(pace.rate, pace.scales, own, gradients, noises, models, pace.steps + 1)


def factor(pace: Pace, theta: Theta) -> Theta:
    """What the optimiser's update is multiplied by."""
    flat, unravel = ravel_pytree(theta)
    return unravel((pace.rate * pace.scales**2).astype(flat.dtype))


def report(pace: Pace) -> dict[str, Any]:
    steps = jnp.maximum(pace.steps, 1)
    told = {"gradient": pace.gradient / steps, "gradient_noise": pace.noise / steps, "deployed": pace.deployed / steps}
    return {**told, "scales": pace.own, "steps": pace.steps}


def received(pace: Pace, rate: Array, scales: Array) -> Pace:
    zeros = jnp.zeros_like(scales)
    return Pace(rate, scales, pace.own, zeros, zeros, zeros, jnp.zeros_like(rate))
