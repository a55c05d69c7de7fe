"""How f answers to the signal near the present one: a fit to what was tried, and how well it is known.

    f_k(s) = a_k + J_k x + x' Q_k x / 2 + noise,   x = s - anchor,   noise variance spread / samples + (third order)

One Bayesian regression per entry k of f. The level is free; slopes and curvatures have a prior, each its own mean and
variance: what the other clients found (``consensus``), or zero and what the evidence of one client leaves
(``evidence``). What is nothing shrinks to nothing, so that a diagonal or sparse J is found from far fewer trials than
it has columns. Third order is not fitted but feared: it is an unknown function that all trials share, so that far ones
do not bend the slope at the anchor; and fourth order is noise, by which far ones count less.

Signals are measured in natural units (``profl.parts.units``) and f in standard deviations of a sample, so that one
prior suits all.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl.methods.prm.observation_buffer import Trials
from profl.numerics import inverse, inverse_logdet
from profl.parts.jacobian.reaction_memory import Peak, peak
from profl.typing import Array

SPARSE = 0.1  # deviations: what a coefficient is taken to be at the least, with the weight of one observation
RIDGE = 8  # machine epsilons of a coefficient's precision: rounding must not make the others' matrix indefinite
SIZES = 1.0, 0.3, 0.1, 0.03  # of the widest reaction: those that are tried to find how long people remember
MOST_CURVED = 6  # entries of a signal up to which products of two of them are fitted as well


class Prior(NamedTuple):
    """What is believed of slopes and curvatures near an anchor before the trials are weighed in, (p, m - 1) each."""

    mean: Array
    variance: Array


class Response(NamedTuple):
    """f near an anchor."""

    anchor: Array  # (s,)
    mean: Array  # (p, m): level, slope, curvature
    cov: Array  # (p, 1 + s, 1 + s): of level and slope

    def __call__(self, signal: Array) -> Array:
        return self.mean @ features(signal - self.anchor)

    def variance(self, signal: Array) -> Array:
        """Of level and slope together, at a signal, (p,)."""
        x = jnp.append(1.0, signal - self.anchor)
        return jnp.einsum("kij,i,j->k", self.cov, x, x)


def curvatures(size: int) -> int:
    """How many coefficients of second order are fitted to a signal of that size."""
    return size * (size + 1) // 2 if size <= MOST_CURVED else 0


def features(x: Array) -> Array:
    """(1, x, half the products of its entries)."""
    if not curvatures(x.size):
        return jnp.concatenate([jnp.ones(1, x.dtype), x])
    rows, columns = jnp.triu_indices(x.size)
    products = jnp.where(rows == columns, 0.5, 1.0) * x[rows] * x[columns]
    return jnp.concatenate([jnp.ones(1, x.dtype), x, products])


def feature_units(unit: Array) -> Array:
    """What slopes and curvatures are multiplied with to be measured in units of the signal, (m - 1,)."""
    if not curvatures(unit.size):
        return unit
    rows, columns = jnp.triu_indices(unit.size)
    return jnp.concatenate([unit, unit[rows] * unit[columns]])


def moved(prior: Prior, step: Array, fear: Array) -> Prior:
    """The same belief, seen from an anchor one step further."""
    s = step.size
    turn = jax.jacfwd(features)(step)[1:]  # (m - 1, s)
    slope = prior.mean @ turn
    doubt = prior.variance @ turn**2 + (0.0 if curvatures(s) else (fear * jnp.sum(step**2))[:, None])
    return Prior(prior.mean.at[:, :s].set(slope), prior.variance.at[:, :s].set(doubt))


def evidence(prior: Prior, mean: Array, variance: Array, spread: Array, slopes: int = 1) -> Prior:
    """The prior's variance as one client by itself sees it: coefficients that are nothing shrink to nothing (EM).

    ``mean`` and ``variance`` (p, m - 1) are those of its coefficients. With several ``slopes``, all of them have one
    variance, in units of the spread, and so have all curvatures: what was taken for nothing can grow again. (Thirty
    deployments of five goods: each by itself 0.0097 above the optimum, together 0.0041, seeds 0-9.)
    """
    seen = (mean - prior.mean) ** 2 + variance
    if slopes == 1:
        return prior._replace(variance=(SPARSE**2 * spread[:, None] + seen) / 2)
    share = seen / spread[:, None]
    kinds = [jnp.full(part.shape, jnp.mean(part)) for part in (share[:, :slopes], share[:, slopes:])]
    return prior._replace(variance=jnp.concatenate(kinds, 1) * spread[:, None])


def unfitted(x: Array) -> tuple[Array, Array]:
    """Covariance (N, N) of what the first order that is not fitted adds to trials at x, and variance (N,) of the next.

    For coefficients of variance one. The first is an unknown function, the same for all trials; the next one is taken
    for noise, so that far trials count for nothing.
    """
    third = bool(curvatures(x.shape[1]))
    inner, squares = x @ x.T, jnp.sum(x**2, 1)
    return (inner**3 / 36, squares**4 / 576) if third else (inner**2 / 4, squares**3 / 36)


class Moments(NamedTuple):
    """All that the trials say of level, slope and curvature at an anchor, in units of the spread."""

    level: Array  # (p,): where f is measured from
    gram: Array  # (m, m)
    linear: Array  # (p, m)


class Fit(NamedTuple):
    response: Response
    variance: Array  # (p, m): of all its coefficients
    moments: Moments
    third: Array  # (2,): what misses show of the order that is not fitted, and what they were expected to


def fit(trials: Trials, anchor: Array, prior: Prior, spread: Array, fear: Array) -> Fit:
    """The posterior, given the prior.

    ``spread`` is the variance of one sample's f, the same for all trials: batches of skewed data whose own variance is
    small have a small mean as well, and would draw the fit to it if they counted for more. ``fear`` is the variance of
    the coefficients that are not fitted, in units of it. All entries of f then share one covariance of their misses.
    """
    x = trials.signal - anchor
    rows = jax.vmap(features)(x)  # (N, m)
    together, alone = unfitted(x)
    root = jnp.sqrt(trials.samples / (1 + trials.samples * fear * alone))
    together = fear * root[:, None] * together * root
    weigh = inverse(jnp.eye(root.size) + together)  # of the misses' covariance
    level = root**2 @ trials.f / jnp.sum(root**2)
    scaled, seen = root[:, None] * rows, root[:, None] * (trials.f - level)  # (N, m), (N, p)
    solved = weigh @ scaled
    moments = Moments(level, scaled.T @ solved, seen.T @ solved)
    response, cov = posterior(moments, anchor, prior, spread)
    change = response.mean.at[:, 0].add(-level)
    left = weigh @ (seen - scaled @ change.T)
    shown = jnp.sum((together @ left) * left / spread)
    expected = spread.size * jnp.sum(weigh * together) - jnp.sum(
        (cov / spread[:, None, None]) @ solved.T @ together * solved.T
    )
    return Fit(response, jnp.diagonal(cov, axis1=-2, axis2=-1), moments, jnp.stack([shown, expected]))


def posterior(moments: Moments, anchor: Array, prior: Prior, spread: Array) -> tuple[Response, Array]:
    """The same trials with another prior, and the covariance (p, m, m)."""

    def one(linear: Array, mean0: Array, variance0: Array, spread: Array) -> tuple[Array, Array]:
        known = moments.gram + jnp.diag(jnp.concatenate([jnp.zeros(1), spread / variance0]))
        size = jnp.sqrt(jnp.diagonal(known))
        steady = known / size[:, None] / size + RIDGE * jnp.finfo(size.dtype).eps * jnp.eye(size.size)
        cov = inverse(steady) / size[:, None] / size
        wanted = linear - moments.gram[:, 1:] @ mean0
        change = cov @ wanted
        change = change + cov @ (wanted - known @ change)  # what rounding left of the first answer
        return change + jnp.append(0.0, mean0), spread * cov

    mean, cov = jax.vmap(one)(moments.linear, *prior, spread)
    s = 1 + anchor.size
    return Response(anchor, mean.at[:, 0].add(moments.level), cov[:, :s, :s]), cov


def likelihood(trials: Trials, width: Array, spread: Array, fear: float) -> Array:
    """The log of how likely the trials are under a response near zero: to compare signals that may be meant.

    ``width`` (m - 1,) is what slopes and curvatures may be, in deviations: the same for all entries of f, so that one
    matrix is inverted for all of them. What is not fitted is taken for noise here.
    """
    x = trials.signal
    rows = jax.vmap(features)(x)
    together, alone = unfitted(x)
    blurred = 1 + trials.samples * fear * (jnp.diagonal(together) + alone)
    weights = trials.samples / blurred
    seen = trials.f - weights @ trials.f / jnp.sum(weights)
    told = jnp.append(0.0, width**-2)
    known = rows.T @ (weights[:, None] * rows) + jnp.diag(told)
    size = jnp.sqrt(jnp.diagonal(known))
    steady = known / size[:, None] / size + RIDGE * jnp.finfo(size.dtype).eps * jnp.eye(size.size)
    inverted, logdet = inverse_logdet(steady)
    change = inverted @ (rows.T @ (weights[:, None] * seen) / size[:, None]) / size[:, None]  # (m, p)
    left = weights @ (seen - rows @ change) ** 2 + told @ change**2
    volume = logdet + 2 * jnp.sum(jnp.log(size)) + 2 * jnp.sum(jnp.log(width)) + jnp.sum(jnp.log(blurred))
    return -(jnp.sum(left / spread) + spread.size * volume) / 2


def remembered(trials: Trials, width: Array, spread: Array, fear: float) -> Peak:
    """How long people seem to remember, by trials whose signals are (memories, s).

    Each memory with the reaction's size that suits it best, up to ``width``: otherwise a long one, with which what
    people are used to moves less, would be likelier wherever the reaction is small.
    """
    moves = trials.signal - jnp.tensordot(trials.samples / jnp.sum(trials.samples), trials.signal, 1)

    def one(signal: Array, size: Array) -> Array:
        return likelihood(trials._replace(signal=signal), size * width, spread, fear)

    told = jnp.max(jax.vmap(jax.vmap(one, (None, 0)), (1, None))(moves, jnp.asarray(SIZES, width.dtype)), 1)
    return peak(told - told[0])


def feared(fear: Array, third: Array) -> Array:
    """``fear`` as the misses of a fit show it."""
    return fear * jnp.clip((third[0] + 1.0) / (third[1] + 1.0), 0.5, 2.0)
