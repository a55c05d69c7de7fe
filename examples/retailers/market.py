"""The customers of one retailer: a process that turns prices in a database into orders. profl knows nothing of it.

    python market.py orders.db --retailer 2

It waits for rows in ``prices`` and answers each deployment with one row per day in ``orders``: what was sold of every
good. Demand falls with the price; how steeply differs from retailer to retailer. A deployment that was answered is
answered for good, so asking again after a crash gives the same orders.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import time
from math import sqrt

BASE = (60.0, 50.0, 40.0)  # units a day that would go at no price
STEEPNESS = (8.0, 9.0, 10.0, 11.0, 12.0)  # units lost per unit of price, by retailer


def expected(retailer: int, prices: list[float]) -> list[float]:
    """Mean sales of a day."""
    return [max(0.0, base - STEEPNESS[retailer] * price) for base, price in zip(BASE, prices, strict=True)]


def revenue(prices: list[float]) -> float:
    """Mean revenue of a day, over all retailers: what profl is to find the maximum of."""
    takings = [sum(p * q for p, q in zip(prices, expected(r, prices), strict=True)) for r in range(len(STEEPNESS))]
    return sum(takings) / len(takings)


def best_prices() -> list[float]:
    """The true optimum: base / (2 * mean steepness)."""
    return [base / (2 * sum(STEEPNESS) / len(STEEPNESS)) for base in BASE]


def open_database(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # an example: losing the last orders in a power cut is fine
    connection.executescript(
        """
        CREATE TABLE IF NOT EXISTS prices (deployment INTEGER PRIMARY KEY, a REAL, b REAL, c REAL, days INTEGER);
        CREATE TABLE IF NOT EXISTS orders (deployment INTEGER, day INTEGER, a INTEGER, b INTEGER, c INTEGER,
                                           PRIMARY KEY (deployment, day));
        """
    )
    return connection


def answer(
    connection: sqlite3.Connection, retailer: int, deployment: int, prices: list[float], days: int, seed: int = 0
) -> None:
    """The orders that a deployment brings in; other customers with another seed."""
    draw = random.Random(f"{retailer} {deployment} {seed}")
    means = expected(retailer, prices)
    rows = [
        (deployment, day, *(max(0, round(draw.gauss(mean, sqrt(mean) if mean > 1 else 1.0))) for mean in means))
        for day in range(days)
    ]
    connection.execute("BEGIN")
    connection.execute("DELETE FROM orders WHERE deployment = ?", (deployment,))
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--retailer", type=int, required=True)
    options = parser.parse_args()
    connection = open_database(options.database)
    seen: dict[int, tuple] = {}
    while True:
        for deployment, *offer in connection.execute("SELECT * FROM prices ORDER BY deployment").fetchall():
            if seen.get(deployment) != tuple(offer):
                answer(connection, options.retailer, deployment, offer[:3], offer[3])
                seen[deployment] = tuple(offer)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
