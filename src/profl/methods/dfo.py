"""``dfo``: derivative-free descent on deployed losses alone (Flaxman, Kalai and McMahan 2005; Miller et al. 2021).

    deploy  theta + delta u,  u uniform on the unit sphere of R^d

    one point     g = (d / delta) loss(theta + delta u) u
    two points    g = (d / 2 delta) (loss(theta + delta u) - loss(theta - delta u)) u        theta rests in between
    theta  <- Proj(theta - optimiser(g))

Each client perturbs by itself, the server averages. It needs neither a family nor gradients of the loss, only the
mean loss of the deployed model; the price is more deployments: the noise of g grows with d / delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.methods.method import Arrival, Method
from profl.parts.optimiser import Descent, OptimiserLike, check_optimiser, takes_traced_rate, transformation
from profl.parts.part import unchecked
from profl.problem.problem import View
from profl.server import rules
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


class Probe(NamedTuple):
    """The state of a client: the optimiser's, and the last direction with its loss."""

    optimiser: Any
    direction: Array  # u, (d,)
    loss: Array  # at the first of two points
    opposite_next: Array  # () bool: whether the second point comes next


@checks.explain_call
@dataclass(frozen=True)
class DerivativeFree(Method):
    """From one or two ``points`` at distance ``delta``; ``optimiser`` and ``aggregate`` as in ``profl.profl``."""

    learning_rate: float = 0.01
    delta: float = 0.5
    points: int = 2
    optimiser: OptimiserLike = optax.sgd
    aggregate: Any = "mean"

    name = "dfo"
    needs = ("losses",)

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        checks.positive("delta", self.delta)
        if not isinstance(self.points, int) or self.points not in (1, 2):
            raise checks.InputError(f"points must be 1 or 2, got {checks.shown(self.points)}")
        check_optimiser(self.optimiser)
        rules.get(self.aggregate)

    def numbers(self) -> dict[str, float]:
        return {"learning_rate": float(self.learning_rate)} if takes_traced_rate(self.optimiser) else {}

    def with_numbers(self, numbers: dict[str, Any]) -> DerivativeFree:
        return unchecked(self, **numbers)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Probe:
        flat, zero = jax.eval_shape(trees.ravel, theta), jnp.zeros(())
        optimiser = transformation(self.optimiser, self.learning_rate).init(theta)
        return Probe(optimiser, jnp.zeros(flat.shape, flat.dtype), zero, jnp.asarray(False))

    def deploy(self, problem: View, state: Probe, key: Key, theta: Theta) -> tuple[Theta, Probe]:
        flat, unravel = ravel_pytree(theta)
        fresh = jax.random.normal(random.explore_key(key), flat.shape, flat.dtype)
        direction = jnp.where(state.opposite_next, state.direction, fresh / jnp.linalg.norm(fresh))
        side = jnp.where(state.opposite_next, -self.delta, self.delta)
        return problem.project(unravel(flat + side * direction)), state._replace(direction=direction)

    def step(
        self, problem: View, state: Probe, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Probe, dict[str, Array]]:
        batch, weights = arrival.batch, arrival.weights
        with stage("loss") as check:
            loss = check(weights @ jax.vmap(problem.loss, (None, 0))(arrival.deployed, batch))
        change = loss if self.points == 1 else (state.loss - loss) / 2
        unravel = ravel_pytree(theta)[1]
        gradient = unravel(change * state.direction * (state.direction.shape[0] / self.delta))
        optimiser = transformation(self.optimiser, self.learning_rate)
        with stage("update") as check:
            after = check(Descent(problem, optimiser, batch, weights).step(theta, state.optimiser, gradient))
        complete = state.opposite_next | (self.points == 1)
        theta, new = trees.where(complete, after, (theta, state.optimiser))
        return theta, Probe(new, state.direction, loss, ~complete), {"loss": loss}
