"""House prices that answer the listing price (distribution dynamics).

x ~ N(5/3, 1), y = (a - gamma_i theta) x + noise with a = 5/3, noise sd 61/30 and mean gamma -5/3: a higher listing
raises what is paid. Loss 0.5 ((theta x - y)^2 + (10/3) theta^2). With equal clients PO = -0.8374 (risk 5.5565) and PS
= 7.7273: retraining chases the prices it raised itself. This is the case behind the paper's Table 1, though its text
says pricing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.cases.common import copies, ridge_regression_loss, sensitivities
from profl.problem.families import LinearGaussian
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

RIDGE = 10 / 3
LOSS = partial(ridge_regression_loss, RIDGE)


@dataclass(frozen=True)
class SellingPrice(Reaction):
    """y = (a - gamma theta).x + noise; a client is {"a": (1,), "gamma": ()}."""

    centre: float = 5 / 3
    noise: float = 61 / 30

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["a"] - client["gamma"] * theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        draws = random.normal(key, n, 2)
        x = self.centre + draws[:, :1]
        return {"x": x, "y": x @ self.parameters(theta, client) + self.noise * draws[:, 1]}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        miss = jnp.sum((theta - self.parameters(deployed, client)) ** 2)
        return 0.5 * (miss * (self.centre**2 + 1) + self.noise**2 + RIDGE * jnp.sum(theta**2))


@checks.explain_call
def housing(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = -5 / 3,
    spread: str = "even",
) -> Problem:
    """A listing-price model in districts where what is paid follows what is listed.

    >>> round(float(housing(heterogeneity=0).optimum[0]), 4), round(float(housing(heterogeneity=0).stable[0]), 4)
    (-0.8374, 7.7273)
    """

    def initial(key: Key) -> Array:
        return jax.random.uniform(key, (1,), minval=2.0, maxval=4.0, dtype=jnp.float32)

    return Problem(
        name="housing",
        loss=LOSS,
        family=LinearGaussian(sd=61 / 30),
        reaction=SellingPrice(),
        clients={
            "a": copies([5 / 3], clients),
            "gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed),
        },
        initial=initial,
        project=Box(-10.0, 10.0),
        weights=weights,
    )
