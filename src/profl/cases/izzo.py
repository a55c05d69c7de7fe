"""Three small problems of Izzo, Ying and Zou (2021) in which retraining ends far from the optimum.

Beside these they use ``pricing`` and ``housing``. Clients differ by ``heterogeneity``, the half-width of gamma_i around
the reaction that is theirs; with equal clients (the default) the answers are

    case               PO                 risk         PS                 risk
    nonlinear          -2/3               -0.384900    -1                 0
    mixture            -0.357143          -0.0446429   -0.714286          0
    logistic_shift     0.1438, -0.3159    0.6172       0.5214, -0.6015    0.6786
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.cases.common import sensitivities
from profl.cases.responding import MeasuredClassMeans
from profl.cases.strategic import NODES, WEIGHTS
from profl.problem.families import ClassMeans, GaussianMean
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

LEAST_ROOT = 1e-14  # under the square root, whose slope at 0 is infinite
RIDGE = 0.01


def uniform(low: float, high: float, size: int, key: Key) -> Array:
    """``size`` numbers drawn uniformly between ``low`` and ``high``."""
    return jax.random.uniform(key, (size,), minval=low, maxval=high, dtype=jnp.float32)


# -- nonlinear ---------------------------------------------------------------------------------------------------------


def product(theta: Array, z: Array) -> Array:
    """z theta."""
    return jnp.sum(z * theta)


@dataclass(frozen=True)
class RootMean(Reaction):
    """z ~ N(sqrt(gamma (theta + 1)), 1); a client is {"gamma": ()}."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return jnp.sqrt(jnp.maximum(client["gamma"] * (theta + 1), LEAST_ROOT))

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + random.normal(key, n, 1)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return product(theta, self.parameters(deployed, client))


@checks.explain_call
def nonlinear(
    clients: int = 10, heterogeneity: float = 0.0, weights: Any = None, seed: int = 0, *, spread: str = "even"
) -> Problem:
    """A mean that follows the root of the model, loss z theta (Izzo et al. 2021).

    >>> case = nonlinear()
    >>> round(float(case.optimum[0]), 4), float(case.stable[0])
    (-0.6667, -1.0)
    """
    return Problem(
        name="nonlinear",
        loss=product,
        family=GaussianMean(),
        reaction=RootMean(),
        clients={"gamma": sensitivities(1.0, heterogeneity, clients, spread, seed)},
        initial=lambda key: uniform(0.5, 1.0, 1, key),
        project=Box(-1.0, 1.0),
        weights=weights,
    )


# -- mixture -----------------------------------------------------------------------------------------------------------


def product_in_mixture(theta: Array, z: Batch) -> Array:
    """x theta of one sample."""
    return product(theta, z["x"])


@dataclass(frozen=True)
class TwoClusters(Reaction):
    """Half of z from N(gamma theta - 0.5, 1), half from N(1 - 0.3 gamma theta, 0.5^2); a client is {"gamma": ()}."""

    def parameters(self, theta: Array, client: Client) -> Array:
        slope, base = jnp.array([1.0, -0.3], theta.dtype), jnp.array([-0.5, 1.0], theta.dtype)
        return base + slope * client["gamma"] * theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        which, noise = jax.random.split(key)
        cluster = jax.random.bernoulli(which, 0.5, (n,)).astype(jnp.int32)
        sd = jnp.array([1.0, 0.5])[cluster]
        z = self.parameters(theta, client)[cluster] + sd * random.normal(noise, n, 1)[:, 0]
        return {"x": z[:, None], "y": cluster}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return product(theta, jnp.mean(self.parameters(deployed, client)))


@checks.explain_call
def mixture(
    clients: int = 10, heterogeneity: float = 0.0, weights: Any = None, seed: int = 0, *, spread: str = "even"
) -> Problem:
    """Two clusters, seen as such, of which one follows the model and one flees it, loss z theta (Izzo et al. 2021).

    >>> case = mixture()
    >>> round(float(case.optimum[0]), 4), round(float(case.stable[0]), 4)
    (-0.3571, -0.7143)
    """
    space = Box(-1.0, 1.0)
    return Problem(
        name="mixture",
        loss=product_in_mixture,
        family=MeasuredClassMeans(),
        reaction=TwoClusters(),
        clients={"gamma": sensitivities(1.0, heterogeneity, clients, spread, seed)},
        initial=lambda key: space(-0.535714 + uniform(-1.0, 1.0, 1, key)),  # (PO + PS) / 2 + U(-1, 1)
        project=space,
        weights=weights,
    )


# -- logistic ----------------------------------------------------------------------------------------------------------


def intercept_cross_entropy(theta: Array, z: Batch) -> Array:
    """-log sigmoid(+-(theta_0 + theta_1 x)) + 0.005 |theta|^2 of one sample."""
    score = theta[0] + theta[1] * z["x"][0]
    return jax.nn.softplus(score) - z["y"] * score + 0.5 * RIDGE * jnp.sum(theta**2)


def slope(theta: Array) -> Array:
    """What people react to."""
    return theta[1:]


@dataclass(frozen=True)
class ClassOneMoves(Reaction):
    """x | 0 ~ N(1, sd^2), x | 1 ~ N(-1 - gamma theta_1, sd^2), equally many; a client is {"gamma": ()}."""

    sd: float = 0.5

    def parameters(self, theta: Array, client: Client) -> Array:
        return jnp.stack([jnp.ones_like(theta[1]), -1 - client["gamma"] * theta[1]])

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        label, noise = jax.random.split(key)
        y = jax.random.bernoulli(label, 0.5, (n,)).astype(jnp.int32)
        return {"x": self.parameters(theta, client)[y][:, None] + self.sd * random.normal(noise, n, 1), "y": y}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        x = self.parameters(deployed, client)[:, None] + self.sd * jnp.asarray(NODES, theta.dtype)
        scores = theta[0] + theta[1] * x
        losses = jax.nn.softplus(scores * jnp.array([[1.0], [-1.0]], theta.dtype))
        return jnp.mean(losses @ jnp.asarray(WEIGHTS, theta.dtype)) + 0.5 * RIDGE * jnp.sum(theta**2)

    def accuracy(self, deployed: Array, theta: Array, client: Client) -> Array:
        centre = theta[0] + theta[1] * self.parameters(deployed, client)
        signs = jnp.array([-1.0, 1.0], theta.dtype)
        width = self.sd * jnp.maximum(jnp.abs(theta[1]), 1e-30)
        return jnp.mean(jax.scipy.stats.norm.cdf(signs * centre / width))


@checks.explain_call
def logistic_shift(
    clients: int = 10,
    heterogeneity: float = 0.0,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = 3.0,
    spread: str = "even",
) -> Problem:
    """Logistic regression with an intercept, class 1 moves against the slope (Izzo et al. 2021).

    >>> case = logistic_shift()
    >>> case.optimum.round(4).tolist(), case.stable.round(4).tolist()
    ([0.1438, -0.3159], [0.5214, -0.6015])
    """
    return Problem(
        name="logistic shift",
        loss=intercept_cross_entropy,
        family=ClassMeans(sd=0.5),
        reaction=ClassOneMoves(),
        clients={"gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed)},
        initial=lambda key: uniform(-1.0, 1.0, 2, key),
        project=Box(-10.0, 10.0),
        weights=weights,
        signal=slope,
    )
