"""A learning rate for methods that do not find their own: their first step is as long as the first one of "auto".

With the natural scales s_j of the parameters and the mean gradient g of one batch of every client at the start,
"auto" (``profl.parts.learning_rate``) first moves parameter j by

    SECANT_SHARE FIRST_MOVE sqrt(d) s_j^2 g_j / |s g|        and the rate is the length of that move over |g|.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import random, trees
from profl.parts.learning_rate import FIRST_MOVE, SECANT_SHARE
from profl.parts.units import MEAN_SLOPE_SHARE, theta_scales
from profl.problem.problem import Functions, Problem
from profl.typing import Array, Client, Key, Theta


def first_rate(problem: Problem, samples: int) -> float:
    """The rate, from one batch of ``samples`` at every client, deployed at the start of seed 0."""
    world = trees.to_device((problem.clients, problem.weights))
    theta = trees.take(trees.to_device(problem.initial_models((0,))), 0)
    return float(_rate(problem.functions, samples, *world, theta, random.seed_key(0)))


@partial(jax.jit, static_argnums=(0, 1))
def _rate(functions: Functions, n: int, clients: Client, alpha: Array, theta: Theta, key: Key) -> Array:
    weights = jnp.full(n, 1.0 / n)
    flat, unravel = ravel_pytree(theta)

    def of_client(client: Client, index: Array) -> tuple[Array, Array]:
        batch = functions.reaction.sample(random.data_key(key, index, 0), theta, client, n)
        scales = theta_scales(functions.view(), theta, batch, weights, MEAN_SLOPE_SHARE)
        mean = jax.grad(lambda t: jnp.mean(jax.vmap(functions.loss, (None, 0))(unravel(t), batch)))(flat)
        return scales**-2.0, mean

    steepness, gradients = jax.vmap(of_client)(clients, jnp.arange(alpha.shape[0]))
    scales, gradient = (alpha @ steepness) ** -0.5, alpha @ gradients
    size = jnp.linalg.norm(scales * gradient)
    move = SECANT_SHARE * FIRST_MOVE * jnp.sqrt(float(flat.size)) * scales**2 * gradient / size
    return jnp.linalg.norm(move) / jnp.linalg.norm(gradient)
