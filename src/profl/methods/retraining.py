"""Retraining in full at every deployment, on more than the newest data or by a minimiser that stops early: ``rrm``'s.

    D_t = mean of the last tau snapshots D(theta_t), ..., D(theta_{t-tau+1}),    theta_{t+1} = argmin over D_t

(Khorsandi et al. 2025). With ``until`` the minimiser is that of Perdomo et al. (2020), as their notebook has it:
gradient descent, a tenth of the step while the loss rises, until a step improves the loss by no more than ``until``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.methods.descent import Descent, State, descend
from profl.methods.method import Arrival, Report
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

MOST, SHORTEST = 10_000, 1e-9
"""Steps of one minimisation, and the share of the learning rate below which no step is tried."""


class Snapshots(NamedTuple):
    """The descent's own state, and the newest batches with their weights, (window, n, ...)."""

    own: State
    batches: Batch
    weights: Array
    made: Array


@dataclass(frozen=True)
class Retraining(Descent):
    """Made by ``profl.rrm``; tau = ``window``."""

    window: int = 1
    until: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int("window", self.window)
        if self.until is not None:
            checks.positive("until", self.until)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Snapshots:  # type: ignore[override]
        room = jax.tree.map(lambda leaf: jnp.zeros((self.window, *leaf.shape), leaf.dtype), batch)
        weights = jnp.zeros((self.window, trees.rows(batch)))
        return Snapshots(super().init(problem, theta, batch), room, weights, jnp.int32(0))

    def step(  # type: ignore[override]
        self, problem: View, state: Snapshots, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Snapshots, dict[str, Array]]:
        loss, *_ = super().slope(problem, state.own, theta, arrival)
        rows = state.weights.shape[1]  # a live client may send more rows than it was asked for
        new = jax.tree.map(lambda leaf: leaf[:rows], (arrival.batch, arrival.weights))
        batches, weights = jax.tree.map(
            lambda old, leaf: old.at[state.made % self.window].set(leaf), (state.batches, state.weights), new
        )
        batch, share = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (batches, weights))
        share = share / jnp.sum(share)
        with stage("update") as check:
            theta, optimiser = check(self._minimised(problem, state.own.optimiser, theta, batch, share))
        own = state.own._replace(optimiser=optimiser)
        return theta, Snapshots(own, batches, weights, state.made + 1), {"loss": loss}

    def report(self, problem: View, state: Snapshots, theta: Theta) -> Report:  # type: ignore[override]
        return super().report(problem, state.own, theta)

    def _minimised(self, problem: View, state: Any, theta: Theta, batch: Batch, weights: Array) -> tuple[Theta, Any]:
        losses = jax.vmap(problem.loss, (None, 0))
        risk = lambda t: weights @ losses(t, batch)  # noqa: E731
        if self.until is None:
            steps = self.inner_steps
            first = jax.grad(risk)(theta)
            return descend(problem, self.transformation, state, theta, first, batch, weights, steps)
        return backtrack(problem, risk, theta, float(self.learning_rate), self.until), state


def backtrack(problem: View, risk: Any, theta: Theta, longest: float, until: float) -> Theta:
    """Gradient descent on ``risk`` until a step improves it by no more than ``until``."""

    def step(carry: tuple) -> tuple:
        theta, before, eta, _, made = carry
        moved = jax.tree.map(lambda t, g: t - eta * g, theta, jax.grad(risk)(theta))
        new = problem.project(moved)
        after = risk(new)
        rises = after > before
        kept = trees.where(rises, (theta, before), (new, after))
        return *kept, jnp.where(rises, eta / 10, longest), jnp.where(rises, jnp.inf, before - after), made + 1

    def goes_on(carry: tuple) -> Array:
        return (carry[3] > until) & (carry[4] < MOST) & (carry[2] > SHORTEST * longest)

    first = risk(theta)
    start = (theta, first, jnp.full_like(first, longest), jnp.full_like(first, jnp.inf), jnp.int32(0))
    return jax.lax.while_loop(goes_on, step, start)[0]
