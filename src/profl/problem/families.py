"""Families: the data's distribution described by a vector f of shape (p,), and f estimated from a batch.

A family defines (paper, Section III-B)

* ``estimate(batch, weights)``: f_hat from weighted samples (the weights sum to one);
* ``log_prob(z, f)``: log p(z; f) of one sample, up to terms without f; the score d log p / df is its derivative;
* ``shift(z, delta)``, where f is a location: the sample z after f moves by delta; ``shift(z, delta, f)`` where that
  depends on f. It gives the pathwise gradient, which needs no density and stays right for noise that is not Gaussian;
* ``moved_loss(loss, z, delta, f)``, where samples cannot be shifted but the expected loss is known after f moves;
* ``variance(batch, weights, f)``: the sampling variance of f_hat; by default the sandwich formula of M-estimation;
* ``observed_variance(batch, weights, f)``: the same from the batch alone, where ``variance`` uses a declared ``sd``;
* ``group_count`` and ``group_of(z)``: where clean samples come in groups (classes, say) that differ from one another. A
  filter compares a sample with its own group only;
* ``ordinary(batch)``: which numbers are ordinary wherever the others lie. To a filter of samples they say nothing;
* ``takes``, ``fits(batch)`` and ``labels(batch)``: for error messages where a batch does not suit it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks
from profl.numerics import pseudo_inverse
from profl.typing import Array, Batch

LEAST_SHARE = 1e-6  # of a group, in log p: an empty group has weight 0, and 0 * log(0) must stay 0
ROUNDING = 4  # machine epsilons of f^2, the least noise that is taken to be there
FLAT = 4  # machine epsilons of the mean: a standard deviation below that is rounding
GAUSSIAN_KURTOSIS = 3.0
PRIOR_SAMPLES = 10.0
"""Weight of the Gaussian kurtosis in samples: two samples always show a kurtosis of 1, which would be a standard
deviation known without error; from a hundred on the data decide."""

VECTORS = "an array of shape (n, p), one row per sample"


def is_array(leaf: Any, ndim: int, whole: bool = False) -> bool:
    """Whether a leaf of a batch is an array with ``ndim`` axes, and of integers where ``whole``."""
    kind = jnp.integer if whole else jnp.number
    return len(getattr(leaf, "shape", ())) == ndim and bool(jnp.issubdtype(leaf.dtype, kind))


def has(batch: Batch, name: str, ndim: int, whole: bool = False) -> bool:
    """Whether a batch is a dict with such an array called ``name``."""
    return isinstance(batch, Mapping) and name in batch and is_array(batch[name], ndim, whole)


def average(weights: Array, values: Array) -> Array:
    """The weighted mean of (n, ...) values over samples, as a product: XLA vectorises that on a CPU, unlike a sum.

    >>> average(jnp.array([0.5, 0.5]), jnp.array([[1.0], [3.0]]))
    Array([2.], dtype=float32)
    """
    return jnp.dot(jnp.moveaxis(values, 0, -1), weights, precision="highest")


def rounding_variance(mean: Array) -> Array:
    """The variance up to which numbers with that mean do not vary: that of their rounding."""
    return (FLAT * jnp.finfo(mean.dtype).eps * mean) ** 2 + jnp.finfo(mean.dtype).tiny


class Family:
    """Base class; subclasses are frozen dataclasses, so that equal families share compiled code."""

    shift: Callable[..., Batch] | None = None
    location_only: bool = False  # whether f says where samples lie and nothing of how far they spread
    discrete: bool = False  # whether samples have steps between them: none moves smoothly as theta does
    amounts: bool = False  # whether the whole numbers of a batch are amounts, which a filter looks at, and no labels

    takes: str = ""  # the batches that it reads, in words

    def fits(self, batch: Batch) -> bool:
        """Whether the family reads a batch, or its shapes; used only where the same class defines ``estimate``."""
        return True

    def labels(self, batch: Batch) -> Array | None:
        """The classes or groups in a batch, which must be 0, 1, ..., ``group_count`` - 1; None where there are none."""
        return None

    @property
    def group_count(self) -> int:
        """The number of groups of clean samples that differ from one another."""
        return 1

    def group_of(self, z: Batch) -> Array:
        """The group of a sample: 0, 1, ..., ``group_count`` - 1."""
        return jnp.zeros((), jnp.int32)

    def ordinary(self, batch: Batch) -> Batch:
        """Which numbers of a batch are no sign of junk wherever the others lie: bools in its structure and shapes.

        By default exact zeros: nobody bought. All where every value is as good as another, none where a zero is an
        error like any other.

        >>> Family().ordinary(jnp.array([[0.0, 5.0]]))
        Array([[ True, False]], dtype=bool)
        """
        return jax.tree.map(lambda leaf: leaf == 0, batch)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must define estimate(batch, weights) -> f of shape (p,)")

    def log_prob(self, z: Batch, f: Array) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(z, f) -> scalar")

    def apply_shift(self, z: Batch, delta: Array, f: Array) -> Batch:
        """The sample z, drawn at ``f``, after f moves by ``delta``; for a family with a ``shift``."""
        assert self.shift is not None
        return self.shift(z, delta, *([f] if len(inspect.signature(self.shift).parameters) > 2 else []))

    @property
    def moves(self) -> bool:
        """Whether the family says what becomes of a sample's loss after f moves."""
        return self.shift is not None or type(self).moved_loss is not Family.moved_loss

    def moved_loss(self, loss: Callable[[Batch], Array], z: Batch, delta: Array, f: Array) -> Array:
        """The loss of the sample z, drawn at ``f``, after f moves by ``delta``, (); an expectation will do.

        By default that of the shifted sample.
        """
        return loss(self.apply_shift(z, delta, f))

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """diag(A^-1 B A^-1) sum w^2, shape (p,), with A = -E[Hessian of log p] and B = E[score score^T]."""
        scores = jax.vmap(jax.grad(self.log_prob, argnums=1), (0, None))(batch, f)
        hessian = jax.hessian(lambda g: weights @ jax.vmap(self.log_prob, (0, None))(batch, g))(f)
        bread = pseudo_inverse(-hessian)
        meat = scores.T @ (weights[:, None] * scores)
        return jnp.diagonal(bread @ meat @ bread) * jnp.sum(weights**2)

    def observed_variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """The sampling variance of f_hat from the batch alone, shape (p,).

        Where f is a location, by the sandwich formula, which does not depend on the family's ``sd``.
        """
        plain = self.variance if self.shift is None else partial(Family.variance, self)
        least = ROUNDING * jnp.finfo(f.dtype).eps * (f**2 + jnp.mean(f**2)) + jnp.finfo(f.dtype).tiny
        return jnp.maximum(plain(batch, weights, f), least)


@checks.explain_call
@dataclass(frozen=True)
class GaussianMean(Family):
    """z is a vector, f its mean: z ~ N(f, sd^2 I); ``sd`` may also be a tuple, one for every entry of z.

    >>> GaussianMean().estimate(jnp.array([[1.0], [3.0]]), jnp.array([0.5, 0.5]))
    Array([2.], dtype=float32)
    """

    sd: float | tuple[float, ...] = 1.0

    takes = VECTORS
    location_only = True

    def __post_init__(self) -> None:
        for sd in checks.numbers_of("sd", self.sd, "a number above 0, or one per entry of z").ravel():
            checks.positive("sd", sd)

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 2)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return average(weights, batch)

    def log_prob(self, z: Batch, f: Array) -> Array:
        return -0.5 * jnp.sum(((z - f) / jnp.asarray(self.sd, f.dtype)) ** 2)

    def shift(self, z: Batch, delta: Array) -> Batch:
        return z + delta

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return jnp.broadcast_to(jnp.square(jnp.asarray(self.sd, f.dtype)), f.shape) * jnp.sum(weights**2)


@checks.explain_call
@dataclass(frozen=True)
class LocationScale(Family):
    """z is a vector; f holds the means, then the logarithms of the standard deviations.

    A change of f takes z to mean' + (z - mean) sd' / sd. The noise of f is estimated from the batch, without a density
    or an sd. A coordinate that does not vary has an sd of its rounding, and is not scaled.

    >>> family, batch, equal = LocationScale(), jnp.array([[1.0], [3.0]]), jnp.array([0.5, 0.5])
    >>> f = jax.jit(family.estimate)(batch, equal)
    >>> f
    Array([2., 0.], dtype=float32)
    >>> family.apply_shift(batch[1], jnp.array([1.0, jnp.log(2.0)]), f)  # the mean is 3 then, and the sd 2
    Array([5.], dtype=float32)
    """

    takes = VECTORS

    def fits(self, batch: Batch) -> bool:
        return is_array(batch, 2)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        mean = average(weights, batch)
        spread = average(weights, (batch - mean) ** 2)
        return jnp.concatenate([mean, 0.5 * jnp.log(jnp.maximum(spread, rounding_variance(mean)))])

    def log_prob(self, z: Batch, f: Array) -> Array:
        mean, log_sd = jnp.split(f, 2)
        return -jnp.sum(0.5 * ((z - mean) * jnp.exp(-log_sd)) ** 2 + log_sd)

    def shift(self, z: Batch, delta: Array, f: Array) -> Batch:
        mean, (by, log_ratio) = jnp.split(f, 2)[0], jnp.split(delta, 2)
        return mean + by + (z - mean) * jnp.exp(log_ratio)

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """sd^2 / n of a mean and, by the delta method, (kurtosis - 1) / 4 n of a log sd; 1 / n is sum w^2."""
        mean, log_sd = jnp.split(f, 2)
        share = jnp.sum(weights**2)
        spread = average(weights, (batch - mean) ** 2)
        varies = spread > rounding_variance(mean)
        sample = average(weights, ((batch - mean) * jnp.exp(-log_sd)) ** 4)
        kurtosis = (sample / share + PRIOR_SAMPLES * GAUSSIAN_KURTOSIS) / (1 / share + PRIOR_SAMPLES)
        of_log_sd = (jnp.where(varies, kurtosis, GAUSSIAN_KURTOSIS) - 1) / 4
        return jnp.concatenate([jnp.where(varies, spread, 0.0), of_log_sd]) * share

    def observed_variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        least = ROUNDING * jnp.finfo(f.dtype).eps * f**2 + jnp.finfo(f.dtype).tiny
        return jnp.maximum(self.variance(batch, weights, f), least)


@checks.explain_call
@dataclass(frozen=True)
class ClassMeans(Family):
    """z = {"x": features, "y": class 0, 1, ...}; f holds the mean of x in each class, one class after the other."""

    classes: int = 2
    sd: float = 1.0

    takes = '{"x": an array (n, d), "y": whole numbers (n,), the classes 0, 1, ...}'

    def __post_init__(self) -> None:
        checks.positive_int("classes", self.classes)
        checks.positive("sd", self.sd)

    def fits(self, batch: Batch) -> bool:
        return has(batch, "x", 2) and has(batch, "y", 1, whole=True)

    def labels(self, batch: Batch) -> Array | None:
        return batch["y"]

    @property
    def group_count(self) -> int:
        return self.classes

    def group_of(self, z: Batch) -> Array:
        return z["y"]

    def estimate(self, batch: Batch, weights: Array) -> Array:
        member = weights[:, None] * jax.nn.one_hot(batch["y"], self.classes)
        share = jnp.maximum(member.sum(0), jnp.finfo(weights.dtype).tiny)
        return ((member.T @ batch["x"]) / share[:, None]).ravel()

    def log_prob(self, z: Batch, f: Array) -> Array:
        return -0.5 * jnp.sum((z["x"] - self._mean(z, f)) ** 2) / self.sd**2

    def shift(self, z: Batch, delta: Array) -> Batch:
        return {**z, "x": z["x"] + self._mean(z, delta)}

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        member = jax.nn.one_hot(batch["y"], self.classes)
        share = weights @ member
        ratio = ((weights**2) @ member) / jnp.where(share > 0, share, 1.0) ** 2
        per_class = jnp.where(share > 0, ratio, 1.0)  # of an empty class, the variance of one sample
        return jnp.repeat(self.sd**2 * per_class, f.shape[0] // self.classes)

    def _mean(self, z: Batch, f: Array) -> Array:
        return f.reshape(self.classes, -1)[z["y"]]


@checks.explain_call
@dataclass(frozen=True)
class LinearGaussian(Family):
    """z = {"x": features, "y": target}; f is the regression coefficient: y = f.x + N(0, sd^2)."""

    sd: float = 1.0

    takes = '{"x": an array (n, d), "y": an array (n,)}'

    def __post_init__(self) -> None:
        checks.positive("sd", self.sd)

    def fits(self, batch: Batch) -> bool:
        return has(batch, "x", 2) and has(batch, "y", 1)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        x, weighted = batch["x"], weights[:, None] * batch["x"]
        gram, moment = x.T @ weighted, jnp.sum(weighted * batch["y"][:, None], axis=0)
        if gram.shape[0] == 1:  # a batched 1 x 1 solve is a library call that costs more than the whole step
            return moment / gram[0]
        return jnp.linalg.solve(gram, moment)

    def log_prob(self, z: Batch, f: Array) -> Array:
        return -0.5 * (z["y"] - z["x"] @ f) ** 2 / self.sd**2

    def shift(self, z: Batch, delta: Array) -> Batch:
        return {**z, "y": z["y"] + z["x"] @ delta}

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        gram = batch["x"].T @ (weights[:, None] * batch["x"])
        inverse = 1 / gram if gram.shape[0] == 1 else jnp.linalg.inv(gram)
        return self.sd**2 * jnp.diagonal(inverse) * jnp.sum(weights**2)


@checks.explain_call
@dataclass(frozen=True)
class GroupShares(Family):
    """z has an entry "group" in 0..groups-1; f holds the share of each group (on the simplex).

    The distribution inside a group is fixed, so log p(z; f) = log f[group] + const. The gradient comes from the score:
    a share changes how many samples come from a group, not where they lie.
    """

    groups: int = 2

    takes = 'a dict with "group": whole numbers (n,), the groups 0, 1, ...'

    def __post_init__(self) -> None:
        checks.positive_int("groups", self.groups)

    def fits(self, batch: Batch) -> bool:
        return has(batch, "group", 1, whole=True)

    def labels(self, batch: Batch) -> Array | None:
        return batch["group"]

    @property
    def group_count(self) -> int:
        return self.groups

    def group_of(self, z: Batch) -> Array:
        return z["group"]

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return weights @ jax.nn.one_hot(batch["group"], self.groups)

    def log_prob(self, z: Batch, f: Array) -> Array:
        return jnp.log(jnp.maximum(f[z["group"]], LEAST_SHARE))

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return f * (1 - f) * jnp.sum(weights**2)
