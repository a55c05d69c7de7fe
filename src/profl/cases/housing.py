"""House prices that answer the listing price (distribution dynamics).

x ~ N(mu, I) in R^d, y = (a - gamma_i theta).x + noise with a = 5/3 in every entry, mu = 5/3 / sqrt(d) in every entry,
noise sd 61/30 and mean gamma -5/3: a higher listing raises what is paid. Loss 0.5 ((theta.x - y)^2 + (10/3) |theta|^2).
With equal clients PO = -0.8374 (risk 5.5565 of one feature) and PS = 7.7273: retraining chases the prices it raised
itself. This is the case behind the paper's Table 1, though its text says pricing.

What theta misses by, delta = theta - (a - gamma_i theta'), has E (delta.x)^2 = (delta.mu)^2 + |delta|^2 as its mean
square, so PO and PS solve linear equations with M = I + mu mu^T:

    sum_i alpha_i ((1 + gamma_i)^2 M_i + r I) PO = sum_i alpha_i (1 + gamma_i) M_i a_i
    sum_i alpha_i ((1 + gamma_i)   M_i + r I) PS = sum_i alpha_i M_i a_i                   (r = 10/3)

mu has the same length whatever d is, so both have the same entries as with one feature; were it longer, retraining
would run away to the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import base_data, ridge_regression_loss, sensitivities
from profl.problem.families import LinearGaussian
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

RIDGE = 10 / 3
LOSS = partial(ridge_regression_loss, RIDGE)


@dataclass(frozen=True)
class SellingPrice(Reaction):
    """y = (a - gamma theta).x + noise, x ~ N(mu, I).

    A client is {"a": (d,), "gamma": ()}, and has "centre": (d,), its mu, where that is not ``centre``.
    """

    centre: float = 5 / 3
    noise: float = 61 / 30

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["a"] - client["gamma"] * theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        d = theta.shape[0]
        draws = random.normal(key, n, d + 1)
        x = client.get("centre", self.centre) + draws[:, :d]
        return {"x": x, "y": x @ self.parameters(theta, client) + self.noise * draws[:, d]}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        delta = theta - self.parameters(deployed, client)
        if "centre" in client:
            miss = jnp.sum(delta**2) + (delta @ client["centre"]) ** 2
        else:
            miss = jnp.sum(delta**2) * (self.centre**2 + 1)
        return 0.5 * (miss + self.noise**2 + RIDGE * jnp.sum(theta**2))


@checks.explain_call
def housing(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = -5 / 3,
    spread: str = "even",
    base_spread: float = 0.0,
    features: int = 1,
) -> Problem:
    """A listing-price model in districts where what is paid follows what is listed.

    Args:
      base_spread: by which share a and mu differ between clients, up or down.
      features: d, the features of a house.

    >>> round(float(housing(heterogeneity=0).optimum[0]), 4), round(float(housing(heterogeneity=0).stable[0]), 4)
    (-0.8374, 7.7273)
    >>> housing(heterogeneity=0, features=2).optimum.round(4).tolist()
    [-0.8374, -0.8374]
    """
    checks.positive_int("features", features)

    def initial(key: Key) -> Array:
        return jax.random.uniform(key, (features,), minval=2.0, maxval=4.0, dtype=jnp.float32)

    rows = {
        "a": base_data(np.full(features, 5 / 3), base_spread, clients, seed),
        "gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed),
    }
    centre = np.full(features, 5 / 3 / np.sqrt(features))
    if base_spread or features > 1:
        rows["centre"] = base_data(centre, base_spread, clients, seed, part=1)

    return Problem(
        name="housing",
        loss=LOSS,
        family=LinearGaussian(sd=61 / 30),
        reaction=SellingPrice(),
        clients=rows,
        initial=initial,
        project=Box(-10.0, 10.0),
        weights=weights,
    )
