"""What shows that one Kalman filter leaves out a memory or a drift; not in the paper.

A filter whose model is right predicts so that what is left over, the miss, is new every time. With people who react
slowly, or data that move by themselves, a miss resembles the one before it. With u the miss in standard deviations,

    x(t) = u(t) . u(t - 1),        correlation = sum x / sqrt(sum x^2),

which is about standard normal where all is well, whatever the sizes of the misses (a self-normalised martingale). A
step only adds to the two sums.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array


class MissSums(NamedTuple):
    """Weighted sums over deployments."""

    miss: Array  # u of the last deployment, (p,)
    products: Array  # sum of x, ()
    squares: Array  # sum of x^2, ()

    def add(self, miss: Array, weight: Array) -> MissSums:
        """The sums with one more ``miss`` (p,), which counts with ``weight`` ()."""
        product = weight * jnp.sum(miss * self.miss)
        return MissSums(miss, self.products + product, self.squares + product**2)

    def correlation(self) -> Array:
        """How much a miss resembles the last one, in standard errors, ()."""
        return self.products / jnp.sqrt(jnp.where(self.squares > 0, self.squares, 1.0))


def no_misses(f: Array) -> MissSums:
    """The sums before the first deployment; ``f`` (p,) gives shape and type."""
    return MissSums(jnp.zeros(f.shape, f.dtype), *jnp.zeros((2,), f.dtype))
