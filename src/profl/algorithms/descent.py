"""Descent: one optimiser step along a gradient for every batch that comes in (paper, Algorithm 1, lines 6-16).

w      <- filter(gradients, w)             line 7/11
g      <- L1                               what ``slope`` makes of the batch; PoFL's is L1 + J^T u
theta  <- Proj(theta - optimiser(g))       line 9/14
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from profl import checks
from profl.algorithms.method import Arrival, Method
from profl.client import filters
from profl.client.filtering import filter_weights
from profl.client.gradient import terms
from profl.client.optimise import Optimiser, check_optimiser, descend, transformation
from profl.problem.problem import View
from profl.server import rules
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


class State(NamedTuple):
    """What a client's next step needs; PoFL fills in what stands behind the optimiser's."""

    optimiser: Any
    jacobian: Any = ()  # the estimator's
    shared: Any = ()  # the Jacobian that the server sent, where they are shared
    explored: Any = ()  # the last perturbation, where it explores
    samples: Any = ()  # () int32: how many samples to draw next, where it adapts them


@dataclass(frozen=True)
class Descent(Method):
    """Follows L1 alone and so ends at the stable point; made by ``profl.pfl``, ``profl.rgd`` and ``profl.rrm``.

    Args:
      name: shown in tables and plots.
      learning_rate: eta, handed to ``optimiser``.
      optimiser: an optax factory such as ``optax.sgd``, or a ready transformation with its own learning rate.
      inner_steps: gradient steps on one batch.
      pooled: one centralised learner on everybody's data instead of a federation.
      filter: which samples to trust: "none", "robust", "paper", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines models; see ``Method``.
    """

    name: str
    learning_rate: float = 0.01
    optimiser: Optimiser = optax.sgd
    inner_steps: int = 1
    pooled: bool = False
    filter: Any = "none"
    aggregate: Any = "mean"

    info = ("loss", "kept")

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        checks.positive_int("inner_steps", self.inner_steps)
        check_optimiser(self.optimiser)
        filters.check(filters.get(self.filter))
        rules.get(self.aggregate)

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        return self.filter != "none"

    @property
    def transformation(self) -> optax.GradientTransformation:
        return transformation(self.optimiser, self.learning_rate)

    def init(self, problem: View, theta: Theta, batch: Batch) -> State:
        return State(self.transformation.init(theta))

    def step(
        self, problem: View, state: State, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, State, dict[str, Array]]:
        batch, chosen = arrival.batch, None if self.filter == "none" else filters.get(self.filter)
        with stage("filter") as seen:  # lines 7 and 11: which samples to trust
            weights, kept = seen(filter_weights(problem, chosen, arrival.deployed, batch, arrival.weights))
        loss, gradient, state = self.slope(problem, state, theta, arrival._replace(weights=weights))
        with stage("update") as seen:  # lines 9 and 14: project(theta - eta g)
            theta, optimiser = seen(
                descend(
                    problem, self.transformation, state.optimiser, theta, gradient, batch, weights, self.inner_steps
                )
            )
        return theta, state._replace(optimiser=optimiser), {"loss": loss, "kept": kept}

    def slope(self, problem: View, state: State, theta: Theta, arrival: Arrival) -> tuple[Array, Theta, State]:
        """The loss, the gradient to follow, and the state with this deployment in it."""
        with stage("gradient") as seen:
            nothing = jnp.zeros((0,))
            found = seen(terms(problem, "none", arrival.deployed, arrival.batch, arrival.weights, nothing))
        return found.loss, found.first, state


def shape_of_f(problem: View, batch: Batch) -> Any:
    """The shape of f_hat, from the shapes of a batch."""
    n = jax.tree.leaves(batch)[0].shape[0]
    return jax.eval_shape(problem.family.estimate, batch, jax.ShapeDtypeStruct((n,), jnp.float32))
