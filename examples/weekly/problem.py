"""Prices of eleven orange juices: what is set, what comes in, what is earned."""

import jax.numpy as jnp
import numpy as np

import profl
from profl.data.orange_juice import BRANDS, COST, PRICE

OUNCES = np.array([int(brand.split()[-1]) for brand in BRANDS])  # of a carton
USUAL, COSTS = np.round(PRICE * OUNCES, 2), COST * OUNCES  # $ a carton


def loss(times_usual, sold):  # of one day in one store: minus the profit in $
    return -jnp.sum((times_usual * USUAL - COSTS) * sold)


problem = profl.LiveProblem(
    name="orange juice",
    loss=loss,
    family=profl.GaussianMean(),  # how many cartons are sold of each, on average
    sample=np.zeros(len(BRANDS)),
    initial=np.ones(len(BRANDS)),  # prices as they are
    project=profl.Box(0.7, 1.5),  # nothing else is ever asked for
    names=[f"price {brand}" for brand in BRANDS],
    columns=[f"sold {brand}" for brand in BRANDS],
)
