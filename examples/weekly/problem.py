"""Prices of eleven orange juices: what is set, what comes in, what is earned."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import profl
from profl.data.orange_juice import BRANDS, COST, PRICE

OUNCES = np.array([int(brand.split()[-1]) for brand in BRANDS])  # of a carton
USUAL, COSTS = np.round(PRICE * OUNCES, 2), COST * OUNCES  # $ a carton


def loss(times_usual, sold):  # of one day in one store: minus the profit in $
    return -jnp.sum((times_usual * USUAL - COSTS) * sold)


@dataclass(frozen=True)
class InPercent(profl.Family):
    """f are the means of the logarithms of what is sold, so that customers answer in per cent."""

    def estimate(self, batch, weights):
        return weights @ jnp.log(jnp.maximum(batch, 0.01))

    def log_prob(self, z, f):
        return -0.5 * jnp.sum((jnp.log(jnp.maximum(z, 0.01)) - f) ** 2)

    def shift(self, z, delta):
        return z * jnp.exp(delta)


problem = profl.LiveProblem(
    name="orange juice",
    loss=loss,
    family=InPercent(),
    sample=np.zeros(len(BRANDS)),
    initial=np.ones(len(BRANDS)),  # prices as they are
    project=profl.Box(0.7, 1.5),  # nothing else is ever asked for
    signal=jnp.log,  # they answer to prices in per cent, too
    names=[f"price {brand}" for brand in BRANDS],
    columns=[f"sold {brand}" for brand in BRANDS],
)
