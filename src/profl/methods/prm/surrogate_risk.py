"""The performative risk as a client can compute it without deploying anything, and how well it knows the gradient.

    S_b(theta) = mean_j l(z_j moved by f(theta) - f_b; theta)        where the family can shift samples, or their losses
    S_b(theta) = sum_j r_j l(z_j; theta) / sum_j r_j                 elsewhere, r_j = p(z_j; f(theta)) / p(z_j; f_b)
    L_i(theta) = sum_b w_b(theta) S_b(theta)                         over the stored batches b

f is the fitted response: each batch is moved from its own f_b to f(theta), so that the level comes from all
observations and only the shape of the data from the batches.

Where the family says all that moves, the S_b are equal but for noise, and their mean is taken. Where it does not (a
spread that follows theta, say), S_b depends on the model that was deployed: S_b = L + slope . (signal_b - signal) +
noise, a linear discrepancy between the family and what was observed. Its slopes have one common variance, estimated
from the batches; where that is zero the weights are equal, else they carry the discrepancy to ``signal(theta)``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm.response import Response
from profl.methods.prm.settings import (
    CURVATURE_SAMPLES,
    CURVATURE_STEP,
    DISCREPANCY_FLOOR,
    DISCREPANCY_REST,
    SURE,
)
from profl.numerics import pseudo_inverse
from profl.parts.units import Unit
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class StoredBatches(NamedTuple):
    """The newest batches, with zero weights for empty rows."""

    batch: Batch  # (keep, ..., n): samples lie innermost in memory, which is how passes over them are fast
    weights: Array  # (keep, n)
    f: Array  # (keep, p)
    signal: Array  # (keep, s): of the models that were deployed, in units


class Discrepancy(NamedTuple):
    """How the risk under the family's model of the data differs from what was observed: linear in the signal."""

    equal: Array  # (keep,): the same weight for every batch that is there; they sum to one
    centre: Array  # (s,): the mean signal of the batches, in units
    loadings: Array  # (s, keep): the weights of batches are equal ones, plus (signal - centre) times these
    covariance: Array  # (s, s): of the slopes, given the batches
    evidence: Array  # (): the variance of slopes over its standard error where there is none


class SurrogateRisk(NamedTuple):
    """All that the fitted risk is made of."""

    signal_unit: Unit  # natural units of the signal
    response: Response
    batches: StoredBatches
    origins: Array  # (keep, p): the f that every batch is moved from
    discrepancy: Discrepancy


class CurvatureAndCovariance(NamedTuple):
    """Curvature of the fitted risk at a model, and covariances of its gradient there, (d, d) each."""

    curvature: Array
    own_covariance: Array  # from what this client does not know by itself
    shared_covariance: Array  # from what no client knows: an error that all of them share


def no_batches(batch: Batch, size: int, f: int, signal: int) -> StoredBatches:
    """``size`` empty rows for batches of this shape, with f of size ``f`` and a signal of size ``signal``."""
    empty = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape[1:], leaf.shape[0]), leaf.dtype), batch)
    return StoredBatches(empty, jnp.zeros((size, trees.rows(batch))), jnp.zeros((size, f)), jnp.zeros((size, signal)))


def no_discrepancy(size: int, signal: int) -> Discrepancy:
    """None, while there is no batch among ``size``."""
    zeros = jnp.zeros
    return Discrepancy(zeros(size), zeros(signal), zeros((signal, size)), zeros((signal, signal)), zeros(()))


def equal_weights(size: int, stored: Array) -> Array:
    """The same weight for every batch that is there, (size,), once so many were ``stored``; they sum to one."""
    return jnp.where(np.arange(size) < stored, 1.0, 0.0) / jnp.minimum(stored, size)


def store_batch(
    batches: StoredBatches, row: Array, batch: Batch, weights: Array, f: Array, signal: Array
) -> StoredBatches:
    """The batches with a new one in ``row``; a live client may send more samples than a row holds."""
    n = batches.weights.shape[1]
    stored = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[:n], 0, -1), batch)
    new = StoredBatches(stored, weights[:n] / jnp.sum(weights[:n]), f, signal)
    return jax.tree.map(lambda old, leaf: old.at[row].set(leaf), batches, new)


def thin_out(surrogate: SurrogateRisk) -> tuple[SurrogateRisk, float]:
    """The same with the first samples of every batch, CURVATURE_SAMPLES in all, and which share of them that is."""
    batches = surrogate.batches
    size, n = batches.weights.shape
    count = min(n, max(1, CURVATURE_SAMPLES // size))
    weights = batches.weights[:, :count]
    total = jnp.sum(weights, 1, keepdims=True)
    first = jax.tree.map(lambda leaf: leaf[..., :count], batches.batch)
    weights = weights / jnp.where(total > 0, total, 1.0)
    return surrogate._replace(batches=batches._replace(batch=first, weights=weights)), count / n


def moved_from(problem: View, response: Response, batches: StoredBatches, equal: Array) -> Array:
    """The f that every batch is moved from, (keep, p): its own, less 1 / n of what the response misses it by.

    The mean of n samples takes 1 / n of their variance with it, of a single sample all of it: moved from its own f it
    would lie at f(theta) whatever was drawn.
    """
    if not problem.family.moves:
        return batches.f
    missed = (batches.f - response(batches.signal)) * jnp.sum(batches.weights**2, 1)[:, None]
    return batches.f - (missed - equal @ missed)


def batch_risk(problem: View, theta: Theta, here: Array, batch: Batch, weights: Array, f: Array) -> Array:
    """The mean loss of a batch that was drawn at ``f``, () were it drawn at ``here``."""
    family = problem.family
    if family.moves:
        loss = partial(problem.loss, theta)
        return weights @ jax.vmap(lambda z: family.moved_loss(loss, z, here - f, f))(batch)
    ratio = weights * jnp.exp(jax.vmap(lambda z: family.log_prob(z, here) - family.log_prob(z, f))(batch))
    total = jnp.sum(ratio)
    return ratio @ jax.vmap(lambda z: problem.loss(theta, z))(batch) / jnp.where(total > 0, total, 1.0)


def loss_variance(problem: View, theta: Theta, batch: Batch, weights: Array, f: Array, f_variance: Array) -> Array:
    """The variance of one sample's loss, (), that the variance of one sample's f (p,) gives it, to first order."""
    slope = jax.grad(lambda here: batch_risk(problem, theta, here, batch, weights, f))(f)
    return slope**2 @ f_variance


def risks_by_batch(
    problem: View, surrogate: SurrogateRisk, theta: Theta, f_offset: Array | float = 0.0
) -> tuple[Array, Array]:
    """S_b(theta) of every stored batch, (keep,), and the signal of theta in units, (s,)."""
    signal = surrogate.signal_unit.standardise(problem.signal(theta))
    here = surrogate.response(signal) + f_offset
    batches, weights, *_ = surrogate.batches
    risks = jax.vmap(partial(batch_risk, problem, theta, here))(samples_first(batches), weights, surrogate.origins)
    return risks, signal


def samples_first(batches: Batch) -> Batch:
    """Stored batches with axes (keep, n, ...)."""
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 1), batches)


def surrogate_risk(problem: View, surrogate: SurrogateRisk, theta: Theta, f_offset: Array | float = 0.0) -> Array:
    """The fitted risk of a model, (); ``f_offset`` is added to the f of the response."""
    risks, signal = risks_by_batch(problem, surrogate, theta, f_offset)
    return batch_weights(surrogate.discrepancy, signal) @ risks


def batch_weights(discrepancy: Discrepancy, signal: Array) -> Array:
    """How much each batch counts in the fitted risk at a signal, (keep,)."""
    return discrepancy.equal + (signal - discrepancy.centre) @ discrepancy.loadings


def fit_discrepancy(risks: Array, signal: Array, equal: Array, loss_variance: Array) -> Discrepancy:
    """The discrepancy that the ``risks`` (keep,) of the stored batches at one model show, with their ``signal``.

    ``loss_variance`` () is that of a mean loss. The variance of slopes follows from products of pairs of batches,
    E y_b y_c = variance x_b.x_c (b != c), and counts as far as it exceeds what noise would show in two of a hundred
    cases.
    """
    filled, tiny = equal > 0, jnp.finfo(risks.dtype).tiny
    count = jnp.maximum(filled @ jnp.ones(filled.size), 2.0)
    centre = equal @ signal
    x, y = (signal - centre) * filled[:, None], (risks - equal @ risks) * filled
    squares, second, slope = jnp.sum(x**2, 1), x.T @ x, y @ x
    total = jnp.sum(squares)
    information = jnp.maximum(jnp.sum(second**2) - squares @ squares, tiny)
    noise = y @ y / (count - 1) + DISCREPANCY_FLOOR * loss_variance + tiny
    excess = (slope @ slope - squares @ y**2 - noise * total / count) / information
    error = noise * jnp.sqrt(2 / information)
    variance = jnp.maximum(excess - SURE * error, 0.0)
    rest = jnp.maximum(noise - variance * total / (count - 1), DISCREPANCY_REST * noise)
    axes, values = jax.lax.linalg.eigh(second, symmetrize_input=False)
    inverted = (axes * (variance / (variance * jnp.maximum(values, 0.0) + rest))) @ axes.T
    evidence = jnp.where(total > 0, excess / error, 0.0)  # one model alone shows nothing; both may be zero then
    return Discrepancy(equal, centre, inverted @ x.T, rest * inverted, evidence)


def curvature_and_covariance(
    problem: View, surrogate: SurrogateRisk, theta: Theta, slope_variance: Array, scales: Array
) -> CurvatureAndCovariance:
    """Curvature of the fitted risk at ``theta``, and covariances of its gradient.

    Derivatives of the gradient are differences over a share of ``scales`` (d + p,), the natural units of theta and f: a
    loss with kinks has a curvature as well, which its second derivative does not show.

    ``slope_variance`` (p, s) is the variance of the prior mean of slopes, as far as the response still follows it.
    """
    (flat, unravel), (surrogate, share) = ravel_pytree(theta), thin_out(surrogate)
    d, weights = flat.size, surrogate.batches.weights

    def risk(both: Array, weights: Array) -> Array:
        """In theta and the offset of f, as one vector, and in the weights of samples."""
        new = surrogate._replace(batches=surrogate.batches._replace(weights=weights))
        return surrogate_risk(problem, new, unravel(both[:d]), both[d:])

    start = jnp.concatenate([flat, jnp.zeros(surrogate.batches.f.shape[1])])

    def differences(move: Array) -> tuple[Array, Array, Array]:
        """Of the gradients in both and in weights, between the ends of a move, and the mean of the former."""
        ends = start + move * np.array([[1.0], [-1.0]], move.dtype)
        in_both, in_weights = jax.vmap(jax.grad(risk, argnums=(0, 1)), (0, None))(ends, weights)
        length = 2 * jnp.sum(move)
        slopes = (in_both[0] - in_both[1]) / length, (in_weights[0] - in_weights[1]) / length
        return *slopes, (in_both[0] + in_both[1]) / 2

    second, influence, first = jax.lax.map(differences, CURVATURE_STEP * scales * jnp.eye(scales.size))
    curvature, by_level = (second[:d, :d] + second[:d, :d].T) / 2, second[d:, :d]  # by_level (p, d)
    u = jnp.mean(first[:, d:], 0)  # times an entry of J: the gradient's derivative in that entry
    back = jax.jacfwd(lambda vector: surrogate.signal_unit.standardise(problem.signal(unravel(vector))))(
        flat
    ).T  # (d, s)
    parts = jnp.concatenate([by_level[:, :, None], u[:, None, None] * back], 2)  # (p, d, 1 + s)
    own = jnp.einsum("kdi,kij,kej->de", parts, surrogate.response.cov, parts)
    sampled = sampling_covariance(problem, surrogate.batches, influence[:d].reshape(d, -1))
    own = own + back @ surrogate.discrepancy.covariance @ back.T + share * sampled
    return CurvatureAndCovariance(curvature, own, (back * (u**2 @ slope_variance)) @ back.T)


def sampling_covariance(problem: View, batches: StoredBatches, influence: Array) -> Array:
    """The covariance (d, d) of the gradient that is due to the samples that happened to be drawn; ``influence``
    (d, samples) is how it changes with their weights.

    Without their effect on f_hat, which the response already accounts for: that part is linear in the scores and is
    projected out.
    """
    weights = batches.weights.ravel()
    score = jax.vmap(jax.vmap(jax.grad(problem.family.log_prob, argnums=1), (0, None)))
    scores = score(samples_first(batches.batch), batches.f)
    explained = jnp.hstack([jnp.ones((weights.size, 1)), scores.reshape(weights.size, -1)])
    weighted = weights[:, None] * explained
    residual = weights * (influence - (influence @ weighted) @ pseudo_inverse(explained.T @ weighted) @ explained.T)
    return residual @ residual.T
