"""How the clients' models become the next global model (paper, Algorithm 1, line 21)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from profl import trees
from profl.typing import Array, Theta


def accept(models: Theta) -> Array:
    """Which reports may be used: all of their numbers are finite. (k,) bool."""
    return jax.vmap(trees.all_finite)(models)


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
