"""Five retailers, each with its own database of orders: what profl needs to know, and nothing else.

A loss (minus the revenue of a day), a family (mean sales), and a client that deploys prices and waits for orders.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import profl
from profl.run.flower.federation import Federation

RETAILERS = 5
DAYS = 60  # of orders after each change of prices


def minus_revenue(prices, sold):
    """Of one day, in hundreds."""
    return -jnp.sum(prices * sold) / 100


problem = profl.LiveProblem(
    name="retailers",
    loss=minus_revenue,
    family=profl.GaussianMean(sd=5.0),
    sample=np.zeros(3),
    initial=np.array([4.0, 3.5, 3.0]),
    project=profl.Box(0.0, 6.0),
)


class Retailer:
    """Sets prices in a database and reads the orders that follow."""

    def __init__(self, number: int, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / f"retailer-{number}.db"

    def deploy(self, prices, samples, step):
        """``step`` numbers the deployments: after a crash the same one is asked for again, and is answered the same."""
        connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            offer = (step, *map(float, prices), samples)
            old = connection.execute("SELECT * FROM prices WHERE deployment = ?", (step,)).fetchone()
            if old != offer:
                connection.execute("BEGIN")
                connection.execute("DELETE FROM orders WHERE deployment = ?", (step,))
                connection.execute("INSERT OR REPLACE INTO prices VALUES (?, ?, ?, ?, ?)", offer)
                connection.execute("COMMIT")
            while True:
                rows = connection.execute("SELECT a, b, c FROM orders WHERE deployment = ?", (step,)).fetchall()
                if len(rows) >= samples:
                    return np.array(rows, dtype=float)
                time.sleep(0.005)
        finally:
            connection.close()


def client(number: int) -> Retailer:
    """What a Flower node runs; every node would have a folder of its own."""
    return Retailer(number, os.environ["RETAILERS"])


SETTINGS = {"rounds": 25, "local_steps": 1, "samples": DAYS, "timeout": 30.0}  # few rounds: changing prices is dear
federation = Federation(problem, profl.prm(), RETAILERS, **SETTINGS)
# PRM sends 16 messages per round, and a Flower node starts a process for each: with all nodes on one machine that takes
# half a minute. Where each has its own machine, and a deployment takes a day, PRM is the one to take.
over_flower = Federation(problem, profl.pofl(0.5), RETAILERS, **{**SETTINGS, "rounds": 6, "local_steps": 10})
