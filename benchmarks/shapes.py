"""Data as they come: clean samples of many shapes, in coordinates with mean zero and deviation one, and junk beside
them.

Sales, claims and clicks are skewed, counted, mostly zero or rounded; a filter must leave them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array, Key

Sampler = Callable[[Key, tuple[int, int]], Array]
"""Samples of a shape (n, d)."""

CORRELATION, CONDITION = 0.95, 1e4
ROOT3 = math.sqrt(3)


def unit(draw: Sampler, mean: float, deviation: float) -> Sampler:
    """Samples of mean zero and deviation one."""
    return lambda key, shape: (draw(key, shape) - mean) / deviation


def poisson(rate: float) -> Sampler:
    return unit(lambda key, shape: 1.0 * jax.random.poisson(key, rate, shape), rate, math.sqrt(rate))


def bernoulli(p: float) -> Sampler:
    return unit(lambda key, shape: 1.0 * jax.random.bernoulli(key, p, shape), p, math.sqrt(p * (1 - p)))


def geometric(p: float) -> Sampler:
    def draw(key: Key, shape: tuple[int, int]) -> Array:
        return jnp.floor(jnp.log(jax.random.uniform(key, shape, minval=1e-7)) / math.log(1 - p))

    return unit(draw, (1 - p) / p, math.sqrt(1 - p) / p)


def often_zero(share: float, draw: Sampler, mean: float, square: float) -> Sampler:
    """Zero with the given share, else drawn: with mean ``mean`` and mean square ``square``."""

    def mixed(key: Key, shape: tuple[int, int]) -> Array:
        first, second = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(first, share, shape), 0.0, draw(second, shape))

    part = 1 - share
    return unit(mixed, part * mean, math.sqrt(part * square - (part * mean) ** 2))


def lognormal(key: Key, shape: tuple[int, int]) -> Array:
    return jnp.exp(jax.random.normal(key, shape))


MEAN, SQUARE = math.exp(0.5), math.exp(2.0)  # of a lognormal
WIDE = math.sqrt(SQUARE - MEAN**2)
SHAPES: dict[str, Sampler] = {
    "Gaussian": jax.random.normal,
    "uniform": lambda key, shape: jax.random.uniform(key, shape, minval=-ROOT3, maxval=ROOT3),
    "t(3)": lambda key, shape: jax.random.t(key, 3.0, shape) / ROOT3,
    "exponential": unit(jax.random.exponential, 1.0, 1.0),
    "lognormal(1)": unit(lognormal, MEAN, WIDE),
    "Pareto(3)": unit(lambda key, shape: jax.random.pareto(key, 3.0, shape), 1.5, math.sqrt(0.75)),
    "Poisson(0.05)": poisson(0.05),
    "Poisson(0.7)": poisson(0.7),
    "Poisson(1)": poisson(1.0),
    "Poisson(3)": poisson(3.0),
    "Poisson(20)": poisson(20.0),
    "geometric(0.3)": geometric(0.3),
    "Bernoulli(0.02)": bernoulli(0.02),
    "Bernoulli(0.1)": bernoulli(0.1),
    "Bernoulli(0.5)": bernoulli(0.5),
    "95 % zeros": often_zero(0.95, jax.random.exponential, 1.0, 2.0),
    "claims, 70 % zeros": often_zero(0.7, lognormal, MEAN, SQUARE),
    "claims, 30 % zeros": often_zero(0.3, lognormal, MEAN, SQUARE),
    "rounded": lambda key, shape: jnp.round(2 * jax.random.normal(key, shape)) / 2.0414,
    "rounded lognormal": unit(lambda key, shape: jnp.round(3 * lognormal(key, shape)), 3 * MEAN, 3 * WIDE),
}


def condition(d: int) -> np.ndarray:
    """A map to coordinates whose covariance has the condition 1e4, along no axis."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(d, d)))[0]
    return turn * np.geomspace(1, CONDITION**-0.5, d)


def correlated(d: int) -> np.ndarray:
    """A map to coordinates that are correlated by 0.95, each with each."""
    spread, turn = np.linalg.eigh(CORRELATION + (1 - CORRELATION) * np.eye(d))
    return turn * np.sqrt(spread)


# -- junk --------------------------------------------------------------------------------------------------------------


def cloud(towards: np.ndarray, noise: float = 1.0) -> Sampler:
    return lambda key, shape: jnp.asarray(towards, jnp.float32) + noise * jax.random.normal(key, shape)


def shell(distance: float) -> Sampler:
    def draw(key: Key, shape: tuple[int, int]) -> Array:
        z = jax.random.normal(key, shape)
        return distance * z / jnp.linalg.norm(z, axis=1, keepdims=True)

    return draw


def half_shell(distance: float) -> Sampler:
    def draw(key: Key, shape: tuple[int, int]) -> Array:
        z = shell(distance)(key, shape)
        return z.at[:, 0].set(jnp.abs(z[:, 0]))

    return draw


def ray(distance: float) -> Sampler:
    """From the middle of the data along the diagonal."""
    return lambda key, shape: (
        jnp.full(shape[1], distance / math.sqrt(shape[1])) * jax.random.uniform(key, (shape[0], 1))
    )


def disc(distance: float) -> Sampler:
    """Thin and wide, across the first axis at ``distance`` along it."""
    return lambda key, shape: (distance * jax.random.normal(key, shape)).at[:, 0].set(distance)


def flat_disc(distance: float) -> Sampler:
    """Thin and wide, through the middle of the data."""
    return lambda key, shape: (distance * jax.random.normal(key, shape)).at[:, 0].set(0.0)


SURROUNDING = {"shell": shell, "half a shell": half_shell, "ray": ray, "disc": disc, "flat disc": flat_disc}
