"""What the server makes of the reports of a round (paper, Algorithm 1, lines 18-21); ``gate`` says which it may use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.server.rules import Rule, WeightedMean
from profl.typing import Array, Theta


def combine_models(rule: Rule, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
    """The accepted models under an aggregation rule; ``centre`` is the model they started from."""
    if isinstance(rule, WeightedMean):
        return weighted_mean(models, weights, accepted)
    flat, unravel = ravel_pytree(centre)
    return unravel(rule(jax.vmap(trees.ravel)(models), weights, accepted, flat))


def weighted_mean(models: Theta, weights: Array, accepted: Array) -> Theta:
    """sum_i w_i theta_i over the accepted reports, w renormalised over them; NaN where nobody is left.

    >>> models = jnp.array([[1.0], [3.0], [jnp.nan]])
    >>> weighted_mean(models, jnp.array([0.25, 0.25, 0.5]), jnp.array([True, True, False]))
    Array([2.], dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    share = share / jnp.sum(share)

    def average(leaf: Array) -> Array:
        safe = jnp.where(accepted.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0.0)
        return jnp.tensordot(share.astype(leaf.dtype), safe, axes=1)

    return jax.tree.map(average, models)
