"""Performative gradient descent with a state (Izzo, Zou, Ying 2022) and its forerunner that waits instead (2021).

With a state, one step of the mean is learned, mu_t = m(theta_t, mu_{t-1}), by differences from the newest deployment:

    psi_t = [theta_t; mu_hat_{t-1}],      [d1 m, d2 m] = Delta mu_hat  pinv(Delta psi),      J = (I - d2 m)^-1 d1 m

Without one, psi_t = theta_t, J = Delta mu_hat pinv(Delta theta), and every model is deployed ``wait`` times, of which
only the last counts. Then, after as many random steps as there are parameters,

    theta <- Proj(theta - eta (L1 + J^T u + pert N(0, I)))

What mu was before the first deployment is not known here, so that the first deployment gives no psi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import random
from profl.methods.descent import shape_of_f
from profl.methods.method import Arrival, Method
from profl.parts.gradient import terms
from profl.problem.problem import View
from profl.typing import Array, Batch, Key


class Seen(NamedTuple):
    """The last deployments, newest last."""

    psi: Array  # (window, entries of psi)
    f: Array  # (window, p)
    known: Array  # () int32: how many of them there are
    last: Array  # mu_hat of the deployment before
    made: Array  # () int32: deployments


@dataclass(frozen=True)
class StatefulDescent(Method):
    """See the module.

    Args:
      learning_rate: eta.
      stateful: whether mu_{t-1} is in psi.
      window: H, how many deployments are looked back on.
      perturbation: pert.
      warm: size of the random steps in the beginning; eta by default.
      retrains_first: whether the steps in the beginning follow L1 instead of being random (2021).
      wait: deployments of every model.
      longest: the gradient is cut to this length.
    """

    learning_rate: float
    stateful: bool = True
    window: int = 64
    perturbation: float = 0.0
    warm: float | None = None
    wait: int = 1
    longest: float = math.inf
    retrains_first: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        return "spgd" if self.stateful else "pgd"

    def init(self, problem: View, theta: Array, batch: Batch) -> Seen:
        p = shape_of_f(problem, batch).shape[0]
        columns = theta.shape[0] + (p if self.stateful else 0)
        none = jnp.int32(0)
        return Seen(jnp.zeros((self.window, columns)), jnp.zeros((self.window, p)), none, jnp.zeros(p), none)

    def step(
        self, problem: View, state: Seen, theta: Array, arrival: Arrival, key: Key
    ) -> tuple[Array, Seen, dict[str, Array]]:
        f = problem.family.estimate(arrival.batch, arrival.weights)
        due = state.made % self.wait == self.wait - 1
        state = self._noted(state, theta, f, due & (state.made > 0 if self.stateful else True))
        found = terms(problem, "pathwise", theta, arrival.batch, arrival.weights, f)
        gradient = found.first + self.jacobian(state).T @ found.f_gradient
        noise = jax.random.normal(random.explore_key(key), theta.shape, theta.dtype)
        gradient = gradient + self.perturbation * noise
        gradient = gradient * jnp.minimum(1.0, self.longest / jnp.linalg.norm(gradient))
        warm = self.learning_rate if self.warm is None else self.warm
        beginning = state.made <= self.wait * theta.shape[0]
        opening = -self.learning_rate * found.first if self.retrains_first else warm * noise
        move = jnp.where(beginning, opening, -self.learning_rate * gradient)
        return problem.project(theta + jnp.where(due, move, 0.0)), state, {"loss": found.loss}

    def jacobian(self, state: Seen) -> Array:
        there = (jnp.arange(self.window) >= self.window - state.known)[:, None]
        psi, f = (jnp.where(there, rows - rows[-1], 0.0) for rows in (state.psi, state.f))
        slopes = f.T @ jnp.linalg.pinv(psi.T)
        if not self.stateful:
            return slopes
        p = f.shape[1]
        d1, d2 = slopes[:, :-p], slopes[:, -p:]
        return jnp.linalg.solve(jnp.eye(p) - d2, d1)

    def _noted(self, state: Seen, theta: Array, f: Array, counts: Array) -> Seen:
        psi = jnp.concatenate([theta, state.last]) if self.stateful else theta
        moved = state._replace(
            psi=jnp.concatenate([state.psi[1:], psi[None]]),
            f=jnp.concatenate([state.f[1:], f[None]]),
            known=jnp.minimum(state.known + 1, self.window),
        )
        kept = jax.tree.map(lambda new, old: jnp.where(counts, new, old), moved, state)
        return kept._replace(last=f, made=state.made + 1)
