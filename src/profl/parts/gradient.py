"""The performative gradient from one batch (paper, Eq. 4): L1 = E[grad l] and L2 = J^T u, with

    pathwise   u = d/d delta E[l(shift(z, delta); theta)] at 0       where f says where the samples lie
    score      u = E[(l(z; theta) - b) d log p(z; f) / df]           elsewhere; b is the batch's mean loss

    push       L1 + L2 = d/dt E[l(t, push(z, theta, t))] at theta   where the problem says where samples go; u = 0

u is the slope of the risk in f; the Jacobian df/dtheta turns it into a gradient of theta. The baseline b changes
nothing in expectation and takes most of the noise away. The score at f_hat uses the batch twice: for a Gaussian mean
that multiplies u by 1 - 1/n, for group shares by nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.parts.units import large
from profl.problem.problem import View
from profl.problem.push import Push
from profl.typing import Array, Batch, Theta


class Terms(NamedTuple):
    loss: Array  # mean loss on the batch
    first: Theta  # L1
    f_gradient: Array  # u, (p,)


def terms(problem: View, second: str, theta: Theta, batch: Batch, weights: Array, f: Array) -> Terms:
    """Mean loss, L1 and u. ``second`` is "pathwise", "score" or "none" (PFL: u = 0).

    With "push" u is zero, too, and what stands for L1 is both terms.
    """
    losses = jax.vmap(problem.loss, (None, 0))
    if second == "push":
        push = jax.vmap(push_of(problem), (0, None, None))
        total = jax.value_and_grad(lambda t: weights @ losses(t, push(batch, theta, t)))(theta)
        return Terms(*total, jnp.zeros_like(f))
    if second == "pathwise" and large(theta):  # one way back through a network for both
        shift = jax.vmap(problem.family.apply_shift, (0, None, None))
        both = jax.value_and_grad(lambda t, delta: weights @ losses(t, shift(batch, delta, f)), (0, 1))
        loss, (first, f_gradient) = both(theta, jnp.zeros_like(f))
        return Terms(loss, first, f_gradient)
    loss, first = jax.value_and_grad(lambda t: weights @ losses(t, batch))(theta)
    if second == "none":
        return Terms(loss, first, jnp.zeros_like(f))
    if second == "pathwise":
        return Terms(loss, first, _pathwise(problem, theta, batch, weights, f))
    excess = weights * (losses(theta, batch) - loss)
    log_prob = jax.vmap(problem.family.log_prob, (0, None))
    return Terms(loss, first, jax.grad(lambda g: excess @ log_prob(batch, g))(f))


def _pathwise(problem: View, theta: Theta, batch: Batch, weights: Array, f: Array) -> Array:
    """u by moving the samples. Where that does the same to all of them (a loss linear in z), nothing is summed."""
    nowhere = jnp.zeros_like(f)

    def of_one(z: Batch) -> Array:
        return jax.grad(lambda delta: problem.loss(theta, problem.family.apply_shift(z, delta, f)))(nowhere)

    try:
        return jax.vmap(of_one, out_axes=None)(batch)  # refused where it differs from sample to sample
    except ValueError:
        shift, losses = jax.vmap(problem.family.apply_shift, (0, None, None)), jax.vmap(problem.loss, (None, 0))
        return jax.grad(lambda delta: weights @ losses(theta, shift(batch, delta, f)))(nowhere)


def sample_terms(
    problem: View, second: str, theta: Theta, batch: Batch, weights: Array, f: Array
) -> tuple[Array, Array]:
    """grad l (n, d) and u (n, p) of every sample by itself; their weighted means are L1 and u."""
    if second == "push":
        push = push_of(problem)
        both = jax.vmap(lambda z: trees.ravel(jax.grad(lambda t: problem.loss(t, push(z, theta, t)))(theta)))(batch)
        return both, jnp.zeros((both.shape[0], f.shape[0]), f.dtype)
    firsts = jax.vmap(lambda z: trees.ravel(jax.grad(problem.loss)(theta, z)))(batch)
    if second == "pathwise":
        zero = jnp.zeros_like(f)
        moved = problem.family.apply_shift
        return firsts, jax.vmap(lambda z: jax.grad(lambda g: problem.loss(theta, moved(z, g, f)))(zero))(batch)
    if second == "none":
        return firsts, jnp.zeros((firsts.shape[0], f.shape[0]), f.dtype)
    losses = jax.vmap(problem.loss, (None, 0))(theta, batch)
    scores = jax.vmap(jax.grad(problem.family.log_prob, argnums=1), (0, None))(batch, f)
    return firsts, (losses - weights @ losses)[:, None] * scores


def push_of(problem: View) -> Push:
    """The problem's push, for one that is known to have it."""
    assert problem.push is not None
    return problem.push


def pull_back(problem: View, theta: Theta, jacobian: Array, f_gradient: Array) -> Theta:
    """L2 = J^T u, brought from the signal back to theta."""
    return jax.vjp(problem.signal, theta)[1](jacobian.T @ f_gradient)[0]
