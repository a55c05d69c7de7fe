"""Orange juice at Dominick's: how the demand of 11 brands in 83 stores answers the shelf price.

A line per store and brand, fitted to about 116 weeks of scanner data,

    log ounces a week = log_ounces + elasticity (log price - log of the chain's mean price) + N(0, sd^2)

with the rivals' prices, deals and features at their means. ``orange_juice.csv`` lies beside this module and says where
the figures come from: they are fitted figures of the R package bayesm's ``orangeJuice``, not the data. Prices are the
chain's geometric means and costs its medians, in $ per ounce.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np

BRANDS = (
    "Tropicana Premium 64",
    "Tropicana Premium 96",
    "Florida's Natural 64",
    "Tropicana 64",
    "Minute Maid 64",
    "Minute Maid 96",
    "Citrus Hill 64",
    "Tree Fresh 64",
    "Florida Gold 64",
    "Dominick's 64",
    "Dominick's 128",
)
"""The number is a carton's size in ounces."""

PRICE = np.array([4.397, 4.838, 4.442, 3.494, 3.445, 4.156, 3.584, 3.365, 3.166, 2.647, 2.823]) / 100
COST = np.array([3.285, 3.471, 3.063, 2.391, 2.597, 2.972, 2.767, 2.422, 2.328, 1.762, 1.947]) / 100


class Demand(NamedTuple):
    """What was fitted, one row per store and one column per brand."""

    store: np.ndarray  # (stores,), Dominick's own numbers
    log_ounces: np.ndarray
    elasticity: np.ndarray
    sd: np.ndarray


@cache
def demand() -> Demand:
    """The fits of all stores.

    >>> demand().elasticity.shape, round(float(demand().elasticity.mean()), 2)
    ((83, 11), -2.92)
    """
    lines = resources.files(__package__).joinpath("orange_juice.csv").read_text(encoding="utf-8").splitlines()
    rows = np.array([line.split(",") for line in lines if line[0].isdigit()], dtype=float)
    table = rows.reshape(-1, len(BRANDS), rows.shape[1])
    return Demand(table[:, 0, 0].astype(int), table[:, :, 2], table[:, :, 3], table[:, :, 4])
