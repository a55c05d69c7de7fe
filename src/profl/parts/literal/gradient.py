"""The performative gradient as printed (paper, Eq. 4; Algorithm 1, line 14): the score form without a baseline.

L1 = mean_j grad l(z_j; theta),        L2 = J^T u,        u = mean_j l(z_j; theta) d log p(z_j; f_hat) / df
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl.parts.gradient import Terms, pull_back, terms
from profl.parts.part import Part, Step
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


def score_terms(problem: View, theta: Theta, batch: Batch, weights: Array, f: Array) -> Terms:
    """Mean loss, L1 and u, with the losses as they are."""
    loss, first, _ = terms(problem, "none", theta, batch, weights, f)
    weighted = weights * jax.vmap(problem.loss, (None, 0))(theta, batch)
    log_prob = jax.vmap(problem.family.log_prob, (0, None))
    return Terms(loss, first, jax.grad(lambda g: weighted @ log_prob(batch, g))(f))


@dataclass(frozen=True)
class ScoreGradient(Part):
    """L1 + L2 in the score form, without the baseline that takes most of its noise away."""

    def reads(self, problem: Any) -> tuple[str, ...]:
        return "f", "jacobian"

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("samples",)

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        with stage("gradient") as watch:
            loss, first, slope = score_terms(view, step.deployed, step.batch, step.weights, step.f)
            second = pull_back(view, step.deployed, step.jacobian, slope)
            gradient = watch(jax.tree.map(jnp.add, first, second))
        return step._replace(loss=loss, gradient=gradient), state
