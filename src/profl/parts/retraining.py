"""Full retraining at every deployment, for ``rrm``: on several snapshots, or by a minimiser that stops early.

Not in the paper.

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
from profl.parts.optimiser import Descent, Optimiser
from profl.parts.part import Step
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

MOST_STEPS = 10_000  # steps of one minimisation
SHORTEST_STEP = 1e-9  # share of the learning rate: no shorter step is tried


class Snapshots(NamedTuple):
    """The optimiser's state, and the newest batches with their weights, (window, n, ...)."""

    optimiser: Any
    batches: Batch
    weights: Array
    snapshots: Array  # how many so far, () int32


@dataclass(frozen=True)
class Retraining(Optimiser):
    """Minimises the loss on the last ``window`` (tau) snapshots together, in ``inner_steps`` or ``until`` it rests."""

    window: int = 1
    until: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int("window", self.window)
        if self.until is not None:
            checks.positive("until", self.until)

    def init(self, view: View, theta: Theta, batch: Batch) -> Snapshots:
        empty = jax.tree.map(lambda leaf: jnp.zeros((self.window, *leaf.shape), leaf.dtype), batch)
        weights = jnp.zeros((self.window, trees.rows(batch)))
        return Snapshots(super().init(view, theta, batch), empty, weights, jnp.int32(0))

    def update(self, view: View, state: Snapshots, step: Step, key: Key) -> tuple[Step, Snapshots]:
        rows = state.weights.shape[1]  # a live client may send more rows than it was asked for
        new = jax.tree.map(lambda leaf: leaf[:rows], (step.batch, step.weights))
        batches, weights = jax.tree.map(
            lambda old, leaf: old.at[state.snapshots % self.window].set(leaf), (state.batches, state.weights), new
        )
        batch, share = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (batches, weights))
        share = share / jnp.sum(share)
        with stage("update") as watch:
            theta, optimiser = watch(self._minimise(view, state.optimiser, step.theta, batch, share))
        return step._replace(theta=theta), Snapshots(optimiser, batches, weights, state.snapshots + 1)

    def _minimise(self, view: View, state: Any, theta: Theta, batch: Batch, weights: Array) -> tuple[Theta, Any]:
        losses = jax.vmap(view.loss, (None, 0))
        risk = lambda t: weights @ losses(t, batch)  # noqa: E731
        if self.until is None:
            descent = Descent(view, self.transformation, batch, weights)
            return descent.steps(theta, state, jax.grad(risk)(theta), self.inner_steps)
        return backtrack(view, risk, theta, self.learning_rate, self.until), state


def backtrack(view: View, risk: Any, theta: Theta, longest: Any, until: float) -> Theta:
    """The model after gradient descent on ``risk`` until a step improves it by no more than ``until``."""

    def step(carry: tuple) -> tuple:
        theta, before, eta, _, steps = carry
        new = view.project(jax.tree.map(lambda t, g: t - eta * g, theta, jax.grad(risk)(theta)))
        after = risk(new)
        rises = after > before
        best = trees.where(rises, (theta, before), (new, after))
        return *best, jnp.where(rises, eta / 10, longest), jnp.where(rises, jnp.inf, before - after), steps + 1

    def goes_on(carry: tuple) -> Array:
        return (carry[3] > until) & (carry[4] < MOST_STEPS) & (carry[2] > SHORTEST_STEP * longest)

    first = risk(theta)
    start = (theta, first, jnp.full_like(first, longest), jnp.full_like(first, jnp.inf), jnp.int32(0))
    return jax.lax.while_loop(goes_on, step, start)[0]
