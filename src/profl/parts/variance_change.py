"""What shows that the spread of the data moves where the family only has their mean; not in the paper.

The logarithm of the variance of every entry of z is compared between a client's first batch and its latest one, each
with the error that the batch itself shows: var(log s^2) = (kurtosis - 1) sum w^2. Both are measured where units are, at
the first, second, fourth, eighth ... batch, so that it costs a step nothing. Rows that are all alike have the variance
of their rounding, of which nothing is known.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.parts.part import shape_of_f
from profl.problem.families import rounding_variance
from profl.problem.problem import View
from profl.typing import Array, Batch


class LogVariance(NamedTuple):
    """The log variance of every entry of a batch, and its squared error, (p,) each."""

    value: Array
    error: Array


class VarianceChange(NamedTuple):
    """The log variance of the first batch that was measured, and how far the latest one is from it."""

    first: LogVariance
    change: Array  # the squared change over its squared error, a mean over entries; about 1 where nothing moves, ()

    def measure(self, known: Array, latest: LogVariance) -> VarianceChange:
        """With the ``latest`` batch measured, which is the first one where none is ``known``."""
        first = trees.where(known, self.first, latest)
        return VarianceChange(first, jnp.mean((latest.value - first.value) ** 2 / (first.error + latest.error)))


def is_watched(view: View, batch: Batch) -> bool:
    """Whether the variance of a batch, or of its shapes, says something that f does not."""
    return view.family.location_only and len(jax.tree.leaves(batch)) == 1 and jax.tree.leaves(batch)[0].ndim == 2


def no_change(view: View, batch: Batch) -> VarianceChange | tuple[()]:
    """Before the first batch; () where the family has more than means."""
    if not is_watched(view, batch):
        return ()
    zero = jnp.zeros(jax.tree.leaves(batch)[0].shape[1:], shape_of_f(view, batch).dtype)
    return VarianceChange(LogVariance(zero, zero), jnp.zeros((), zero.dtype))


def log_variance(batch: Batch, weights: Array) -> LogVariance:
    """The log variance of every entry of a batch (n, p), under ``weights`` (n,) that sum to one."""
    (values,) = jax.tree.leaves(batch)
    mean = weights @ values
    share = jnp.broadcast_to(jnp.sum(weights**2), mean.shape)
    squares = (values - mean) ** 2
    spread, least = weights @ squares, rounding_variance(mean)
    variance = jnp.maximum(spread, least)
    kurtosis = weights @ (squares / variance) ** 2
    error = jnp.where(spread > least, jnp.maximum(kurtosis - 1, share), 1 / jnp.finfo(least.dtype).eps)
    return LogVariance(jnp.log(variance), error * share)
