"""``dfo_lambda``: derivative-free descent where people react slowly, DFO(lambda) (Liu, Li and Wai 2024).

    epoch k   u_k uniform on the unit sphere of R^d, deployed for tau_k steps m = 1, ..., tau_k
              theta <- Proj(theta - eta_k lambda^(tau_k - m) (d / delta_k) loss u_k),    deployed: theta + delta_k u_k

    eta_k = eta (1 + k)^(-2/3),   delta_k = delta (1 + k)^(-1/6),   tau_k = max(1, ceil(hold log(1 + k)))

Late in an epoch data have come nearer to what the deployed model brings in the long run, so late losses count most;
lambda = 0 makes use of the last alone, and wastes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.methods.method import Arrival, Method
from profl.problem.problem import View
from profl.server import rules
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


class Epoch(NamedTuple):
    direction: Array  # u, (d,)
    k: Array  # the epoch's number, from 0
    m: Array  # steps of it that are made


class Schedule(NamedTuple):
    """eta_k, delta_k and tau_k."""

    rate: Array
    distance: Array
    steps: Array


def schedule(k: Array, learning_rate: float, delta: float, hold: float) -> Schedule:
    """Of epoch k = 0, 1, ...

    >>> [int(schedule(jnp.asarray(k), 0.1, 0.5, 2.0).steps) for k in (0, 1, 9)]
    [1, 2, 5]
    """
    steps = jnp.maximum(1, jnp.ceil(hold * jnp.log1p(k))).astype(jnp.int32)
    return Schedule(learning_rate * (1.0 + k) ** (-2 / 3), delta * (1.0 + k) ** (-1 / 6), steps)


@dataclass(frozen=True)
class ForgettingDFO(Method):
    """``forgetting`` is lambda, from 0 to below 1; ``hold``: how fast epochs get longer."""

    learning_rate: float = 0.01
    delta: float = 0.5
    forgetting: float = 0.5
    hold: float = 2.0
    aggregate: Any = "mean"

    name = "dfo_lambda"
    needs = ("losses",)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "delta", "hold"):
            checks.positive(name, getattr(self, name))
        if not 0 <= checks.real("forgetting", self.forgetting) < 1:
            raise checks.InputError(f"forgetting must be at least 0 and below 1, got {self.forgetting!r}; try 0.5")
        rules.get(self.aggregate)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Epoch:
        flat = jax.eval_shape(trees.ravel, theta)
        return Epoch(jnp.zeros(flat.shape, flat.dtype), jnp.int32(0), jnp.int32(0))

    def deploy(self, problem: View, state: Epoch, key: Key, theta: Theta) -> tuple[Theta, Epoch]:
        flat, unravel = ravel_pytree(theta)
        drawn = jax.random.normal(random.explore_key(key), flat.shape, flat.dtype)
        direction = jnp.where(state.m == 0, drawn / jnp.linalg.norm(drawn), state.direction)
        away = schedule(state.k, self.learning_rate, self.delta, self.hold).distance * direction
        return problem.project(unravel(flat + away)), state._replace(direction=direction)

    def step(
        self, problem: View, state: Epoch, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Epoch, dict[str, Array]]:
        with stage("loss") as check:
            loss = check(arrival.weights @ jax.vmap(problem.loss, (None, 0))(arrival.deployed, arrival.batch))
        now, (flat, unravel) = schedule(state.k, self.learning_rate, self.delta, self.hold), ravel_pytree(theta)
        kept = jnp.asarray(self.forgetting, flat.dtype) ** (now.steps - state.m - 1)
        with stage("update") as check:
            gradient = kept * (flat.size / now.distance) * loss * state.direction
            theta = check(problem.project(unravel(flat - now.rate * gradient)))
        done = state.m + 1 >= now.steps
        return theta, Epoch(state.direction, state.k + done, jnp.where(done, 0, state.m + 1)), {"loss": loss}
