"""Pricing where groups of customers leave when their bill eats up their budget (contribution dynamics).

Group k wants goods with fixed mean demand mu_k, z ~ N(mu_k, sd^2 I). Its share of the customers follows what is left
of its budget B after the bill:

    nu_ik(theta) = r_ik / sum_k' r_ik',    r_ik = B - gamma_i theta.mu_k

(gamma_i = 1 is the paper's formula; the spread of gamma_i makes clients differ). B is 5 % more than the largest
possible bill, so r > 0 on the whole model space. Loss: -theta.z. Retraining sees only that higher prices bring more
from those who are still there, and drives every price to the bound; the optimum keeps the good that the big spenders
buy affordable.

With as many goods as groups the optimum is unique; with more, the risk depends on theta only through the groups'
bills and a whole set of prices is optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import base_data, copies, sensitivities
from profl.cases.pricing import PRICES, negative_revenue
from profl.problem.families import GroupShares
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

DEMAND = ((7.0, 1.0), (1.0, 2.0))  # of two groups for two goods


def draw_groups(key: Key, shares: Array, n: int) -> Array:
    """n group indices with the given shares."""
    edges = jnp.cumsum(shares)[:-1]
    return jnp.sum(jax.random.uniform(key, (n, 1)) > edges, axis=1)


def loss(theta: Array, z: Batch) -> Array:
    """-theta.demand of one customer."""
    return negative_revenue(theta, z["demand"])


@dataclass(frozen=True)
class Budgets(Reaction):
    """Shares follow remaining budgets; a client is {"mu": (K, d), "gamma": (), "budget": ()}."""

    sd: float = 1.0

    def parameters(self, theta: Array, client: Client) -> Array:
        left = client["budget"] - client["gamma"] * client["mu"] @ theta
        return left / jnp.sum(left)

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        who, noise = jax.random.split(key)
        group = draw_groups(who, self.parameters(theta, client), n)
        demand = client["mu"][group] + self.sd * random.normal(noise, n, theta.shape[0])
        return {"demand": demand, "group": group}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -self.parameters(deployed, client) @ (client["mu"] @ theta)


def demand_table(demand: Any) -> np.ndarray:
    """The mean demand of each group (row) for each good (column)."""
    mu = checks.numbers_of("demand", demand, "a (groups >= 2) x goods table of numbers of 0 or more")
    if mu.ndim != 2 or mu.shape[0] < 2 or np.any(mu < 0) or not np.all(np.isfinite(mu)):
        raise checks.InputError(f"demand must be a (groups >= 2) x goods table of numbers of 0 or more, got {demand!r}")
    return mu


@checks.explain_call
def group_pricing(
    clients: int = 10,
    heterogeneity: float = 0.1,
    weights: Any = None,
    seed: int = 0,
    *,
    demand: Any = DEMAND,
    spread: str = "even",
    base_spread: float = 0.0,
) -> Problem:
    """Prices at retailers whose customer groups come and go with their remaining budgets.

    Args:
      demand: mean demand of each group (row) for each good (column).
      base_spread: by which share it differs between clients, up or down.

    >>> group_pricing().stable.tolist()
    [5.0, 5.0]
    """
    mu = demand_table(demand)
    if not 0 <= checks.real("heterogeneity", heterogeneity) < 1:
        raise checks.InputError(f"heterogeneity must lie in [0, 1) around a sensitivity of 1, got {heterogeneity!r}")
    gamma = sensitivities(1.0, heterogeneity, clients, spread, seed)
    base = base_data(mu, base_spread, clients, seed)
    budget = 1.05 * gamma.max() * PRICES.upper * base.sum(-1).max()

    def initial(key: Key) -> Array:
        return jax.random.uniform(key, (mu.shape[1],), minval=1.0, maxval=3.0, dtype=jnp.float32)

    return Problem(
        name="group pricing",
        loss=loss,
        family=GroupShares(mu.shape[0]),
        reaction=Budgets(),
        clients={"mu": base, "gamma": gamma, "budget": copies(budget, clients)},
        initial=initial,
        project=PRICES,
        weights=weights,
    )
