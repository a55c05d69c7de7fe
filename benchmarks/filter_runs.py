"""The robust filter in runs: ``python -m benchmarks.filter_runs [noise ...]``.

Pricing whose demand has the usual mean, with noise that is not normal; pofl and profl on clean data, profl with 20 % of
junk 30 off. Prints the mean excess over the optimum of the last tenth of the rounds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

import profl
from profl import random
from profl.cases.pricing import Demand, pricing
from profl.typing import Array, Batch, Client, Key

SELLS = 0.7  # share of the days on which a product sells


@dataclass(frozen=True)
class NotNormal(Demand):
    """Demand of the same mean with another noise."""

    noise: str = "exponential"

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        mean = self.parameters(theta, client)
        shape, (first, second) = (n, mean.shape[0]), jax.random.split(key)
        if self.noise == "exponential":
            return mean + jax.random.exponential(first, shape) - 1
        if self.noise == "Poisson":
            rate = jnp.maximum(mean, 0.0)  # by products of uniform numbers: any implementation of keys will do
            arrivals = jnp.cumsum(jax.random.exponential(first, (40, *shape)), axis=0)
            return jnp.sum(arrivals < rate, axis=0).astype(mean.dtype)
        sells = jax.random.bernoulli(second, SELLS, shape)
        return jnp.where(sells, mean / SELLS + random.normal(first, n, mean.shape[0]), 0.0)


def main() -> None:
    """Print a row per noise."""
    for noise in sys.argv[1:] or ("exponential", "Poisson", "30 % zeros"):
        case = pricing()
        case = replace(case, reaction=NotNormal(noise=noise))
        dirty = profl.worlds.contaminate(case, 0.2, "blob", distance=30)
        runs = [(case, profl.pofl()), (case, profl.profl()), (dirty, profl.profl())]
        ends = []
        for world, method in runs:
            run = profl.simulate(world, method, rounds=100, samples=500, seeds=5, progress=False)
            ends.append(f"{run.tail_excess().mean():.4f} kept {run.kept[:, -1].mean():.3f}{' told' * bool(run.notes)}")
        print(noise, *ends, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
