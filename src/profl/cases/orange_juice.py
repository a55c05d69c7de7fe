"""Shelf prices of orange juice, 83 stores whose customers answer them (distribution dynamics, fitted to real weeks).

theta_b is the log of brand b's price relative to the chain's mean price, one price list for all stores. A sample is
one week of a store: the log of the ounces it sells of each brand,

    z ~ N(a_i + eta_i theta, diag(sd_i^2)),    loss = - sum_b (price_b e^theta_b - cost_b) e^z_b / 1000

with the intercepts a_i, own-price elasticities eta_i and residual spreads of ``profl.data.orange_juice``: the loss is
minus the profit of a store-week in thousands of dollars. e^z has the mean e^(a + eta theta + sd^2 / 2), so everything
is known in closed form. Rivals' prices are held at their means.

In dollars per store and week: 775.69 at the prices that were charged, 877.07 at the optimum, 888.45 with prices of its
own in every store. Retraining takes demand as given, so every increase pays: it ends at the upper bound, at 684.50.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.data.orange_juice import COST, PRICE, demand
from profl.problem.families import GaussianMean
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Theta


def negative_profit(theta: Array, z: Array) -> Array:
    """Minus the profit of one store-week, in thousands of dollars; z is log ounces."""
    price, cost = jnp.asarray(PRICE, theta.dtype), jnp.asarray(COST, theta.dtype)
    return -jnp.sum((price * jnp.exp(theta) - cost) * jnp.exp(z)) / 1000


@dataclass(frozen=True)
class Shoppers(Reaction):
    """Log ounces around a + eta theta; a client is {"level": (11,), "elasticity": (11,), "sd": (11,)}."""

    level = "level"  # what moves where demand drifts

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["level"] + client["elasticity"] * theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + client["sd"] * random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return negative_profit(theta, self.parameters(deployed, client) + client["sd"] ** 2 / 2)


@checks.explain_call
def orange_juice(
    clients: Any = None,
    heterogeneity: float = 1.0,
    weights: Any = None,
    *,
    bound: float = 0.5,
) -> Problem:
    """Shelf prices of 11 orange juices at 83 real stores, profit in thousands of dollars per store and week.

    Runs start at the prices that were charged, theta = 0.

    Args:
      clients: which stores: None for all 83, a number for so many of them, spread evenly over the list, or a list of
        their numbers (``profl.data.orange_juice.demand().store``).
      heterogeneity: how much stores' elasticities differ: 1 as fitted, 0 not at all (the brand's mean everywhere).
      weights: alpha_i; equal by default.
      bound: prices may be e^bound times the chain's mean price, or as much lower.

    >>> case = orange_juice()
    >>> case.count, round(dollars(case, case.optimum)), round(dollars(case, case.stable))
    (83, 877, 684)
    """
    checks.positive("bound", bound)
    if checks.real("heterogeneity", heterogeneity) < 0:
        raise checks.InputError(f"heterogeneity must be 0 or more, got {heterogeneity!r}")
    fitted, rows = demand(), _stores(clients)
    mean = fitted.elasticity.mean(0)
    noise = np.sqrt(np.mean(fitted.sd**2, axis=0))

    def initial(key: Key) -> Array:
        return jnp.zeros(len(PRICE), jnp.float32)

    return Problem(
        name="orange juice",
        loss=negative_profit,
        family=GaussianMean(sd=tuple(noise.tolist())),
        reaction=Shoppers(),
        clients={
            "level": fitted.log_ounces[rows],
            "elasticity": mean + heterogeneity * (fitted.elasticity[rows] - mean),
            "sd": fitted.sd[rows],
        },
        initial=initial,
        project=Box(-float(bound), float(bound)),
        weights=weights,
    )


def dollars(problem: Problem, theta: Theta) -> float:
    """What a store earns in a week at these prices, in dollars, mean over the stores."""
    return -1000 * problem.risk(theta)


def own_prices(problem: Problem) -> np.ndarray:
    """The best theta of every store by itself, (stores, 11): price = cost eta / (1 + eta), within the bounds.

    A brand with an elasticity above -1 earns more the dearer it is: its price is at the upper bound.
    """
    eta = problem.clients["elasticity"]
    markup = np.where(eta < -1, eta / np.where(eta < -1, 1 + eta, 1.0), np.inf)
    with jax.enable_x64(True):
        return np.asarray(problem.project(np.log(COST / PRICE * markup)))


def own_dollars(problem: Problem) -> float:
    """What a store earns in a week when every store sets prices of its own: more than any one list can."""
    return float(-1000 * problem.weights @ problem.own_risks(own_prices(problem)))


def shelf_prices(theta: Any) -> np.ndarray:
    """The prices in $ per ounce.

    >>> shelf_prices(np.zeros(11))[:2].tolist()
    [0.04397, 0.04838]
    """
    return PRICE * np.exp(np.asarray(theta, float))


def _stores(clients: Any) -> np.ndarray:
    """Rows of the stores that take part."""
    known = demand().store
    if clients is None:
        return np.arange(len(known))
    if not isinstance(clients, Iterable) or isinstance(clients, str):
        count = checks.positive_int("clients", clients)
        if count > len(known):
            raise checks.InputError(f"clients must be at most {len(known)}, the number of stores, got {count}")
        return np.round(np.linspace(0, len(known) - 1, count)).astype(int)
    chosen = [checks.positive_int("every store", store) for store in clients]
    if unknown := sorted(set(chosen) - set(known.tolist())):
        raise checks.InputError(f"unknown stores {unknown}; there are: {', '.join(map(str, known))}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise checks.InputError(f"clients must name at least one store, and each one once, got {chosen}")
    return np.searchsorted(known, chosen)
