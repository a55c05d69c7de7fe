"""Families for counts, for yes and no, and for choices among products.

    Poisson            z_k ~ Poisson(f_k)                                       f: the means, (p,)
    NegativeBinomial   mean f_k, variance f_k + dispersion f_k^2                f: the means, (p,)
    Bernoulli          P(z_k = 1) = f_k                                         f: the probabilities, (p,)
    Categorical        P(z = k) = f_k for product k, 1 - sum f for none         f: the shares of the products, (K,)

``link`` says on which scale f stands: "log" has the logarithms of the means, "logit" the log-odds of each product
against none. Where demand is log-linear or a multinomial logit, f is then linear in the prices, and a line is learned
from few deployments.

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

COUNT_LINKS, CHOICE_LINKS = ("identity", "log"), ("identity", "logit")
LOG_RANGE = (-14.0, 30.0)  # of a log mean: LEAST_MEAN, and what no shop sells
LEAST_MEAN = 1e-6  # of a count, in log p and as a variance: nobody has bought, or a fitted mean is below zero
COUNTS = f"{VECTORS}, of counts 0, 1, 2, ..."


class Counts(Family):
    """Counts z (p,), whole or floating numbers, that move with their means f and with the spread that these say."""

    amounts = True
    discrete = True
    takes = COUNTS
    link: str

    def mean(self, f: Array) -> Array:
        """The means that f stands for."""
        return f if self.link == "identity" else jnp.exp(jnp.clip(f, *LOG_RANGE))

    def spread(self, mean: Array) -> Array:
        """The variance of counts of that mean, above zero."""
        raise NotImplementedError

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 2)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        mean = average(weights, batch.astype(weights.dtype))
        return mean if self.link == "identity" else jnp.log(mean + jnp.sum(weights**2) / 2)

    def shift(self, z: Batch, delta: Array, f: Array) -> Batch:
        before, after = self.mean(f), self.mean(f + delta)
        return after + (z - before) * jnp.sqrt(self.spread(after) / self.spread(before))

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """That of the family at f; where nothing was counted in n samples, that of a mean of 1 / n."""
        share = jnp.sum(weights**2)
        mean = jnp.maximum(self.mean(f), share)
        return self.in_f(self.spread(mean), mean) * share

    def observed_variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        mean, share = self.mean(f), jnp.sum(weights**2)
        seen = jnp.maximum(average(weights, (batch - mean) ** 2), share)
        return self.in_f(seen, jnp.maximum(mean, share)) * share

    def in_f(self, variance: Array, mean: Array) -> Array:
        """The variance of f that this variance of the mean is."""
        return variance if self.link == "identity" else variance / mean**2


@checks.explain_call
@dataclass(frozen=True)
class Poisson(Counts):
    """Counts with a variance of their mean: z_k ~ Poisson(f_k), each entry by itself.

    The gradient is that of samples that move with mean and standard deviation; losses see fractions then, and below
    zero where f falls far. With link="log" f holds the logarithms of the means: for demand that falls by a share.

    >>> family, batch, equal = Poisson(), jnp.array([[1.0], [3.0]]), jnp.array([0.5, 0.5])
    >>> family.estimate(batch, equal)
    Array([2.], dtype=float32)
    >>> family.apply_shift(jnp.array([3.0]), jnp.array([6.0]), jnp.array([2.0]))  # mean 2 -> 8, sd twice as large
    Array([10.], dtype=float32)
    """

    link: str = "identity"

    def __post_init__(self) -> None:
        checks.one_of("link", self.link, COUNT_LINKS)

    def spread(self, mean: Array) -> Array:
        return jnp.maximum(mean, LEAST_MEAN)

    def log_prob(self, z: Batch, f: Array) -> Array:
        mean = self.mean(f)
        return jnp.sum(z * jnp.log(jnp.maximum(mean, LEAST_MEAN)) - mean)


@checks.explain_call
@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """Counts that vary more than their mean says: variance f + dispersion f^2, each entry by itself.

    ``dispersion`` is stated: one number, or a tuple with one for every entry. ``NegativeBinomial.fit(counts)`` reads it
    off data that are at hand. What it says of the gradient is little (nothing, where the loss is linear in z).

    >>> draws = np.random.default_rng(0)
    >>> sales = draws.poisson(draws.gamma(2.0, 5.0, size=(4000, 1)))  # mean 10, variance 10 + 100 / 2
    >>> NegativeBinomial.fit(sales)
    NegativeBinomial(dispersion=0.52, link='identity')
    """

    dispersion: float | tuple[float, ...] = 1.0
    link: str = "identity"

    def __post_init__(self) -> None:
        checks.one_of("link", self.link, COUNT_LINKS)
        expected = "a number above 0, or one per entry of z"
        for each in checks.numbers_of("dispersion", self.dispersion, expected).ravel():
            checks.positive("dispersion", each)

    @classmethod
    def fit(cls, counts: Any, link: str = "identity") -> NegativeBinomial:
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
        return cls(float(f"{found:.2g}"), link)

    def spread(self, mean: Array) -> Array:
        mean = jnp.maximum(mean, LEAST_MEAN)
        return mean + jnp.asarray(self.dispersion, mean.dtype) * mean**2

    def log_prob(self, z: Batch, f: Array) -> Array:
        size = 1 / jnp.asarray(self.dispersion, f.dtype)
        mean = jnp.maximum(self.mean(f), LEAST_MEAN)
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

    f holds the shares of the K products; what is left have taken none. With link="logit" it holds their log-odds
    against none, which are linear in the prices where people choose by a multinomial logit. The gradient takes the loss
    at every choice: exact for every loss. Where samples hold more than the choice: ``GroupShares``.

    >>> equal = jnp.full(4, 0.25)
    >>> Categorical(2).estimate(jnp.array([0, 1, 2, 2]), equal)
    Array([0.25, 0.5 ], dtype=float32)
    >>> Categorical(2).estimate(jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), equal)
    Array([0.25, 0.5 ], dtype=float32)
    """

    products: int = 2
    link: str = "identity"

    discrete = True
    takes = "whole numbers (n,), 0 for none and k for product k, or rows (n, K) that are 1 at the product and else 0"

    def __post_init__(self) -> None:
        checks.positive_int("products", self.products)
        checks.one_of("link", self.link, CHOICE_LINKS)

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
        shares = average(weights, self.rows(batch).astype(weights.dtype))
        if self.link == "identity":
            return shares
        half = jnp.sum(weights**2) / 2  # a sample, which keeps the logarithm of nobody finite and its bias small
        return jnp.log(shares + half) - jnp.log(jnp.maximum(1 - jnp.sum(shares), 0.0) + half)

    def shares(self, f: Array) -> Array:
        """The shares (1 + K,) that f stands for, that of none first."""
        if self.link == "identity":
            return jnp.append(1 - jnp.sum(f), f)
        return jax.nn.softmax(jnp.append(0.0, f))

    def log_prob(self, z: Batch, f: Array) -> Array:
        return jnp.log(jnp.maximum(self.shares(f)[self.group_of(z)], LEAST_SHARE))

    def moved_loss(self, loss: Callable[[Batch], Array], z: Batch, delta: Array, f: Array) -> Array:
        every = jnp.arange(self.products + 1, dtype=z.dtype)
        losses = jax.vmap(loss)(every if z.ndim == 0 else jnp.eye(self.products + 1, dtype=z.dtype)[:, 1:])
        return losses[0] + self.shares(f + delta)[1:] @ (losses[1:] - losses[0])

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        if self.link == "identity":
            return share_variance(weights, f)
        share = jnp.sum(weights**2)
        each = share / jnp.maximum(self.shares(f), share)
        return each[0] + each[1:]


def share_variance(weights: Array, f: Array) -> Array:
    """The variance of shares (p,); of a share that nobody or everybody has, that of one sample more or less."""
    share = jnp.sum(weights**2)
    return jnp.maximum(f * (1 - f), share * (1 - share)) * share
