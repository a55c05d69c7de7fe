"""How f answers to the signal near the present one: a fit to what was tried, and how well it is known.

    f_k(s) = a_k + J_k x + x' Q_k x / 2 + noise,   x = s - anchor,   noise variance v + (third order)

One Bayesian regression per entry k of f. The level is free; slopes and curvatures have a prior, each its own mean and
variance: what the other clients found (``profl.server.consensus``), or zero and what the evidence of one client leaves
(``evidence``). What is nothing shrinks to nothing, so that a diagonal or sparse J is found from far fewer trials than
it has columns. Third order is not fitted but feared: trials far from the anchor count less, the more so the more f is
curved.

Signals are measured in natural units (``profl.client.scales``) and f in standard deviations of a sample, so that one
prior suits all.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl.client.trials import Trials
from profl.typing import Array

SPARSE = 0.1  # deviations: what a coefficient is taken to be at the least, with the weight of one observation
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
    doubt = prior.variance @ turn**2 + (0.0 if curvatures(s) else fear[:, None] * jnp.sum(step**2))
    return Prior(prior.mean.at[:, :s].set(slope), prior.variance.at[:, :s].set(doubt))


def evidence(prior: Prior, response: Response, variance: Array, spread: Array) -> Prior:
    """The prior's variance as one client by itself sees it: coefficients that are nothing shrink to nothing (EM)."""
    seen = (response.mean[:, 1:] - prior.mean) ** 2 + variance[:, 1:]
    return prior._replace(variance=(SPARSE**2 * spread[:, None] + seen) / 2)


def beyond(x: Array) -> Array:
    """How far the first order that is not fitted reaches: its coefficients' variance is multiplied with this, (N,)."""
    squares = jnp.sum(x**2, 1)
    return squares**3 / 36 if curvatures(x.shape[1]) else squares**2 / 4


def feared(response: Response, trials: Trials, fear: Array, spread: Array) -> Array:
    """``fear`` as the misses of the fit show it, in units of ``spread``."""
    x = trials.signal - response.anchor
    miss = trials.f - jax.vmap(features)(x) @ response.mean.T
    reach = (beyond(x)[:, None] * fear * spread) * trials.precision
    share = reach / (1 + reach)
    seen = jnp.sum(share * trials.precision * miss**2 / (1 + reach))
    return fear * jnp.clip((seen + 1.0) / (jnp.sum(share) + 1.0), 0.5, 2.0)


def fit(trials: Trials, anchor: Array, prior: Prior, fear: Array) -> tuple[Response, Array]:
    """The posterior, given the prior, and the variance of all its coefficients (p, m)."""
    x = trials.signal - anchor
    rows = jax.vmap(features)(x)  # (N, m)
    s = x.shape[1]
    far = beyond(x)

    def one(f: Array, precision: Array, mean0: Array, variance0: Array, fear: Array) -> tuple[Array, Array]:
        weights = precision / (1 + precision * fear * far)
        level = jnp.sum(weights * f) / jnp.sum(weights)
        weighted = rows * weights[:, None]
        known = weighted.T @ rows + jnp.diag(jnp.concatenate([jnp.zeros(1), 1 / variance0]))
        size = jnp.sqrt(jnp.diagonal(known))
        miss = (f - level) - rows[:, 1:] @ mean0
        factor = jax.scipy.linalg.cho_factor(known / size[:, None] / size)
        inverse = jax.scipy.linalg.cho_solve(factor, jnp.eye(size.size)) / size[:, None] / size
        mean = inverse @ (weighted.T @ miss) + jnp.concatenate([level[None], mean0])
        return mean, inverse

    mean, cov = jax.vmap(one)(trials.f.T, trials.precision.T, *prior, fear)
    return Response(anchor, mean, cov[:, : 1 + s, : 1 + s]), jnp.diagonal(cov, axis1=-2, axis2=-1)
