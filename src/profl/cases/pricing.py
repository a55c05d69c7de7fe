"""Pricing with demand that answers the price (distribution dynamics; paper, Appendix "Case Studies").

theta are the prices of d goods; demand is z ~ N(mu_i(theta), sd^2 I) with

    mu_i(theta) = mu0 - gamma_i theta                    (linear, the paper's)
    mu_i(theta) = mu0 * exp(-gamma_i theta / 4)          (exponential: the same family, a curved reaction)

and the loss is minus the revenue, -theta.z. With linear demand PO = mu0 / (2 gamma-bar), PS = mu0 / gamma-bar:
retraining doubles the price, as if demand would stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import base_data, generator, sensitivities
from profl.problem.families import GaussianMean
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

PRICES = Box(0.0, 5.0)


def negative_revenue(theta: Array, z: Array) -> Array:
    """-theta.z of one sample of demand."""
    return -jnp.sum(theta * z)


@dataclass(frozen=True)
class Demand(Reaction):
    """Gaussian demand around mu_i(theta); a client is {"mu0": (d,), "gamma": ()}."""

    curve: str = "linear"
    sd: float = 1.0

    level = "mu0"  # what moves where demand drifts

    def parameters(self, theta: Array, client: Client) -> Array:
        if self.curve == "linear":
            return client["mu0"] - client["gamma"] * theta
        return client["mu0"] * jnp.exp(-client["gamma"] * theta / 4)

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + self.sd * random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * self.parameters(deployed, client))


@jax.jit
def _around(key: Key, middle: Array) -> Array:
    """Prices N(middle, 1) within their bounds: one program, which all problems of one size share."""
    return PRICES(middle + jax.random.normal(key, middle.shape, dtype=jnp.float32))


@checks.explain_call
def pricing(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    goods: int = 5,
    sensitivity: float = 1.5,
    reaction: str = "linear",
    spread: str = "even",
    base_spread: float = 0.0,
) -> Problem:
    """Prices for ``goods`` goods at ``clients`` retailers whose customers buy less when they cost more.

    Runs start at 0.75 mu0 / gamma-bar + N(0, I), which is (PO + PS) / 2 for linear demand; the curved one starts
    there too.

    Args:
      base_spread: by which share mu0 differs between clients, up or down.

    >>> case = pricing(clients=4, goods=2)
    >>> bool(np.allclose(2 * case.optimum, case.stable))
    True
    """
    checks.positive_int("goods", goods)
    checks.positive("sensitivity", sensitivity)
    checks.one_of("reaction", reaction, ["linear", "exponential"])
    mu0 = generator(seed, 0).uniform(6.0, 7.0, goods)
    gamma = sensitivities(sensitivity, heterogeneity, clients, spread, seed)
    base = base_data(mu0, base_spread, clients, seed)
    middle = (0.75 * mu0 / sensitivity).astype(np.float32)

    def initial(key: Key) -> Array:
        return _around(key, middle)

    return Problem(
        name="pricing" if reaction == "linear" else "pricing (exponential demand)",
        loss=negative_revenue,
        family=GaussianMean(),
        reaction=Demand(reaction),
        clients={"mu0": base, "gamma": gamma},
        initial=initial,
        project=PRICES,
        weights=weights,
    )
