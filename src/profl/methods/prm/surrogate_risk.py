"""The performative risk as a client can compute it without deploying anything, and how well it knows its slope.

    L_i(theta) = mean_j l(z_j moved by f(theta) - f_hat; theta)        where the family can shift samples
    L_i(theta) = sum_j r_j l(z_j; theta) / sum_j r_j                   elsewhere, r_j = p(z_j; f(theta)) / p(z_j; f_hat)

over the batches that are kept. f is the fitted response: what is moved is each batch's own f_hat onto it, so that the
level comes from all trials and only the shape of the data from the batches.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm.response import Response
from profl.parts.units import Ruler
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class Kept(NamedTuple):
    """The newest batches, with zero weights where there is none yet."""

    batch: Batch  # (keep, n, ...)
    weights: Array  # (keep, n)
    f: Array  # (keep, p)


class Fitted(NamedTuple):
    """All that the fitted risk is made of."""

    ruler: Ruler
    response: Response
    kept: Kept


class Bend(NamedTuple):
    """How the fitted risk bends at a model, and the covariance of its gradient there, (d, d) each."""

    curvature: Array
    own: Array  # from what this client does not know by itself
    common: Array  # from what nobody knows: an error that all clients share


def keep(kept: Kept, place: Array, batch: Batch, weights: Array, f: Array) -> Kept:
    """With a batch in place of an old one; a live client may send more rows than there is room for."""
    room = kept.weights.shape[1]
    new = Kept(jax.tree.map(lambda leaf: leaf[:room], batch), weights[:room] / jnp.sum(weights[:room]), f)
    return jax.tree.map(lambda old, leaf: old.at[place].set(leaf), kept, new)


def fitted_risk(problem: View, fitted: Fitted, theta: Theta, off: Array | float = 0.0) -> Array:
    """See the module; ``off`` moves f from where the response has it."""
    family, here = problem.family, fitted.response(fitted.ruler.measure(problem.signal(theta))) + off

    def one(batch: Batch, weights: Array, f: Array) -> Array:
        if family.shift is not None:
            return weights @ jax.vmap(lambda z: problem.loss(theta, family.apply_shift(z, here - f, f)))(batch)
        ratio = weights * jnp.exp(jax.vmap(lambda z: family.log_prob(z, here) - family.log_prob(z, f))(batch))
        total = jnp.sum(ratio)
        return ratio @ jax.vmap(lambda z: problem.loss(theta, z))(batch) / jnp.where(total > 0, total, 1.0)

    full = jnp.sum(fitted.kept.weights, 1)
    return full @ jax.vmap(one)(*fitted.kept) / jnp.maximum(jnp.sum(full), 1.0)


def bend(problem: View, fitted: Fitted, theta: Theta, blind: Array) -> Bend:
    """``blind`` (p, s) is the variance of the slopes' prior mean as far as the response still follows it."""
    flat, unravel = ravel_pytree(theta)
    d = flat.size

    def slope(both: Array) -> tuple[Array, Array]:
        """Of the risk in theta and in how far f is off, as one vector, so that it is differentiated once."""
        found = jax.grad(lambda x: fitted_risk(problem, fitted, unravel(x[:d]), x[d:]))(both)
        return found, found

    bends, slopes = jax.jacfwd(slope, has_aux=True)(jnp.concatenate([flat, jnp.zeros(fitted.kept.f.shape[1])]))
    curvature, of_level = bends[:d, :d], bends[:d, d:].T  # (p, d): what the gradient owes to the level
    u = slopes[d:]  # times an entry of J: what it owes to that
    back = jax.jacfwd(lambda vector: fitted.ruler.measure(problem.signal(unravel(vector))))(flat).T  # (d, s)
    parts = jnp.concatenate([of_level[:, :, None], u[:, None, None] * back], 2)  # (p, d, 1 + s)
    own = jnp.einsum("kdi,kij,kej->de", parts, fitted.response.cov, parts) + sampled(problem, fitted, theta)
    return Bend(curvature, own, (back * (u**2 @ blind)) @ back.T)


def sampled(problem: View, fitted: Fitted, theta: Theta) -> Array:
    """The covariance (d, d) of the gradient that is due to which samples happened to be drawn.

    Apart from what they did to f_hat, which the response stands for: that part is linear in the scores and left out.
    """
    flat, unravel = ravel_pytree(theta)
    kept, family = fitted.kept, problem.family

    def slope(weights: Array) -> Array:
        new = fitted._replace(kept=kept._replace(weights=weights))
        return jax.grad(lambda vector: fitted_risk(problem, new, unravel(vector)))(flat)

    weights = kept.weights.ravel()
    influence = jax.jacrev(slope)(kept.weights).reshape(flat.size, -1).T
    scores = jax.vmap(jax.vmap(jax.grad(family.log_prob, argnums=1), (0, None)))(kept.batch, kept.f)
    known = jnp.concatenate([jnp.ones((weights.size, 1)), scores.reshape(weights.size, -1)], 1)
    weighted = known * weights[:, None]
    left = influence - known @ jnp.linalg.pinv(weighted.T @ known, hermitian=True) @ (weighted.T @ influence)
    left = left * weights[:, None]
    return left.T @ left


def none_kept(batch: Batch, room: int, f: int) -> Kept:
    """No batches yet, and room for so many of this shape."""
    empty = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape), leaf.dtype), batch)
    return Kept(empty, jnp.zeros((room, trees.rows(batch))), jnp.zeros((room, f)))
