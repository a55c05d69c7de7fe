"""Worlds with a state: the five of Izzo, Zou and Ying (AISTATS 2022, arXiv 2112.07042), each with its long run exact.

Data come from z ~ N(mu_t, sd^2 I) with mu_t = m(theta_t, mu_{t-1}), and the loss is l = -theta.z + (c/2)|theta|^2:

    linear        m = delta mu*(theta) + (1 - delta) mu            mu* = A theta + b                  in the end mu*
    nonlinear     the same with delta^(mu^2) for delta, in every coordinate                           in the end mu*
    oscillating   m = delta mu*(theta) - (1 - delta) mu                               in the end delta / (2 - delta) mu*
    bottleneck    m = (1 - theta.mu) mu0                                              in the end mu0 / (1 + theta.mu0)

In the fifth, ``spam``, letters are classified and the mean of those that are spam moves as in ``linear``.

The authors look at the mean through noise of a stated size. Here it is the mean of n samples whose
spread makes that noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import random
from profl.problem.families import Family, average
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key


def target(theta: Array, client: Client) -> Array:
    """mu*(theta) = A theta + b."""
    return client["A"] @ theta + client["b"]


def _linear(theta: Array, mu: Array, client: Client) -> Array:
    return client["delta"] * target(theta, client) + (1 - client["delta"]) * mu


def _nonlinear(theta: Array, mu: Array, client: Client) -> Array:
    rate = client["delta"] ** (mu**2)
    return rate * target(theta, client) + (1 - rate) * mu


def _oscillating(theta: Array, mu: Array, client: Client) -> Array:
    return client["delta"] * target(theta, client) - (1 - client["delta"]) * mu


def _bottleneck(theta: Array, mu: Array, client: Client) -> Array:
    return (1 - jnp.sum(theta * mu)) * client["mu0"]


MOVES: dict[str, Callable[[Array, Array, Client], Array]] = {
    "linear": _linear,
    "nonlinear": _nonlinear,
    "oscillating": _oscillating,
    "bottleneck": _bottleneck,
    "spam": _linear,
}
"""m(theta, mu), of every world"""

ENDS: dict[str, Callable[[Array, Client], Array]] = {
    "linear": target,
    "nonlinear": target,
    "oscillating": lambda theta, client: client["delta"] / (2 - client["delta"]) * target(theta, client),
    "bottleneck": lambda theta, client: client["mu0"] / (1 + jnp.sum(theta * client["mu0"])),
    "spam": target,
}
"""Where mu_t ends once theta is deployed for good"""


@dataclass(frozen=True)
class StatefulMean(Reaction):
    """A mean that moves; a client is {"start": mu_0, and what its world asks for}."""

    world: str
    sd: float
    ridge: float = 0.0  # c

    def parameters(self, theta: Array, client: Client) -> Array:
        return ENDS[self.world](theta, client)

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.sample_in(self.parameters(theta, client), key, theta, client, n)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return self.risk_in(self.parameters(deployed, client), deployed, theta, client)

    def start(self, theta: Array, client: Client) -> Any:
        return client["start"]

    def move(self, state: Any, key: Key, theta: Array, client: Client) -> Any:
        return MOVES[self.world](theta, state, client)

    def sample_in(self, state: Any, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return state + self.sd * random.normal(key, n, state.shape[0])

    def risk_in(self, state: Any, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * state) + self.ridge / 2 * jnp.sum(theta**2)


# -- spam --------------------------------------------------------------------------------------------------------------

SPREAD = 0.5
"""Standard deviation of both classes."""
RIDGE = 0.1
NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


@dataclass(frozen=True)
class SpamMean(Family):
    """z = {"x", "y"}; f is the mean of x among spam (y = 1), the class that moves; ``noise`` is that of f_hat."""

    noise: float

    def estimate(self, batch: Batch, weights: Array) -> Array:
        member = weights * batch["y"]
        return average(member / jnp.sum(member), batch["x"])

    def log_prob(self, z: Batch, f: Array) -> Array:
        return -0.5 * z["y"] * jnp.sum((z["x"] - f) ** 2) / SPREAD**2

    def shift(self, z: Batch, delta: Array) -> Batch:
        return {**z, "x": z["x"] + z["y"] * delta}

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return jnp.full_like(f, self.noise**2)


def spam_loss(theta: Array, z: Batch) -> Array:
    score = jnp.sum(theta * z["x"])
    return jax.nn.softplus(score) - z["y"] * score + RIDGE / 2 * jnp.sum(theta**2)


@dataclass(frozen=True)
class Spammers(StatefulMean):
    """Half of all letters are spam. A client is {"A", "b", "delta", "start", "other": the other half's mean}."""

    def sample_in(self, state: Any, key: Key, theta: Array, client: Client, n: int) -> Batch:
        """Each class around its mean; that of spam is off by ``sd`` / sqrt(n), whatever the spread of the letters."""
        spread, off = random.normal(key, n + 1, state.shape[0]), self.sd / np.sqrt(n)
        y = (jnp.arange(n) % 2).astype(spread.dtype)
        around = spread[:n] - (y @ spread[:n] / jnp.sum(y)) * y[:, None]
        mean = jnp.where(y[:, None] == 1, state + off * spread[n], client["other"])
        return {"x": mean + SPREAD * around, "y": y}

    def risk_in(self, state: Any, deployed: Array, theta: Array, client: Client) -> Array:
        """Scores are Gaussian: an integral over one number, by Gauss and Hermite."""
        nodes, weights = (jnp.asarray(numbers, theta.dtype) for numbers in (NODES, NODE_WEIGHTS / NODE_WEIGHTS.sum()))
        square = jnp.sum(theta**2)
        sd = SPREAD * jnp.sqrt(jnp.where(square > 0, square, 1.0)) * (square > 0)
        means = jnp.stack([jnp.sum(theta * state), jnp.sum(theta * client["other"])])
        signs = jnp.array([-1.0, 1.0], means.dtype)
        losses = jax.nn.softplus(signs[:, None] * (means[:, None] + sd * nodes))
        return jnp.mean(losses @ weights) + RIDGE / 2 * square
