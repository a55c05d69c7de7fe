"""Guessing a mean that follows the guess (Mendler-Duenner et al. 2020; federated: Jin et al. 2024).

z ~ N(mu_i + eps_i theta, sd^2), loss (z - theta)^2 / 2. With weights alpha_i

    PS = sum alpha_i mu_i / (1 - sum alpha_i eps_i)
    PO = sum alpha_i mu_i (1 - eps_i) / sum alpha_i (1 - eps_i)^2

Where clients are alike both are mu / (1 - eps), 100 by default: this case is about how fast retraining gets there.
Where they differ they part, and retraining converges as long as the *mean* sensitivity is below 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from profl import checks, random
from profl.cases.common import generator, sensitivities
from profl.problem.families import GaussianMean
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key


def squared_miss(theta: Array, z: Array) -> Array:
    """(z - theta)^2 / 2 of one sample."""
    return 0.5 * jnp.sum((z - theta) ** 2)


@dataclass(frozen=True)
class Follower(Reaction):
    """z ~ N(mu + eps theta, sd^2); a client is {"mu": (1,), "eps": ()}."""

    sd: float

    level = "mu"  # what moves where the mean drifts

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["mu"] + client["eps"] * theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + self.sd * random.normal(key, n, 1)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return squared_miss(theta, self.parameters(deployed, client)) + 0.5 * self.sd**2


@checks.explain_call
def mean_estimation(
    clients: int = 25,
    heterogeneity: float = 0.0,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = 0.9,
    mean: float = 10.0,
    mean_heterogeneity: float = 0.0,
    sd: float = 0.1,
    spread: str = "even",
) -> Problem:
    """The mean of data that follow the guess, at clients of whom some follow it more; runs start at ``mean``.

    Args:
      heterogeneity: half-width of eps_i around ``sensitivity``.
      seed: of which client has which mean, and of a uniform spread.
      mean: the mean of mu_i, ``mean_heterogeneity`` their half-width.

    >>> round(float(mean_estimation().stable[0]), 6), round(float(mean_estimation(heterogeneity=0.5).optimum[0]), 2)
    (100.0, 9.97)
    """
    checks.positive("sd", sd)
    checks.positive_int("seed", seed, least=0)
    checks.real("sensitivity", sensitivity)
    levels = sensitivities(checks.real("mean", mean), mean_heterogeneity, clients, spread, seed + 1)

    def initial(key: Key) -> Array:
        return jnp.full(1, mean, jnp.float32)

    return Problem(
        name="mean estimation",
        loss=squared_miss,
        family=GaussianMean(sd),
        reaction=Follower(float(sd)),
        clients={
            "mu": generator(seed, 2).permutation(levels)[:, None],
            "eps": sensitivities(sensitivity, heterogeneity, clients, spread, seed),
        },
        initial=initial,
        weights=weights,
    )
