"""Pricing where customers buy less and groups of them leave: both dynamics of the paper's system model at once.

    D_i(theta) = sum_k nu_ik(theta) N(mu_ik(theta), sd^2 I)
    mu_ik(theta) = mu_ik - gamma_i theta                        what group k wants falls with the prices, as in pricing
    nu_ik(theta) = r_ik / sum_k' r_ik',  r_ik = B - theta.mu_ik(theta)      who stays is who has budget left, as in
                                                                            group_pricing

The paper's theory treats the two apart (contribution dynamics, distribution dynamics). Loss: -theta.z. The bill
theta.mu_ik(theta) is at most |mu_ik|^2 / (4 gamma_i), and B is ``budget`` times the largest of these, so r > 0 for
every theta. Retraining stops where the mean demand is zero. A family of one half ends off the optimum: one that knows
only the means (``ClassMeans``) charges the big spenders too much, one that knows only the shares nearly retrains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import base_data, copies, sensitivities
from profl.cases.group_pricing import DEMAND, demand_table, draw_groups
from profl.cases.pricing import PRICES, negative_revenue
from profl.problem.mixtures import GroupMixture
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key


def loss(theta: Array, z: Batch) -> Array:
    """-theta.x of one customer, who buys x."""
    return negative_revenue(theta, z["x"])


@dataclass(frozen=True)
class LeavingDemand(Reaction):
    """Demand falls and shares follow remaining budgets; a client is {"mu": (K, d), "gamma": (), "budget": ()}."""

    sd: float = 1.0

    def means(self, theta: Array, client: Client) -> Array:
        """What each group buys on average, (K, d)."""
        return client["mu"] - client["gamma"] * theta

    def shares(self, theta: Array, client: Client) -> Array:
        """Which share of the customers each group is, (K,)."""
        left = client["budget"] - self.means(theta, client) @ theta
        return left / jnp.sum(left)

    def parameters(self, theta: Array, client: Client) -> Array:
        return jnp.concatenate([self.shares(theta, client), self.means(theta, client).ravel()])

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        who, noise = jax.random.split(key)
        group = draw_groups(who, self.shares(theta, client), n)
        x = self.means(theta, client)[group] + self.sd * random.normal(noise, n, theta.shape[0])
        return {"x": x, "group": group}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -self.shares(deployed, client) @ (self.means(deployed, client) @ theta)


@checks.explain_call
def unified_pricing(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    demand: Any = DEMAND,
    sensitivity: float = 1.5,
    budget: float = 1.05,
    spread: str = "even",
    base_spread: float = 0.0,
) -> Problem:
    """Prices at retailers whose customer groups buy less when prices rise, and leave with their budgets.

    Args:
      demand: mean demand of each group (row) for each good (column), of goods that cost nothing.
      budget: B over the largest bill that a group can have; shares move the less the more it is.
      base_spread: by which share ``demand`` differs between clients, up or down.

    >>> case = unified_pricing(heterogeneity=0)
    >>> case.optimum.round(3).tolist(), case.stable.round(3).tolist()
    ([0.706, 0.605], [1.48, 1.198])
    """
    mu = demand_table(demand)
    if not checks.real("heterogeneity", heterogeneity) < checks.positive("sensitivity", sensitivity):
        raise checks.InputError(f"heterogeneity must be below sensitivity, {sensitivity!r}, got {heterogeneity!r}")
    if not checks.real("budget", budget) > 1:
        raise checks.InputError(f"budget must be above 1, that of the largest bill, got {budget!r}")
    gamma = sensitivities(sensitivity, heterogeneity, clients, spread, seed)
    base = base_data(mu, base_spread, clients, seed)
    largest = np.max(np.sum(base**2, axis=-1) / (4 * gamma[:, None]))
    if not largest > 0:
        raise checks.InputError("demand must be above 0 somewhere, got a table of zeros")

    def initial(key: Key) -> Array:
        return jax.random.uniform(key, (mu.shape[1],), minval=0.5, maxval=1.5, dtype=jnp.float32)

    return Problem(
        name="unified pricing",
        loss=loss,
        family=GroupMixture(mu.shape[0]),
        reaction=LeavingDemand(),
        clients={"mu": base, "gamma": gamma, "budget": copies(budget * largest, clients)},
        initial=initial,
        project=PRICES,
        weights=weights,
    )
