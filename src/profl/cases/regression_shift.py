"""Regression whose target moves with the model as a whole (Miller et al. 2021, Section 5).

x ~ N(0, S), y = beta.x + mu_i.theta + N(0, 0.01), loss (y - theta.x)^2 / 2, theta in a ball of radius 10. S is a random
matrix of norm 0.01, beta ~ N(0, I), mu_i points in a random direction and is eps_i long. So

    L(theta) = ((beta - theta)' S (beta - theta) + sum alpha_i (mu_i.theta)^2 + 0.01) / 2
    PO = (S + sum alpha_i mu_i mu_i')^-1 S beta  where that lies in the ball,    PS = beta

Retraining never sees that the target follows the model: x has mean zero. With eps = 100 it ends thousands above the
optimum. f is the mean of y; the gradient is pathwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import copies, generator, sensitivities
from profl.problem.families import Family, average
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

NOISE = 0.01
"""Variance of y given x; also the norm of S."""


@dataclass(frozen=True)
class Ball:
    """The model space |theta| <= radius; calling it projects.

    >>> Ball(10.0)(jnp.array([30.0, 40.0])), Ball(10.0)(jnp.array([3.0, 4.0]))
    (Array([6., 8.], dtype=float32), Array([3., 4.], dtype=float32))
    """

    radius: float

    def __call__(self, theta: Array) -> Array:
        square = jnp.sum(theta**2)
        outside = square > self.radius**2  # the root's slope at 0 is infinite
        return jnp.where(outside, theta * self.radius / jnp.sqrt(jnp.where(outside, square, 1.0)), theta)


@dataclass(frozen=True)
class TargetMean(Family):
    """z = {"x": features, "y": target}; f is the mean of y, which moves as a whole."""

    sd: float = 1.0

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return average(weights, batch["y"][:, None])

    def log_prob(self, z: Batch, f: Array) -> Array:
        return -0.5 * jnp.sum((z["y"] - f) ** 2) / self.sd**2

    def shift(self, z: Batch, delta: Array) -> Batch:
        return {**z, "y": z["y"] + delta[0]}


def squared_error(theta: Array, z: Batch) -> Array:
    """(y - theta.x)^2 / 2 of one sample."""
    return 0.5 * (z["y"] - z["x"] @ theta) ** 2


@dataclass(frozen=True)
class FollowingTarget(Reaction):
    """y = beta.x + mu.theta + noise; a client is {"beta": (d,), "mu": (d,), "root": (d, d), S = root root'}."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return (client["mu"] @ theta)[None]

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        draws = random.normal(key, n, theta.shape[0] + 1)
        x = draws[:, :-1] @ client["root"].T
        return {"x": x, "y": x @ client["beta"] + self.parameters(theta, client) + NOISE**0.5 * draws[:, -1]}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        miss = (client["beta"] - theta) @ client["root"]
        return 0.5 * (miss @ miss + jnp.sum(self.parameters(deployed, client) ** 2) + NOISE)


@checks.explain_call
def regression_shift(
    clients: int = 10,
    heterogeneity: float = 0.0,
    weights: Any = None,
    seed: int = 0,
    *,
    features: int = 20,
    sensitivity: float = 100.0,
    spread: str = "even",
) -> Problem:
    """Linear regression whose target follows the model (Miller et al. 2021); runs start at theta = 1.

    Args:
      heterogeneity: half-width of eps_i, relative to ``sensitivity``.
      seed: of S, beta, the direction of mu and a uniform spread.

    >>> case = regression_shift()
    >>> case.risk(case.stable) > 1000 * case.risk(case.optimum)
    True
    """
    checks.positive_int("features", features)
    checks.positive("sensitivity", sensitivity)
    draws = generator(seed, 0)
    root = draws.normal(size=(features, features))
    root *= np.sqrt(NOISE) / np.linalg.norm(root, 2)
    beta, towards = draws.normal(size=features), draws.normal(size=features)
    eps = sensitivities(sensitivity, heterogeneity * sensitivity, clients, spread, seed)

    def initial(key: Key) -> Array:
        return jnp.ones(features, jnp.float32)

    return Problem(
        name="regression shift",
        loss=squared_error,
        family=TargetMean(),
        reaction=FollowingTarget(),
        clients={
            "beta": copies(beta, clients),
            "mu": eps[:, None] * towards / np.linalg.norm(towards),
            "root": copies(root, clients),
        },
        initial=initial,
        project=Ball(10.0),
        weights=weights,
    )
