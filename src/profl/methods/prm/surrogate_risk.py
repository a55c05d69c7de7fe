"""The performative risk as a client can compute it without deploying anything, and how well it knows the gradient.

    L_i(theta) = mean_j l(z_j moved by f(theta) - f_hat; theta)        where the family can shift samples
    L_i(theta) = sum_j r_j l(z_j; theta) / sum_j r_j                   elsewhere, r_j = p(z_j; f(theta)) / p(z_j; f_hat)

over the stored batches. f is the fitted response: each batch is moved from its own f_hat to f(theta), so that the level
comes from all observations and only the shape of the data from the batches.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm.response import Response
from profl.parts.units import Unit
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class StoredBatches(NamedTuple):
    """The newest batches, with zero weights for empty rows."""

    batch: Batch  # (keep, n, ...)
    weights: Array  # (keep, n)
    f: Array  # (keep, p)


class SurrogateRisk(NamedTuple):
    """All that the fitted risk is made of."""

    signal_unit: Unit  # natural units of the signal
    response: Response
    batches: StoredBatches


class CurvatureAndCovariance(NamedTuple):
    """Curvature of the fitted risk at a model, and covariances of its gradient there, (d, d) each."""

    curvature: Array
    own_covariance: Array  # from what this client does not know by itself
    shared_covariance: Array  # from what no client knows: an error that all of them share


def no_batches(batch: Batch, size: int, f: int) -> StoredBatches:
    """``size`` empty rows for batches of this shape, with f of size ``f``."""
    empty = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), batch)
    return StoredBatches(empty, jnp.zeros((size, trees.rows(batch))), jnp.zeros((size, f)))


def store_batch(batches: StoredBatches, row: Array, batch: Batch, weights: Array, f: Array) -> StoredBatches:
    """The batches with a new one in ``row``; a live client may send more samples than a row holds."""
    n = batches.weights.shape[1]
    new = StoredBatches(jax.tree.map(lambda leaf: leaf[:n], batch), weights[:n] / jnp.sum(weights[:n]), f)
    return jax.tree.map(lambda old, leaf: old.at[row].set(leaf), batches, new)


def surrogate_risk(problem: View, surrogate: SurrogateRisk, theta: Theta, f_offset: Array | float = 0.0) -> Array:
    """The fitted risk of a model, (); ``f_offset`` is added to the f of the response."""
    family = problem.family
    here = surrogate.response(surrogate.signal_unit.standardise(problem.signal(theta))) + f_offset

    def one_batch(batch: Batch, weights: Array, f: Array) -> Array:
        if family.shift is not None:
            return weights @ jax.vmap(lambda z: problem.loss(theta, family.apply_shift(z, here - f, f)))(batch)
        ratio = weights * jnp.exp(jax.vmap(lambda z: family.log_prob(z, here) - family.log_prob(z, f))(batch))
        total = jnp.sum(ratio)
        return ratio @ jax.vmap(lambda z: problem.loss(theta, z))(batch) / jnp.where(total > 0, total, 1.0)

    filled = jnp.sum(surrogate.batches.weights, 1)
    return filled @ jax.vmap(one_batch)(*surrogate.batches) / jnp.maximum(jnp.sum(filled), 1.0)


def curvature_and_covariance(
    problem: View, surrogate: SurrogateRisk, theta: Theta, slope_variance: Array
) -> CurvatureAndCovariance:
    """Curvature of the fitted risk at ``theta``, and covariances of its gradient.

    ``slope_variance`` (p, s) is the variance of the prior mean of slopes, as far as the response still follows it.
    """
    flat, unravel = ravel_pytree(theta)
    d = flat.size

    def gradient(both: Array) -> tuple[Array, Array]:
        """Of the risk in theta and in the offset of f, as one vector, so that it is differentiated once."""
        value = jax.grad(lambda x: surrogate_risk(problem, surrogate, unravel(x[:d]), x[d:]))(both)
        return value, value

    start = jnp.concatenate([flat, jnp.zeros(surrogate.batches.f.shape[1])])
    second, first = jax.jacfwd(gradient, has_aux=True)(start)
    curvature, by_level = second[:d, :d], second[:d, d:].T  # (p, d): the gradient's derivative in the level of f
    u = first[d:]  # times an entry of J: the gradient's derivative in that entry
    back = jax.jacfwd(lambda vector: surrogate.signal_unit.standardise(problem.signal(unravel(vector))))(
        flat
    ).T  # (d, s)
    parts = jnp.concatenate([by_level[:, :, None], u[:, None, None] * back], 2)  # (p, d, 1 + s)
    own = jnp.einsum("kdi,kij,kej->de", parts, surrogate.response.cov, parts)
    own = own + sampling_covariance(problem, surrogate, theta)
    return CurvatureAndCovariance(curvature, own, (back * (u**2 @ slope_variance)) @ back.T)


def sampling_covariance(problem: View, surrogate: SurrogateRisk, theta: Theta) -> Array:
    """The covariance (d, d) of the gradient that is due to the samples that happened to be drawn.

    Without their effect on f_hat, which the response already accounts for: that part is linear in the scores and is
    projected out.
    """
    flat, unravel = ravel_pytree(theta)
    batches, family = surrogate.batches, problem.family

    def gradient(weights: Array) -> Array:
        new = surrogate._replace(batches=batches._replace(weights=weights))
        return jax.grad(lambda vector: surrogate_risk(problem, new, unravel(vector)))(flat)

    weights = batches.weights.ravel()
    influence = jax.jacrev(gradient)(batches.weights).reshape(flat.size, -1).T
    scores = jax.vmap(jax.vmap(jax.grad(family.log_prob, argnums=1), (0, None)))(batches.batch, batches.f)
    explained = jnp.concatenate([jnp.ones((weights.size, 1)), scores.reshape(weights.size, -1)], 1)
    weighted = explained * weights[:, None]
    inverted = jnp.linalg.pinv(weighted.T @ explained, hermitian=True)
    residual = (influence - explained @ inverted @ (weighted.T @ influence)) * weights[:, None]
    return residual.T @ residual
