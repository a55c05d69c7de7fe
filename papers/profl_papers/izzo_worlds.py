"""The constants of the five worlds in Izzo, Zou and Ying (2022), and a problem for every seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from profl.problem.families import GaussianMean
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.typing import Array
from profl_papers.stateful import SpamMean, Spammers, StatefulMean, spam_loss

SETTLED = 0.01
"""What is left of a gap once the mean has settled."""


def revenue_loss(theta: Array, z: Array) -> Array:
    return -jnp.sum(theta * z)


def penalised_loss(theta: Array, z: Array) -> Array:
    return revenue_loss(theta, z) + 0.5 * jnp.sum(theta**2)


def rate(settling: float) -> float:
    """delta with which a mean settles in so many steps: 1 - 0.01^(1/k).

    >>> rate(1), round(rate(32), 4)
    (0.99, 0.134)
    """
    return float(1 - SETTLED ** (1 / settling))


def spd(size: int) -> np.ndarray:
    """The positive definite matrix that scikit-learn's ``make_spd_matrix(size, random_state=0)`` makes."""
    draws = np.random.RandomState(0)  # of the old kind, as there
    square = draws.uniform(size=(size, size))
    left, _, right = np.linalg.svd(square.T @ square)
    return left @ (1.0 + np.diag(draws.uniform(size=size))) @ right


def toy(world: str, seed: int, delta: float, slope: np.ndarray, noise: float, n: int, edge: float) -> Problem:
    """mu* = A theta + 2: PO = (-2A)^-1 b, PS = (-A)^-1 b. A run begins half way between, plus N(0, I)."""
    size = len(slope)
    draws, level = np.random.default_rng([seed, 0]), np.full(size, 2.0)
    first = 0.75 * np.linalg.solve(-slope, level) + draws.standard_normal(size)
    client = {"A": slope, "b": level, "delta": np.float64(delta), "start": draws.standard_normal(size)}
    sd = noise * n**0.5
    return _problem(world, revenue_loss, GaussianMean(sd), StatefulMean(world, sd), client, first, Box(-edge, edge))


def linear(seed: int, n: int, *, settling: float, noise: float = 1e-3) -> Problem:
    return toy("linear", seed, rate(settling), -0.8 * spd(5), noise, n, 10.0)


def nonlinear(seed: int, n: int, *, delta: float = 0.684, noise: float = 1e-3) -> Problem:
    return toy("nonlinear", seed, delta, -0.8 * np.eye(5), noise, n, 5.0)


def oscillating(seed: int, n: int, *, settling: float = 32, noise: float = 1e-3) -> Problem:
    return toy("oscillating", seed, rate(settling), -0.8 * spd(2), noise, n, 10.0)


def bottleneck(seed: int, n: int, *, noise: float = 0.1, penalised: bool = True) -> Problem:
    """A seed draws mu0. Unless it is ``penalised``, methods do not see |theta|^2 / 2, which counts all the same."""
    draws, size = np.random.default_rng([seed, 1]), 5
    mu0 = draws.uniform(size=size)
    mu0 /= np.linalg.norm(mu0)
    edge, sd = size**-0.5, noise * n**0.5
    first = np.clip(draws.standard_normal(size), -edge, edge)
    reaction = StatefulMean("bottleneck", sd, ridge=1.0)
    loss = penalised_loss if penalised else revenue_loss
    return _problem("bottleneck", loss, GaussianMean(sd), reaction, {"mu0": mu0, "start": mu0}, first, Box(-edge, edge))


def spam(seed: int, n: int, *, noise: float = 1e-3) -> Problem:
    first = np.random.default_rng([seed, 2]).standard_normal(2)
    level = np.array([1.0, 2.0])
    client = {
        "A": -2.0 * np.eye(2),
        "b": level,
        "delta": np.float64(0.25),
        "start": level,
        "other": np.array([2.0, 1.0]),
    }
    return _problem("spam", spam_loss, SpamMean(noise), Spammers("spam", noise * n**0.5), client, first, Box(-3.0, 3.0))


WORLDS: dict[str, Callable[..., Problem]] = {
    "linear": linear,
    "nonlinear": nonlinear,
    "oscillating": oscillating,
    "bottleneck": bottleneck,
    "spam": spam,
}


def _problem(name: str, loss: Any, family: Any, reaction: Any, client: Any, first: np.ndarray, box: Box) -> Problem:
    clients = {key: np.asarray(value)[None] for key, value in client.items()}
    begin = np.clip(first, box.lower, box.upper)
    return Problem(name, loss, family, reaction, clients, lambda key: jnp.asarray(begin, jnp.float32), box)
