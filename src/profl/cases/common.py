"""What the case studies share: how clients differ in sensitivity and base data, and the loss of linear regression."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Array, Batch

MOST_CLIENTS = 10**8  # their numbers alone take gigabytes
BASE_STREAM = 16  # of the seed's random numbers, the first that base data are drawn from


def sensitivities(mean: float, heterogeneity: float, clients: int, spread: str, seed: int) -> np.ndarray:
    """gamma_i in [mean - h, mean + h]: evenly spaced, or drawn uniformly from there.

    >>> sensitivities(1.5, 0.5, 3, "even", 0).tolist()
    [1.0, 1.5, 2.0]
    """
    checks.positive_int("clients", clients, most=MOST_CLIENTS)
    checks.real("sensitivity", mean)
    checks.positive_int("seed", seed, least=0)
    checks.one_of("spread", spread, ["even", "uniform"])
    if checks.real("heterogeneity", heterogeneity) < 0:
        raise checks.InputError(f"heterogeneity must be 0 or more, got {heterogeneity!r}")
    if clients == 1 or heterogeneity == 0:
        return np.full(clients, float(mean))
    if spread == "even":
        return np.linspace(mean - heterogeneity, mean + heterogeneity, clients)
    return generator(seed, 1).uniform(mean - heterogeneity, mean + heterogeneity, clients)


def generator(seed: int, stream: int) -> np.random.Generator:
    """The random numbers of a case's seed; each thing that is drawn has a stream of its own."""
    return np.random.default_rng([checks.positive_int("seed", seed, least=0), stream])


def base_data(value: object, base_spread: float, clients: int, seed: int, part: int = 0) -> np.ndarray:
    """Every client's base data, (clients, ...): ``value`` times 1 + u, u uniform in [-base_spread, base_spread].

    Each number of each client has a u of its own, drawn from the case's seed; ``part`` parts the tables of one case.
    Without a spread these are copies. Below 1 no number changes its sign.

    >>> base_data([6.0, 7.0], 0.0, 2, seed=0).tolist()
    [[6.0, 7.0], [6.0, 7.0]]
    """
    if not 0 <= checks.real("base_spread", base_spread) < 1:
        raise checks.InputError(f"base_spread must lie in [0, 1), a share of the base data, got {base_spread!r}")
    same = copies(value, checks.positive_int("clients", clients, most=MOST_CLIENTS))
    if base_spread == 0:
        return same
    return same * (1 + generator(seed, BASE_STREAM + part).uniform(-base_spread, base_spread, same.shape))


def ridge_regression_loss(ridge: float, theta: Array, z: Batch) -> Array:
    """0.5 ((theta.x - y)^2 + ridge |theta|^2)."""
    return 0.5 * ((z["x"] @ theta - z["y"]) ** 2 + ridge * jnp.sum(theta**2))


def copies(value: object, clients: int) -> np.ndarray:
    """The same value in every client's row."""
    array = np.asarray(value, dtype=float)
    return np.broadcast_to(array, (clients, *array.shape))
