"""Losses of stocks and of guesses, and the expectation that makes their risks exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from profl.typing import Array

OVER, SHORT = 1.0, 3.0
"""Cost of a unit that is left over, and of one that is short; as profit, cost and price minus cost."""


def cost(theta: Array, z: Array) -> Array:
    """Cost of stocks theta under demand z."""
    return jnp.sum(OVER * jax.nn.relu(theta - z) + SHORT * jax.nn.relu(z - theta))


def profit_lost(theta: Array, z: Array) -> Array:
    """Minus the profit of stocks theta under demand z: bought at OVER, sold at OVER + SHORT."""
    return jnp.sum(OVER * theta - (OVER + SHORT) * jnp.minimum(theta, z))


def square(theta: Array, z: Array) -> Array:
    """|theta - z|^2 / 2."""
    return 0.5 * jnp.sum((theta - z) ** 2)


def expected_over(theta: Array, mean: Array, sd: Array) -> Array:
    """E max(theta - z, 0), entry by entry."""
    u = (theta - mean) / sd
    return sd * (u * norm.cdf(u) + norm.pdf(u))
