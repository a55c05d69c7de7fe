"""How f responds to the signal near the present one: a fit to all observations, and how well it is known.

    f_k(s) = a_k + J_k x + x' Q_k x / 2 + noise,   x = s - anchor,
    variance of the noise = sample variance / samples + (third order)

One Bayesian regression per entry k of f. The level a_k has no prior. Slopes and curvatures have one, each with its own
mean and variance: what other clients reported (``consensus``), or zero mean and a variance from this client's evidence
(``empirical_prior``). Coefficients without evidence shrink to zero, so that a diagonal or sparse J is found from far
fewer observations than it has columns. Third order is not fitted; its size only widens the error bars: it is an unknown
function that all observations share, so that distant ones do not tilt the slope at the anchor. Fourth order is noise,
by which distant observations count less. (With both as noise, retail ends with 3.8 % left instead of 0.7 %.)

Signals are in natural units (``profl.parts.units``) and f in standard deviations of a sample, so that one prior suits
all problems. p is the number of entries of f, s of the signal, and m = 1 + slopes + curvatures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.methods.prm.observation_buffer import ObservationBuffer
from profl.methods.prm.settings import MOST_CURVED, REACTION_SIZES, RIDGE, SPARSE_COEFFICIENT
from profl.numerics import inverse_logdet
from profl.parts.jacobian.reaction_memory import MemoryEstimate, most_likely_memory
from profl.typing import Array


class Prior(NamedTuple):
    """The prior of slopes and curvatures near an anchor, (p, m - 1) each."""

    mean: Array
    variance: Array


class Response(NamedTuple):
    """f near an anchor."""

    anchor: Array  # (s,)
    mean: Array  # (p, m): level, slope, curvature
    cov: Array  # (p, 1 + s, 1 + s): of level and slope

    def __call__(self, signal: Array) -> Array:
        """f (..., p) at signals (..., s)."""
        return features(signal - self.anchor) @ self.mean.T

    def variance(self, signal: Array) -> Array:
        """Variance of level and slope together at a signal, (p,)."""
        x = jnp.append(1.0, signal - self.anchor)
        return jnp.einsum("kij,i,j->k", self.cov, x, x)


def curvature_count(size: int) -> int:
    """How many second-order coefficients are fitted for a signal of that size."""
    return size * (size + 1) // 2 if size <= MOST_CURVED else 0


def features(x: Array) -> Array:
    """Regressors (..., m) of x (..., s): 1, its entries, and their products, halved on the diagonal."""
    return _products(x, 0.5)


def _products(x: Array, of_square: float) -> Array:
    """1, the entries of x, and the products of two of them, row by row; squares count ``of_square`` times."""
    with_one = jnp.concatenate([jnp.ones((*x.shape[:-1], 1), x.dtype), x], -1)
    size = with_one.shape[-1]
    if not curvature_count(size - 1):
        return with_one
    rows, columns = np.triu_indices(size)
    eye, halved = np.eye(size, dtype=x.dtype), (rows == columns) & (rows > 0)
    return (with_one @ (eye[:, rows] * np.where(halved, of_square, 1.0).astype(x.dtype))) * (with_one @ eye[:, columns])


def feature_units(unit: Array) -> Array:
    """Factors (m - 1,) that convert slopes and curvatures to natural units of the signal."""
    return _products(unit, 1.0)[1:]


def move_prior(prior: Prior, step: Array, third_order_variance: Array) -> Prior:
    """The same prior of f, as slopes and curvatures at an anchor that is ``step`` (s,) further."""
    s = step.size
    jacobian = jax.jacfwd(features)(step)[1:]  # (m - 1, s)
    slope = prior.mean @ jacobian
    unfitted = 0.0 if curvature_count(s) else (third_order_variance * jnp.sum(step**2))[:, None]
    variance = prior.variance @ jacobian**2 + unfitted
    return Prior(jnp.hstack([slope, prior.mean[:, s:]]), jnp.hstack([variance, prior.variance[:, s:]]))


def empirical_prior(prior: Prior, mean: Array, variance: Array, sample_variance: Array, slopes: int = 1) -> Prior:
    """The prior with the variance that one client's own evidence gives it (one step of EM).

    ``mean`` and ``variance`` (p, m - 1) are those of its coefficients. Coefficients without evidence shrink to zero.
    With several ``slopes``, all slopes have one variance, in units of the sample variance, and so have all curvatures:
    a coefficient that was shrunk can grow again. (Thirty deployments of five goods: with a variance of each 0.0097
    above the optimum, with common ones 0.0041, seeds 0-9.)
    """
    squares = (mean - prior.mean) ** 2 + variance
    if slopes == 1:
        return prior._replace(variance=(SPARSE_COEFFICIENT**2 * sample_variance[:, None] + squares) / 2)
    relative = squares / sample_variance[:, None]
    means = [jnp.full(part.shape, jnp.mean(part)) for part in (relative[:, :slopes], relative[:, slopes:])]
    return prior._replace(variance=jnp.concatenate(means, 1) * sample_variance[:, None])


def unfitted_orders(x: Array) -> tuple[Array, Array]:
    """Covariance (N, N) of the first order that is not fitted, between observations at x (N, s), and variance (N,) of
    the next order; for coefficients of variance one.

    The first is an unknown function, the same for all observations; the next is taken for noise.
    """
    third = bool(curvature_count(x.shape[1]))
    inner, squares = x @ x.T, jnp.sum(x**2, 1)
    return (inner**3 / 36, squares**4 / 576) if third else (inner**2 / 4, squares**3 / 36)


class Moments(NamedTuple):
    """Sufficient statistics of the observations for level, slope and curvature at an anchor."""

    level: Array  # (p,): the value from which f is measured
    gram: Array  # (m, m), or (p, m, m) where entries of f were not observed alike
    linear: Array  # (p, m)


class Fit(NamedTuple):
    """A fitted response, and how well it is known."""

    response: Response
    variance: Array  # (p, m): of all its coefficients
    moments: Moments
    third_order: Array  # (2,): evidence of the unfitted order in the residuals, and its expectation


def fit_response(
    observations: ObservationBuffer,
    anchor: Array,
    prior: Prior,
    sample_variance: Array,
    third_order_variance: Array,
    beside: Callable[[Moments], Moments] = lambda moments: moments,
) -> Fit:
    """The posterior, given the prior.

    ``sample_variance`` (p,) is that of one sample's f, the same for all observations: batches of skewed data whose own
    variance is small have a small mean as well, and would bias the fit if they counted for more.
    ``third_order_variance`` is the variance of coefficients that are not fitted, in units of it. All entries of f then
    share one covariance of their residuals. ``beside`` adds what is known from elsewhere.
    """
    x = observations.signal - anchor
    rows = features(x)  # (N, m)
    shared, independent = unfitted_orders(x)
    root = jnp.sqrt(observations.samples / (1 + observations.samples * third_order_variance * independent))
    shared = third_order_variance * root[:, None] * shared * root
    precision, _ = inverse_logdet(shared + np.eye(root.size, dtype=root.dtype))  # of the residuals
    level = root**2 @ observations.f / jnp.sum(root**2)
    scaled, target = root[:, None] * rows, root[:, None] * (observations.f - level)  # (N, m), (N, p)
    weighted = precision @ scaled
    moments = beside(Moments(level, scaled.T @ weighted, target.T @ weighted))
    response, cov = posterior(moments, anchor, prior, sample_variance)
    coefficients = response.mean - level[:, None] * (np.arange(rows.shape[1]) == 0)
    residuals = precision @ (target - scaled @ coefficients.T)
    evidence = jnp.sum((shared @ residuals) * residuals / sample_variance)
    fitted = jnp.tensordot(1 / sample_variance, cov, 1) * (weighted.T @ shared @ weighted)
    expected = sample_variance.size * jnp.sum(precision * shared) - jnp.sum(fitted)
    return Fit(response, diagonal(cov), moments, jnp.stack([evidence, expected]))


def diagonal(matrices: Array) -> Array:
    """The diagonals (..., m) of matrices (..., m, m): a sum, where a gather would be six times as many instructions."""
    return jnp.sum(matrices * np.eye(matrices.shape[-1], dtype=matrices.dtype), -1)


def _inverse(precision: Array) -> tuple[Array, Array]:
    """The inverse and the log determinant of a precision matrix, with a small ridge where its diagonal is one.

    It is scaled by one symmetric table. Divided by rows and then by columns, fits of five parameters and more were not
    finite under jax 0.11 on a CPU.
    """
    eye = np.eye(precision.shape[0], dtype=precision.dtype)
    size = jax.lax.rsqrt(diagonal(precision))
    outer = size[:, None] * size
    inverted, logdet = inverse_logdet(precision * outer + RIDGE * jnp.finfo(size.dtype).eps * eye)
    return inverted * outer, logdet - 2 * jnp.sum(jnp.log(size))


@jax.jit  # a program holds it once
def posterior(moments: Moments, anchor: Array, prior: Prior, sample_variance: Array) -> tuple[Response, Array]:
    """The response to the same observations with another prior, and the covariance (p, m, m) of its coefficients."""

    def one_entry(gram: Array, linear: Array, mean0: Array, variance0: Array, variance: Array) -> tuple[Array, Array]:
        precision = gram + np.eye(1 + mean0.size, dtype=mean0.dtype) * jnp.append(0.0, variance / variance0)
        start = jnp.append(0.0, mean0)
        cov, _ = _inverse(precision)
        right = linear - gram @ start
        change = cov @ right
        change = change + cov @ (right - precision @ change)  # corrects the rounding of the first solution
        return change + start, variance * cov

    axes = (0 if moments.gram.ndim == 3 else None, 0, 0, 0, 0)
    mean, cov = jax.vmap(one_entry, axes)(moments.gram, moments.linear, *prior, sample_variance)
    level, s = np.arange(mean.shape[1]) == 0, 1 + anchor.size
    return Response(anchor, mean + moments.level[:, None] * level, cov[:, :s, :s]), cov


def log_likelihood(observations: ObservationBuffer, width: Array, sample_variance: Array, noise: Array) -> Array:
    """Log of the observations' likelihood under a response with slopes and curvatures near zero, ().

    It compares signals that people may respond to. ``width`` (m - 1,) are standard deviations of slopes and
    curvatures, the same for all entries of f, so that one matrix is inverted for all of them. ``noise`` (N,) is the
    variance of an observation, in those that its samples alone would give it. Where the rest is larger than that, the
    noise is what the rest shows: a misfit then speaks for no hypothesis.
    """
    weights = observations.samples / noise
    both = jnp.hstack([features(observations.signal)[:, 1:] * width, observations.f])
    both = jnp.sqrt(weights)[:, None] * (both - weights @ both / jnp.sum(weights))
    rows, target = both[:, : width.size], both[:, width.size :]
    inverted, logdet = _inverse(rows.T @ rows + jnp.eye(width.size))
    coefficients = inverted @ (rows.T @ target)  # (m - 1, p)
    misses = jnp.vstack([target - rows @ coefficients, coefficients])
    total = jnp.sum(misses**2 / sample_variance)
    count = jnp.maximum(jnp.sum(observations.filled) - 1.0, 1.0) * sample_variance.size
    ratio = total / count
    total = count * (jnp.minimum(ratio, 1.0) + jnp.log(jnp.maximum(ratio, 1.0)))
    return -(total + sample_variance.size * logdet) / 2


def misfit_noise(observations: ObservationBuffer, third_order_variance: float) -> Array:
    """The variance of every observation, (N,), with what is not fitted in it, in those that its samples give it."""
    shared, independent = unfitted_orders(observations.signal)
    return 1 + observations.samples * third_order_variance * (diagonal(shared) + independent)


def estimate_memory(
    observations: ObservationBuffer, width: Array, sample_variance: Array, third_order_variance: float
) -> MemoryEstimate:
    """How long people remember, from observations whose signals are (memories, s).

    For each memory the size of the reaction, up to ``width``, that suits it best: otherwise a long memory, with which
    the averaged signal moves less, would be likelier wherever the reaction is small. What is not fitted is as large for
    all of them as it is without a memory, for the same reason.
    """
    share = observations.samples / jnp.sum(observations.samples)
    centred = observations.signal - jnp.tensordot(share, observations.signal, 1)
    noise = misfit_noise(observations._replace(signal=centred[:, 0]), third_order_variance)

    def one(signal: Array, size: Array) -> Array:
        return log_likelihood(observations._replace(signal=signal), size * width, sample_variance, noise)

    sizes = jnp.asarray(REACTION_SIZES, width.dtype)
    evidence = jnp.max(jax.vmap(jax.vmap(one, (None, 0)), (1, None))(centred, sizes), 1)
    return most_likely_memory(evidence - evidence[0])


def update_third_order_variance(variance: Array, third_order: Array) -> Array:
    """``variance`` as the residuals of a fit show it, by at most a factor of two."""
    return variance * jnp.clip((third_order[0] + 1.0) / (third_order[1] + 1.0), 0.5, 2.0)
