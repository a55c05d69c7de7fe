"""Shelf prices of orange juice in 83 stores: what retraining does, and what prm and profl do in thirty price changes.

    python orange_juice.py --plot prices.png

Prices change every fourth week, so thirty changes are the 120 weeks that the demand was fitted to. All figures are
dollars of profit per store and week, in the long run, at the prices that a method ends with.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import profl
from profl.cases.orange_juice import dollars, orange_juice, own_dollars
from profl.data.orange_juice import BRANDS, COST, PRICE

WEEKS, CHANGES = 4, 30
PROMOTED = 5.0  # times as much of the brand that is on promotion
TILL = 30.0  # times as much of everything: the till counts cases for cartons


def promotion(key, weeks, prices, size):
    """Weeks in which one brand is on promotion and sells ``size`` times as much, at any price."""
    brand = jax.random.randint(key, (weeks.shape[0],), 0, weeks.shape[1])
    return weeks + jnp.log(size) * jax.nn.one_hot(brand, weeks.shape[1])


def broken_till(key, weeks, prices, size):
    return weeks + jnp.log(size)


def worlds(stores: Any = None) -> dict[str, profl.Problem]:
    """The stores as they are; with a fifth of their weeks on promotion; and with a till that is often broken, too.

    They differ in their shares of such weeks alone, so that one compiled program serves all three.
    """
    clean = orange_juice(stores)
    first = np.arange(clean.count) == 0

    def world(promoted: float, broken: float) -> profl.Problem:
        promotions = profl.worlds.contaminate(clean, promoted, promotion, distance=PROMOTED)
        return profl.worlds.contaminate(promotions, broken * first, broken_till, distance=TILL)

    return {"clean": world(0.0, 0.0), "promotions": world(0.2, 0.0), "and a broken till": world(0.2, 0.45)}


RUNS = {
    "retraining (pfl)": ("clean", profl.pfl(0.3), 1.0),
    "profl": ("clean", profl.profl(0.3), 1.0),
    "prm": ("clean", profl.prm(keep=4), 1.0),
    "prm, 60 % of the stores answer": ("clean", profl.prm(keep=4), 0.6),
    "prm, promotions": ("promotions", profl.prm(keep=4), 1.0),
    "prm, promotions and a broken till": ("and a broken till", profl.prm(keep=4), 1.0),
}
"""Name -> (world, method, the share of the stores that answer a price change)."""


def main(stores: Any = None, changes: int = CHANGES, seeds: int = 1) -> tuple[dict[str, float], np.ndarray]:
    """What a store earns in a week, by name, mean over the seeds; and the log price changes that prm ends with."""
    world, clean = worlds(stores), orange_juice(stores)
    found = {
        "prices as charged": dollars(clean, np.zeros(len(PRICE))),
        "stable point": dollars(clean, clean.stable),
        "optimum": dollars(clean, clean.optimum),
        "every store its own prices": own_dollars(clean),
    }
    prices = np.zeros(len(PRICE))
    for name, (where, method, share) in RUNS.items():
        settings = {"rounds": changes, "local_steps": 1, "samples": WEEKS, "participation": share}
        run = profl.simulate(world[where], method, seeds=range(seeds), record_every=changes, progress=False, **settings)
        ends = np.asarray(run.theta[:, -1], float)
        found[name] = float(np.mean([dollars(clean, theta) for theta in ends]))
        prices = ends[0] if name == "prm" else prices
    return found, prices


def plot(path: str, prices: np.ndarray, best: np.ndarray) -> None:
    """Prices before and after, in cents per ounce, with cost."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    rows = np.arange(len(BRANDS))[::-1]
    before, after, optimal = (100 * PRICE * np.exp(change) for change in (np.zeros(len(PRICE)), prices, best))
    axis.hlines(rows, before, after, color="0.7", zorder=1)
    axis.scatter(100 * COST, rows, marker="|", color="0.4", label="cost")
    axis.scatter(before, rows, color="tab:gray", label="as charged")
    axis.scatter(optimal, rows, marker="o", s=90, facecolors="none", edgecolors="tab:green", label="optimum")
    axis.scatter(after, rows, color="tab:blue", s=25, label=f"after {CHANGES} price changes by prm")
    axis.set_yticks(rows, BRANDS)
    axis.set_xlabel("cents per ounce")
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=int, help="how many of the 83 stores; all by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", help="a picture of the prices before and after")
    options = parser.parse_args()
    figures, ends = main(options.stores, seeds=options.seeds)
    for name, earned in figures.items():
        print(f"{name:42} {earned:8.2f}")
    if options.plot:
        plot(options.plot, ends, orange_juice(options.stores).optimum)
