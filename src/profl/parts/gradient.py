"""The performative gradient from one batch (paper, Eq. 4): L1 = E[grad l] and L2 = J^T u, with

    pathwise   u = d/d delta E[l(shift(z, delta); theta)] at 0       where f says where the samples lie, or what their
                                                                     loss is when f moves (``Family.moved_loss``)
    score      u = E[(l(z; theta) - b) d log p(z; f) / df]           elsewhere; b is the batch's mean loss

    push       L1 + L2 = d/dt E[l(t, push(z, theta, t))] at theta   where the problem says where samples go; u = 0

u is the slope of the risk in f; the Jacobian df/dtheta turns it into a gradient of theta. The baseline b changes
nothing in expectation and takes most of the noise away. The score at f_hat uses the batch twice: for a Gaussian mean
that multiplies u by 1 - 1/n, for group shares by nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.parts.part import Part, Step
from profl.parts.sample_size import AdaptiveSamples
from profl.parts.sharing import SharedJacobians
from profl.parts.units import is_large
from profl.problem.problem import Problem, View
from profl.problem.push import Push
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

SECOND_TERMS = ("auto", "push", "pathwise", "score")


@dataclass(frozen=True)
class PlainGradient(Part):
    """L1 alone, which retraining follows to the stable point (paper, Algorithm 1, line 9)."""

    serves = ("gradient",)

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("samples",)

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        with stage("gradient") as watch:
            loss, first, _ = watch(terms(view, "none", step.deployed, step.batch, step.weights, jnp.zeros((0,))))
        return step._replace(loss=loss, gradient=first), state


@dataclass(frozen=True)
class PerformativeGradient(Part):
    """L1 + L2 (paper, Algorithm 1, line 14).

    Args:
      second_term: how L2 is computed: "push" (where the problem has one; no Jacobian is estimated), "pathwise" (where
        the family can shift samples, or their losses), "score", or "auto", the first of these that the problem allows.
    """

    second_term: str = "auto"

    def __post_init__(self) -> None:
        checks.one_of("second_term", self.second_term, SECOND_TERMS)

    def choose(self, problem: Problem | View | None) -> str:
        """How L2 is computed for this problem; "auto" stays where there is none."""
        if self.second_term != "auto" or problem is None:
            return self.second_term
        if problem.push is not None:
            return "push"
        return "pathwise" if problem.family.moves else "score"

    def reads(self, problem: Problem | View | None) -> tuple[str, ...]:
        return () if self.choose(problem) == "push" else ("f", "jacobian")

    def needs(self, problem: Problem | View | None) -> tuple[str, ...]:
        return ("samples", *{"push": ("push",), "pathwise": ("shift",)}.get(self.choose(problem), ()))

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        if self.choose(problem) != "push":
            return
        if any(isinstance(part, SharedJacobians) for part in parts):
            raise checks.InputError(
                "share is for Jacobians, and a problem with a push needs none: drop it, or set second_term='pathwise'"
            )
        if any(isinstance(part, AdaptiveSamples) and part.rule == "paper" for part in parts):
            raise checks.InputError("AdaptiveSamples(rule='paper') needs a Jacobian, and with a push there is none")

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        second, theta, batch, weights = self.choose(view), step.deployed, step.batch, step.weights
        f = jnp.zeros((0,)) if step.f is None else step.f
        local = view if step.signal is None else view._replace(signal=step.signal)
        with stage("gradient") as watch:
            loss, gradient, f_gradient = watch(terms(view, second, theta, batch, weights, f))
            if second != "push":
                assert step.jacobian is not None
                second_gradient = pull_back(local, theta, step.jacobian, f_gradient)
                gradient = watch(jax.tree.map(jnp.add, gradient, second_gradient))

        def sample_gradients() -> Array:
            first, f_gradients = sample_terms(view, second, theta, batch, weights, f)
            if second == "push":
                return first
            jacobian = step.jacobian
            return first + jax.vmap(lambda u: trees.ravel(pull_back(local, theta, jacobian, u)))(f_gradients)

        return step._replace(loss=loss, gradient=gradient, sample_gradients=sample_gradients), state


class Terms(NamedTuple):
    """The terms of the performative gradient on one batch."""

    loss: Array  # mean loss on the batch
    first: Theta  # L1
    f_gradient: Array  # u, (p,)


def terms(problem: View, second: str, theta: Theta, batch: Batch, weights: Array, f: Array) -> Terms:
    """Mean loss, L1 and u. ``second`` is "pathwise", "score" or "none" (retraining: u = 0).

    With "push" u is zero, too, and what stands for L1 is both terms.
    """
    losses = jax.vmap(problem.loss, (None, 0))
    if second == "push":
        push = jax.vmap(push_of(problem), (0, None, None))
        total = jax.value_and_grad(lambda t: weights @ losses(t, push(batch, theta, t)))(theta)
        return Terms(*total, jnp.zeros_like(f))
    if second == "pathwise" and is_large(theta):  # one way back through a network for both
        both = jax.value_and_grad(lambda t, delta: weights @ _moved_losses(problem, t, batch, delta, f), (0, 1))
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
    """u (p,) by shifting the samples; where it is the same for all of them (a loss linear in z), nothing is summed."""
    zero = jnp.zeros_like(f)

    def of_one(z: Batch) -> Array:
        return jax.grad(lambda delta: problem.family.moved_loss(partial(problem.loss, theta), z, delta, f))(zero)

    try:
        return jax.vmap(of_one, out_axes=None)(batch)  # refused where it differs from sample to sample
    except ValueError:
        return jax.grad(lambda delta: weights @ _moved_losses(problem, theta, batch, delta, f))(zero)


def _moved_losses(problem: View, theta: Theta, batch: Batch, delta: Array, f: Array) -> Array:
    """The loss (n,) of every sample after f moves by ``delta``."""
    family = problem.family
    if family.shift is not None:
        moved = jax.vmap(family.apply_shift, (0, None, None))(batch, delta, f)
        return jax.vmap(problem.loss, (None, 0))(theta, moved)
    return jax.vmap(lambda z: family.moved_loss(partial(problem.loss, theta), z, delta, f))(batch)


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
        moved, loss = problem.family.moved_loss, partial(problem.loss, theta)
        return firsts, jax.vmap(lambda z: jax.grad(lambda g: moved(loss, z, g, f))(zero))(batch)
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
    """L2 = J^T u, a pytree like theta: the gradient in the signal pulled back to theta."""
    return jax.vjp(problem.signal, theta)[1](jacobian.T @ f_gradient)[0]
