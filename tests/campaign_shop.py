"""Two shops with two prices, as files that the command line takes: a problem, and what a week brings in."""

from __future__ import annotations

import numpy as np
import pandas

DAYS = 7
PROBLEM = """
import numpy as np
import profl

problem = profl.LiveProblem(
    "shop", lambda price, sold: -price @ sold, profl.GaussianMean(sd=1.0), np.zeros(2), np.array([2.0, 3.0]),
    profl.Box(0.0, 6.0), names=["apples", "pears"], columns=["sold_apples", "sold_pears"],
)
method = profl.pofl(jacobian="least_squares")
nothing = 3
"""
POFL = ("--method", "pofl", "--jacobian", "least_squares")
"""A method that is quick to compile."""


def sold(asked: pandas.DataFrame) -> pandas.DataFrame:
    """Seven days of every shop at the prices that it was asked to set: demand is 8 - 1.5 times the price."""
    rows = []
    for one in asked.to_dict("records"):
        days = np.random.default_rng(one["deployment"]).normal(size=(DAYS, 2))
        days += 8 - 1.5 * np.array([one["apples"], one["pears"]])
        rows += [{"client": one["client"], "sold_apples": day[0], "sold_pears": day[1]} for day in days]
    return pandas.DataFrame(rows)
