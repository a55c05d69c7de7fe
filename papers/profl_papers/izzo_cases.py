"""The five problems of Izzo, Ying and Zou (2021), one client each, with the authors' constants.

pricing       z ~ N(mu0 - 1.5 theta, I) in R^5, loss -theta.z                       PO = mu0 / 3, PS = mu0 / 1.5
nonlinear     z ~ N(sqrt(1 + theta), 1), loss z theta                               PO = -2/3, PS = -1
mixture       N(theta - 0.5, 1) or N(1 - 0.3 theta, 0.5^2), even odds, loss z theta   PO = -0.3571, PS = -0.7143
regression    x ~ N(5/3, 1), y = 5/3 (1 + theta) x + noise, ridge regression        PO = -0.8374, PS = 7.7273
logistic      x ~ N(1, 0.5^2) or, of class 1, N(-1 - 3 theta_1, 0.5^2)              PO = (0.1438, -0.3159)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from profl import random
from profl.cases import housing
from profl.cases.pricing import PRICES, Demand, negative_revenue
from profl.cases.strategic import NODES, WEIGHTS
from profl.problem.families import ClassMeans, GaussianMean
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

MU0 = np.array([6.548814, 6.715189, 6.602763, 6.544883, 6.423655])
RIDGE = 0.01


def product(theta: Array, z: Array) -> Array:
    return jnp.sum(theta * z)


@dataclass(frozen=True)
class Root(Reaction):
    """z ~ N(sqrt(1 + theta), 1)."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return jnp.sqrt(jnp.maximum(client["level"] + theta, 1e-12))  # the root's slope at 0 is infinite

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + random.normal(key, n, 1)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return jnp.sum(theta * self.parameters(deployed, client))


@dataclass(frozen=True)
class Clusters(ClassMeans):
    """Two clusters whose labels are seen; the second has half the spread."""

    def log_prob(self, z: Batch, f: Array) -> Array:
        return super().log_prob(z, f) / jnp.where(z["y"] == 1, 0.25, 1.0)


def labelled_product(theta: Array, z: Batch) -> Array:
    return jnp.sum(theta * z["x"])


@dataclass(frozen=True)
class Mixture(Reaction):
    """The clusters' means are level + slope theta; their spreads 1 and 0.5."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["level"] + client["slope"] * theta[0]

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        label, noise = jax.random.split(key)
        y = jax.random.bernoulli(label, 0.5, (n,)).astype(jnp.int32)
        spread = jnp.where(y == 1, 0.5, 1.0)[:, None]
        return {"x": self.parameters(theta, client)[y][:, None] + spread * random.normal(noise, n, 1), "y": y}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return theta[0] * jnp.mean(self.parameters(deployed, client))


def penalised(theta: Array, z: Batch) -> Array:
    """Cross-entropy of theta_0 + theta_1 x, and RIDGE / 2 |theta|^2."""
    score = theta[0] + theta[1] * z["x"][0]
    return jax.nn.softplus(score) - z["y"] * score + 0.5 * RIDGE * jnp.sum(theta**2)


@dataclass(frozen=True)
class MovingClass(Reaction):
    """Class 0 stays at 1, class 1 is at -1 - eps theta_1; both have sd 0.5."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return jnp.stack([jnp.ones_like(theta[1]), -1 - client["eps"] * theta[1]])

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        label, noise = jax.random.split(key)
        y = jax.random.bernoulli(label, 0.5, (n,)).astype(jnp.int32)
        return {"x": self.parameters(theta, client)[y][:, None] + 0.5 * random.normal(noise, n, 1), "y": y}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        nodes, weights = (jnp.asarray(values, theta.dtype) for values in (NODES, WEIGHTS))
        scores = theta[0] + theta[1] * (self.parameters(deployed, client)[:, None] + 0.5 * nodes)
        losses = jax.nn.softplus(scores) - jnp.array([[0.0], [1.0]], theta.dtype) * scores
        return jnp.mean(losses @ weights) + 0.5 * RIDGE * jnp.sum(theta**2)


def uniform(low: float, high: float, size: int = 1) -> Callable[[Key], Array]:
    return lambda key: jax.random.uniform(key, (size,), minval=low, maxval=high, dtype=jnp.float32)


def pricing() -> Problem:
    middle = jnp.asarray((MU0 / 3 + MU0 / 1.5) / 2, jnp.float32)
    return Problem(
        "izzo2021 pricing",
        negative_revenue,
        GaussianMean(),
        Demand(),
        {"mu0": MU0[None], "gamma": np.array([1.5])},
        lambda key: PRICES(middle + jax.random.normal(key, (5,), dtype=jnp.float32)),
        PRICES,
    )


def nonlinear() -> Problem:
    clients = {"level": np.ones(1)}
    return Problem("nonlinear", product, GaussianMean(), Root(), clients, uniform(0.5, 1.0), Box(-1.0, 1.0))


def mixture() -> Problem:
    clients = {"level": np.array([[-0.5, 1.0]]), "slope": np.array([[1.0, -0.3]])}
    middle = -(0.357143 + 0.714286) / 2
    start = uniform(middle - 1, middle + 1)
    box = Box(-1.0, 1.0)
    return Problem("mixture", labelled_product, Clusters(), Mixture(), clients, lambda key: box(start(key)), box)


def regression() -> Problem:
    return housing(clients=1, heterogeneity=0)


def logistic() -> Problem:
    family, clients = ClassMeans(2, sd=0.5), {"eps": np.array([3.0])}
    return Problem("logistic", penalised, family, MovingClass(), clients, uniform(-1.0, 1.0, 2), Box(-10.0, 10.0))


CASES: dict[str, Callable[[], Problem]] = {
    "pricing": pricing,
    "nonlinear": nonlinear,
    "mixture": mixture,
    "regression": regression,
    "logistic": logistic,
}
