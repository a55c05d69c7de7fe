"""A push-forward with unknown numbers pi, learned from how f moves between deployments (Cyffers et al. 2024).

With c the first model that was deployed, a the f that belongs to it, and s what was deployed now,

    f_hat(batch pushed from s to c; pi) = a + noise of variance v

whatever s was, if pi is right. The residual, linearised in pi, is one observation of (a, pi): an extended Kalman
filter, with v from the batch. All deployments count the same, and no samples are kept. At s = c nothing is learned of
pi; where the push is linear in pi, so is f's location, and the filter is recursive least squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from profl import checks, numerics, trees
from profl.methods.chain import Chain, chain
from profl.parts import Optimiser, Part, Step
from profl.parts.gradient import terms
from profl.parts.optimiser import OptimiserLike
from profl.parts.part import shape_of_f
from profl.problem.problem import View
from profl.server.entries import Values
from profl.typing import Array, Batch, Key, Theta

ROUNDING = 8
"""Machine epsilons of f, or of one where f is smaller: the least noise, so that nothing is divided by zero."""


class PushFilter(NamedTuple):
    """The filter's state: (a, pi) are p + m numbers."""

    mean: Array  # (p + m,)
    covariance: Array  # (p + m, p + m)
    origin: Theta  # c
    started: Array  # () bool: whether there has been a deployment


class PushParameters(NamedTuple):
    """What a client knows of the parameters, (m,) each."""

    parameters: Array
    variance: Array


@dataclass(frozen=True)
class LearnedPushGradient(Part):
    """The gradient through ``push(z, deployed, theta, parameters)``, whose parameters every client learns.

    Args:
      push: where z would lie under ``theta``; structure and shapes stay as they are.
      parameters: where they start, at every client.
      spread: standard deviations of the parameters around that: one number, or one per parameter.
    """

    push: Callable[..., Batch]
    parameters: Any
    spread: Any = 1.0

    def __post_init__(self) -> None:
        start = _numbers("parameters", self.parameters)
        each = _numbers("spread", self.spread if np.ndim(self.spread) else [self.spread] * len(start))
        if len(each) != len(start) or min(each) <= 0:
            raise checks.InputError(
                f"spread must be a number above 0, or one for each of {len(start)} parameters, got {self.spread!r}"
            )
        object.__setattr__(self, "parameters", start)
        object.__setattr__(self, "spread", each)

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("samples", "family")

    def init(self, view: View, theta: Theta, batch: Batch) -> PushFilter:
        f = shape_of_f(view, batch)
        start, level = jnp.asarray(self.parameters, f.dtype), jnp.zeros(f.shape, f.dtype)
        covariance = jnp.diag(jnp.concatenate([level, jnp.asarray(self.spread, f.dtype) ** 2]))
        origin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), theta)
        return PushFilter(jnp.concatenate([level, start]), covariance, origin, jnp.asarray(False))

    def update(self, view: View, state: PushFilter, step: Step, key: Key) -> tuple[Step, PushFilter]:
        state = self.learn(view, state, step)
        parameters = self.estimate(state).parameters
        pushed = view._replace(push=lambda z, deployed, theta: self.push(z, deployed, theta, parameters))
        gradient = terms(pushed, "push", step.deployed, step.batch, step.weights, jnp.zeros((0,)))
        return step._replace(loss=gradient.loss, gradient=gradient.first), state

    def learn(self, view: View, state: PushFilter, step: Step) -> PushFilter:
        """The filter after one more deployment."""
        family, weights = view.family, step.weights
        origin = trees.where(state.started, state.origin, step.deployed)

        def back(pi: Array) -> Batch:
            return jax.vmap(self.push, (0, None, None, None))(step.batch, step.deployed, origin, pi)

        size = state.mean.size - len(self.parameters)
        level, pi = state.mean[:size], state.mean[size:]
        f = family.estimate(back(pi), weights)
        noise = family.variance(back(pi), weights, f)
        noise = jnp.maximum(noise, (ROUNDING * jnp.finfo(f.dtype).eps) ** 2 * (1 + f**2))
        slope = jax.jacfwd(lambda pi: family.estimate(back(pi), weights))(pi)  # (p, m)
        level = jnp.where(state.started, level, f)
        first = jnp.where(state.started, 0.0, jnp.diag(jnp.concatenate([noise, jnp.zeros_like(pi)])))
        covariance = state.covariance + first

        row = jnp.concatenate([-jnp.eye(size, dtype=f.dtype), slope], 1)  # of f_hat - a in (a, pi)
        gain = covariance @ row.T @ numerics.inverse_logdet(row @ covariance @ row.T + jnp.diag(noise))[0]
        mean = jnp.concatenate([level, pi]) - gain @ (f - level)
        rest = jnp.eye(mean.size, dtype=f.dtype) - gain @ row
        covariance = rest @ covariance @ rest.T + (gain * noise) @ gain.T  # Joseph's form: rounding keeps it positive
        return PushFilter(mean, covariance, origin, jnp.asarray(True))

    def estimate(self, state: PushFilter) -> PushParameters:
        count = len(self.parameters)
        return PushParameters(state.mean[-count:], jnp.diagonal(state.covariance)[-count:])

    def figures(self, view: View, state: PushFilter, theta: Theta) -> dict[str, Array]:
        """The share of the parameters' variance that is left: one before the first deployment."""
        spread = jnp.asarray(self.spread, state.mean.dtype)
        return {"push_unknown": jnp.clip(jnp.mean(self.estimate(state).variance / spread**2), 0.0, 1.0)}

    def final(self, view: View, state: PushFilter, reports: Values) -> dict[str, Any]:
        nothing = PushParameters(*[jnp.full(len(self.parameters), jnp.nan)] * 2)
        return {"push": dict(trees.where(state.started, self.estimate(state), nothing)._asdict())}


def learned_push(
    push: Callable[..., Batch],
    parameters: Any,
    learning_rate: float = 0.01,
    spread: Any = 1.0,
    *,
    optimiser: OptimiserLike = optax.sgd,
) -> Chain:
    """Descent along the gradient through a push whose ``parameters`` every client learns."""
    return chain(
        LearnedPushGradient(push, parameters, spread), Optimiser(learning_rate, optimiser), name="learned_push"
    )


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if np.ndim(values) != 1 or np.size(values) == 0:
        raise checks.InputError(f"{name} of a push must be a flat list of numbers, got {values!r}")
    return tuple(checks.real(f"{name}[{i}]", value) for i, value in enumerate(np.asarray(values).tolist()))
