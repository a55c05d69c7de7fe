"""Families for counts, for yes and no, and for choices among products.

    Poisson            z_k ~ Poisson(f_k)                                       f: the means, (p,)
    NegativeBinomial   mean f_k, variance f_k + dispersion f_k^2                f: the means, (p,)
    Bernoulli          P(z_k = 1) = f_k                                         f: the probabilities, (p,)
    Categorical        P(z = k) = f_k for product k, 1 - sum f for none         f: the shares of the products, (K,)

What becomes of a loss when f moves, ``moved_loss``, has low variance in all of them; the score's has much.

Counts move with their mean and their standard deviation, z' = f' + (z - f) sd(f') / sd(f): exact for losses that are
linear or quadratic in each count. Yes and no, and choices, have so few values that the loss is taken at all of them:

    Bernoulli     l(z) + sum_k (f'_k - f_k) (l(z with z_k = 1) - l(z with z_k = 0))
    Categorical   sum_k f'_k l(k)

whose slope in f is unbiased for every loss. Slopes of pricing with Poisson demand from 500 samples: see
docs/methods_evidence.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.problem.families import LEAST_SHARE, VECTORS, Family, average, is_array
from profl.typing import Array, Batch

LEAST_MEAN = 1e-6  # of a count, in log p and as a variance: nobody has bought, or a fitted mean is below zero
COUNTS = f"{VECTORS}, of counts 0, 1, 2, ..."


class Counts(Family):
    """Counts z (p,), whole or floating numbers, that move with their means f and with the spread that these say."""

    amounts = True
    discrete = True
    takes = COUNTS

    def spread(self, mean: Array) -> Array:
        """The variance of counts of that mean, above zero."""
        raise NotImplementedError

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 2)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return average(weights, batch.astype(weights.dtype))

    def shift(self, z: Batch, delta: Array, f: Array) -> Batch:
        return f + delta + (z - f) * jnp.sqrt(self.spread(f + delta) / self.spread(f))

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """That of the family at f; where nothing was counted in n samples, that of a mean of 1 / n."""
        share = jnp.sum(weights**2)
        return self.spread(jnp.maximum(f, share)) * share

    def observed_variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        share = jnp.sum(weights**2)
        return jnp.maximum(average(weights, (batch - f) ** 2), share) * share


@checks.explain_call
@dataclass(frozen=True)
class Poisson(Counts):
    """Counts with a variance of their mean: z_k ~ Poisson(f_k), each entry by itself.

    The gradient is that of samples that move with mean and standard deviation; losses see fractions then, and below
    zero where f falls far.

    >>> family, batch, equal = Poisson(), jnp.array([[1.0], [3.0]]), jnp.array([0.5, 0.5])
    >>> family.estimate(batch, equal)
    Array([2.], dtype=float32)
    >>> family.apply_shift(jnp.array([3.0]), jnp.array([6.0]), jnp.array([2.0]))  # mean 2 -> 8, sd twice as large
    Array([10.], dtype=float32)
    """

    def spread(self, mean: Array) -> Array:
        return jnp.maximum(mean, LEAST_MEAN)

    def log_prob(self, z: Batch, f: Array) -> Array:
        return jnp.sum(z * jnp.log(jnp.maximum(f, LEAST_MEAN)) - f)


@checks.explain_call
@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Counts that vary more than their mean says: variance f + dispersion f^2, each entry by itself.

    ``dispersion`` is stated: one number, or a tuple with one for every entry. ``NegativeBinomial.fit(counts)`` reads it
    off data that are at hand. What it says of the gradient is little (nothing, where the loss is linear in z).

    >>> draws = np.random.default_rng(0)
    >>> sales = draws.poisson(draws.gamma(2.0, 5.0, size=(4000, 1)))  # mean 10, variance 10 + 100 / 2
    >>> NegativeBinomial.fit(sales)
    NegativeBinomial(dispersion=0.52)
    """

    dispersion: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        expected = "a number above 0, or one per entry of z"
        for each in checks.numbers_of("dispersion", self.dispersion, expected).ravel():
            checks.positive("dispersion", each)

    @classmethod
    def fit(cls, counts: Any) -> NegativeBinomial:
        """The family with one dispersion for all entries of ``counts`` (n, p), by moments and to two digits.

        The counts are of one deployment: what other models and weeks add to their variance would count as well.
        """
        table = checks.numbers_of("counts", counts, "an array of shape (n, p) of counts")
        if table.ndim != 2 or table.shape[0] < 2:
            raise checks.InputError(f"counts must have shape (n, p) with n of at least 2, got shape {table.shape}")
        found = dispersion_of(table)
        if not found > 0:
            raise checks.InputError(
                "counts must vary by more than their mean, got dispersion 0 or less: profl.Poisson()"
            )
        return cls(float(f"{found:.2g}"))

    def spread(self, mean: Array) -> Array:
        mean = jnp.maximum(mean, LEAST_MEAN)
        return mean + jnp.asarray(self.dispersion, mean.dtype) * mean**2

    def log_prob(self, z: Batch, f: Array) -> Array:
        size = 1 / jnp.asarray(self.dispersion, f.dtype)
        mean = jnp.maximum(f, LEAST_MEAN)
        return jnp.sum(z * jnp.log(mean) - (z + size) * jnp.log(mean + size))


def dispersion_of(counts: np.ndarray) -> float:
    """(variance - mean) / mean^2 of counts (n, p), pooled over their entries."""
    mean, variance = counts.mean(0), counts.var(0, ddof=1)
    return float(np.sum(variance - mean) / max(np.sum(mean**2), LEAST_MEAN))


@checks.explain_call
@dataclass(frozen=True)
class Bernoulli(Family):
    """Yes and no, 1 and 0: P(z_k = 1) = f_k, each entry by itself.

    The gradient takes the loss at 1 and at 0 in every entry: exact for every loss, without a density.

    >>> Bernoulli().estimate(jnp.array([[1.0, 0.0], [1.0, 1.0]]), jnp.array([0.5, 0.5]))
    Array([1. , 0.5], dtype=float32)
    """

    discrete = True
    takes = f"{VECTORS}, of 0 and 1"

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 2)

    def ordinary(self, batch: Batch) -> Batch:
        return (batch == 0) | (batch == 1)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return average(weights, batch.astype(weights.dtype))

    def log_prob(self, z: Batch, f: Array) -> Array:
        yes, no = jnp.maximum(f, LEAST_SHARE), jnp.maximum(1 - f, LEAST_SHARE)
        return jnp.sum(z * jnp.log(yes) + (1 - z) * jnp.log(no))

    def moved_loss(self, loss: Callable[[Batch], Array], z: Batch, delta: Array, f: Array) -> Array:
        each = jnp.eye(f.shape[0], dtype=bool)
        yes, no = jnp.where(each, 1, z).astype(z.dtype), jnp.where(each, 0, z).astype(z.dtype)
        return loss(z) + delta @ (jax.vmap(loss)(yes) - jax.vmap(loss)(no))

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return share_variance(weights, f)


@checks.explain_call
@dataclass(frozen=True)
class Categorical(Family):
    """Choices among products: z is 0 for none of them and k for product k, or a row (K,) that is 1 at the product.

    f holds the shares of the K products; what is left have taken none. The gradient takes the loss at every choice:
    exact for every loss, and without noise where f is. Where samples hold more than the choice: ``GroupShares``.

    >>> equal = jnp.full(4, 0.25)
    >>> Categorical(2).estimate(jnp.array([0, 1, 2, 2]), equal)
    Array([0.25, 0.5 ], dtype=float32)
    >>> Categorical(2).estimate(jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), equal)
    Array([0.25, 0.5 ], dtype=float32)
    """

    products: int = 2

    discrete = True
    takes = "whole numbers (n,), 0 for none and k for product k, or rows (n, K) that are 1 at the product and else 0"

    def __post_init__(self) -> None:
        checks.positive_int("products", self.products)

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 1, whole=True) or (is_array(batch, 2) and batch.shape[1] == self.products)

    def labels(self, batch: Batch) -> Array | None:
        return batch if batch.ndim == 1 else None

    @property
    def group_count(self) -> int:
        return self.products + 1

    def group_of(self, z: Batch) -> Array:
        """The choice: 0 for none."""
        if z.ndim == 0:
            return z
        return jnp.sum(jnp.arange(1, self.products + 1) * (z > 0)).astype(jnp.int32)

    def ordinary(self, batch: Batch) -> Batch:
        return jnp.ones(batch.shape, bool) if batch.ndim == 1 else (batch == 0) | (batch == 1)

    def rows(self, batch: Batch) -> Array:
        """A row (K,) per sample that is 1 at the product."""
        return jax.nn.one_hot(batch - 1, self.products) if batch.ndim == 1 else batch

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return average(weights, self.rows(batch).astype(weights.dtype))

    def log_prob(self, z: Batch, f: Array) -> Array:
        shares = jnp.append(1 - jnp.sum(f), f)
        return jnp.log(jnp.maximum(shares[self.group_of(z)], LEAST_SHARE))

    def moved_loss(self, loss: Callable[[Batch], Array], z: Batch, delta: Array, f: Array) -> Array:
        every = jnp.arange(self.products + 1, dtype=z.dtype)
        losses = jax.vmap(loss)(every if z.ndim == 0 else jnp.eye(self.products + 1, dtype=z.dtype)[:, 1:])
        return losses[0] + (f + delta) @ (losses[1:] - losses[0])

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return share_variance(weights, f)


def share_variance(weights: Array, f: Array) -> Array:
    """The variance of shares (p,); of a share that nobody or everybody has, that of one sample more or less."""
    share = jnp.sum(weights**2)
    return jnp.maximum(f * (1 - f), share * (1 - share)) * share
