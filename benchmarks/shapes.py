"""Data as they come: clean samples of many shapes, in coordinates with mean zero and deviation one, and junk beside
them.

Sales, claims and clicks are skewed, counted, mostly zero or rounded; a filter must leave them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

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


# -- shapes that nobody listed ----------------------------------------------------------------------------------------

SIZES, DIMENSIONS = (20, 50, 100, 200, 500, 1000), (1, 2, 5, 10, 20)
MOST_ZEROS, MOST_JUNK, NEAREST, FARTHEST = 0.6, 0.4, 3.0, 300.0
SMALLEST_SCALE, LARGEST_SCALE = 1e-2, 1e2


class Marginal(NamedTuple):
    """One column: its quantile function, mean and standard deviation."""

    name: str
    quantile: Callable[[np.ndarray], np.ndarray]
    mean: float
    sd: float


def _frozen(name: str, law: Any) -> Marginal:
    return Marginal(name, law.ppf, float(law.mean()), float(law.std()))


MARGINALS = (
    _frozen("normal", stats.norm()),
    _frozen("normal(5, 1)", stats.norm(5, 1)),
    _frozen("uniform", stats.uniform()),
    _frozen("t(3)", stats.t(3)),
    _frozen("exponential", stats.expon()),
    _frozen("gamma(3)", stats.gamma(3)),
    _frozen("lognormal(0.5)", stats.lognorm(0.5)),
    _frozen("lognormal(1)", stats.lognorm(1)),
    _frozen("Pareto(3)", stats.pareto(3)),
    _frozen("Poisson(0.5)", stats.poisson(0.5)),
    _frozen("Poisson(3)", stats.poisson(3)),
    _frozen("Poisson(20)", stats.poisson(20)),
    _frozen("geometric(0.3)", stats.geom(0.3, loc=-1)),
    _frozen("Bernoulli(0.3)", stats.bernoulli(0.3)),
)


class DrawnShape(NamedTuple):
    """Clean samples of a drawn shape; a sample is zero in each column with the column's own probability."""

    n: int
    d: int
    columns: tuple[Marginal, ...]
    zeros: np.ndarray
    scales: np.ndarray
    root: np.ndarray
    """(d, d): the square root of the correlation of the normals that the columns are made of."""
    step: float
    """Values are rounded to multiples of it, in deviations of the column; 0: they are not."""

    @property
    def name(self) -> str:
        families = sorted({column.name for column in self.columns})
        zeros = f", {self.zeros.max():.0%} zeros" if self.zeros.any() else ""
        return (
            f"{' + '.join(families)}{zeros}{', correlated' if self.root[-1, 0] else ''}{', rounded' * (self.step > 0)}"
        )

    @property
    def mean(self) -> np.ndarray:
        return self.scales * (1 - self.zeros) * [column.mean for column in self.columns]

    @property
    def sd(self) -> np.ndarray:
        mean, sd = np.array([(column.mean, column.sd) for column in self.columns]).T
        stay = 1 - self.zeros
        return self.scales * np.sqrt(stay * (sd**2 + mean**2) - (stay * mean) ** 2)

    def sample(self, random: np.random.Generator, trials: int) -> np.ndarray:
        """(trials, n, d)."""
        normals = random.normal(size=(trials, self.n, self.d)) @ self.root.T
        parts = np.clip(special.ndtr(normals), 1e-12, 1 - 1e-12)
        values = np.stack([column.quantile(parts[..., j]) for j, column in enumerate(self.columns)], -1) * self.scales
        if self.step > 0:
            unit = self.step * self.scales * [column.sd for column in self.columns]
            values = np.round(values / unit) * unit
        return np.where(random.random(values.shape) < self.zeros, 0.0, values)


class DrawnJunk(NamedTuple):
    """Junk around the mean of clean data, in deviations of their columns; every sample is ``distance`` away or more
    (a cloud's middle is)."""

    kind: str
    share: float
    distance: float
    direction: np.ndarray

    def sample(self, random: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
        """(trials, n, d), in deviations."""
        normals = random.normal(size=shape)
        around = normals / np.linalg.norm(normals, axis=-1, keepdims=True)
        outward = random.pareto(1.0, (*shape[:-1], 1)) + 1
        return {
            "blob": self.distance * self.direction + normals,
            "point": np.broadcast_to(self.distance * self.direction, shape),
            "ray": self.distance * self.direction * (1 + random.random((*shape[:-1], 1))),
            "shell": self.distance * around,
            "heavy tail": self.distance * around * outward,
        }[self.kind]


KINDS = ("blob", "point", "ray", "shell", "heavy tail")


def drawn_shape(seed: int) -> DrawnShape:
    """The clean shape of that seed."""
    random = np.random.default_rng([seed, 0])
    n, d = int(random.choice(SIZES)), int(random.choice(DIMENSIONS))
    one = random.random() < 0.5
    picked = np.full(d, random.integers(len(MARGINALS))) if one else random.integers(len(MARGINALS), size=d)
    empty = random.random(d) < 0.5 if not one else np.full(d, random.random() < 0.5)
    zeros = np.where(empty, random.uniform(0, MOST_ZEROS, d), 0.0)
    scales = np.exp(random.uniform(np.log(SMALLEST_SCALE), np.log(LARGEST_SCALE), d))
    common = random.choice([0.0, random.uniform(0, 0.95)])
    root = np.linalg.cholesky(common + (1 - common) * np.eye(d))
    step = float(random.choice([0.0, 0.0, 0.0, random.uniform(0.05, 1.0)]))
    return DrawnShape(n, d, tuple(MARGINALS[i] for i in picked), zeros, scales, root, step)


def drawn_junk(seed: int, d: int, nearest: float = NEAREST, most: float = MOST_JUNK) -> DrawnJunk:
    """The junk of that seed, so far away at least and of such a share at most."""
    random = np.random.default_rng([seed, 1])
    kind = str(random.choice(KINDS))
    towards = [np.eye(d)[random.integers(d)], np.ones(d), random.normal(size=d)][random.integers(3)]
    distance = float(np.exp(random.uniform(np.log(nearest), np.log(FARTHEST))))
    sign = random.choice([-1, 1])
    return DrawnJunk(kind, float(random.uniform(0, most)), distance, sign * towards / np.linalg.norm(towards))
