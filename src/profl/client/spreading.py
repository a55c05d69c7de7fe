"""Whether the spread of the data moves with the model, where the family takes it for fixed.

A family with a ``shift`` says where samples lie under another f. Brought to f = 0 by it, they should be spread the same
whatever was deployed: a mean is then taken away, and a standard deviation divided by, where f has one. If

    y = log(variance of a coordinate of what is left) = a + b.s + noise

has a slope b, the family is wrong about the spread. A family without a shift states no such thing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from profl.problem.families import FLAT, Family, average
from profl.typing import Array, Batch


def coordinates(batch: Batch) -> int:
    """How many numbers of a sample may be spread: those that are not whole."""
    return sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(batch) if _is_float(leaf))


def log_spread(family: Family, batch: Batch, weights: Array, f: Array) -> Array:
    """y of a batch, one number per coordinate of a sample, (m,).

    >>> from profl.problem.families import GaussianMean
    >>> batch, equal = jnp.array([[1.0, 0.0], [3.0, 0.2]]), jnp.array([0.5, 0.5])
    >>> log_spread(GaussianMean(), batch, equal, jnp.array([2.0, 0.1])).round(3)
    Array([ 0.   , -4.605], dtype=float32)
    """
    left = jax.vmap(family.moved, (0, None, None))(batch, -f, f)
    both = zip(jax.tree.leaves(left), jax.tree.leaves(batch), strict=True)
    return jnp.concatenate([_of_leaf(leaf, old, weights) for leaf, old in both if _is_float(old)])


def _of_leaf(left: Array, old: Array, weights: Array) -> Array:
    mean = average(weights, left)
    least = (FLAT * jnp.finfo(left.dtype).eps) ** 2 * average(weights, old**2) + jnp.finfo(left.dtype).tiny
    return jnp.log(jnp.maximum(average(weights, (left - mean) ** 2), least)).ravel()


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
