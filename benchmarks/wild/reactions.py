"""Reactions of the named wild problems, with the exact risk of their losses.

z ~ N(mean(theta, client), sd(theta, client)^2), independent entries; a loss whose expectation under a normal is known
in closed form gives the decoupled risk E l(theta, z) = expected(theta, mean(deployed), sd(deployed)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from profl import random
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key
from profl_papers.drawn.losses import OVER, SHORT, expected_over


def lost_sale(theta: Array, z: Batch) -> Array:
    """Minus the price of the product that was chosen; z["group"] past the products is no purchase."""
    return -jnp.append(theta, 0.0)[z["group"]]


def expected_cost(theta: Array, mean: Array, sd: Array) -> Array:
    return jnp.sum((OVER + SHORT) * expected_over(theta, mean, sd) - SHORT * (theta - mean))


def expected_profit_lost(theta: Array, mean: Array, sd: Array) -> Array:
    return jnp.sum(OVER * theta - (OVER + SHORT) * (theta - expected_over(theta, mean, sd)))


def expected_lost_revenue(theta: Array, mean: Array, sd: Array) -> Array:
    return -jnp.sum(theta * mean)


def expected_square(theta: Array, mean: Array, sd: Array) -> Array:
    return 0.5 * jnp.sum((theta - mean) ** 2 + sd**2)


def rising(theta: Array, client: Client) -> Array:
    """mu + gamma theta."""
    return client["mu"] + client["gamma"] * theta


def falling(theta: Array, client: Client) -> Array:
    """a - b theta."""
    return client["a"] - client["b"] * theta


def exponential(theta: Array, client: Client) -> Array:
    """a exp(-b theta)."""
    return client["a"] * jnp.exp(-client["b"] * theta)


def thresholds(theta: Array, client: Client) -> Array:
    """Demand of groups of people who buy below their threshold: sum over groups of a / (1 + exp((theta - c) / w))."""
    z = (client["c"] - theta[:, None]) / client["w"]
    return jnp.sum(client["a"] * jax.nn.sigmoid(z), axis=-1)


@dataclass(frozen=True)
class Normal(Reaction):
    """z ~ N(mean(theta, client), sd^2 I) with the expectation of one loss in closed form."""

    mean: Callable[[Array, Client], Array]
    expected: Callable[[Array, Array, Array], Array]
    sd: float = 1.0

    def parameters(self, theta: Array, client: Client) -> Array:
        return self.mean(theta, client)

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.mean(theta, client) + self.sd * random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return self.expected(theta, self.mean(deployed, client), jnp.asarray(self.sd, theta.dtype))


@dataclass(frozen=True)
class Spreading(Reaction):
    """z ~ N(mu + gamma theta, (s exp(k theta))^2); ``both`` where the family holds the log sd beside the mean."""

    both: bool

    def parameters(self, theta: Array, client: Client) -> Array:
        mean, log_sd = self._describe(theta, client)
        return jnp.concatenate([mean, log_sd]) if self.both else mean

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        mean, log_sd = self._describe(theta, client)
        return mean + jnp.exp(log_sd) * random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        mean, log_sd = self._describe(deployed, client)
        return expected_square(theta, mean, jnp.exp(log_sd))

    @staticmethod
    def _describe(theta: Array, client: Client) -> tuple[Array, Array]:
        return rising(theta, client), jnp.log(client["s"]) + client["k"] * theta


@dataclass(frozen=True)
class Choice(Reaction):
    """One product or none: P(j) = exp(a_j - b theta_j) / (1 + sum_k exp(a_k - b theta_k)).

    A sample is one-hot over the products, all zero where nothing is bought; or, with ``grouped``, {"group": number},
    where the last is no purchase.
    """

    grouped: bool

    def shares(self, theta: Array, client: Client) -> Array:
        """The chance of every product and, last, of no purchase: (d + 1,)."""
        return jax.nn.softmax(jnp.append(client["a"] - client["b"] * theta, 0.0))

    def parameters(self, theta: Array, client: Client) -> Array:
        shares = self.shares(theta, client)
        return shares if self.grouped else shares[:-1]

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        unit = jax.random.uniform(key, (n,))
        group = jnp.sum(unit[:, None] > jnp.cumsum(self.shares(theta, client))[:-1], axis=-1)
        return {"group": group} if self.grouped else jax.nn.one_hot(group, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * self.shares(deployed, client)[:-1])
