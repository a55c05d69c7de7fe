"""One reaction for all drawn problems: what kind of reaction and noise a client has stands in its numbers.

The mean of z is level + scale g(A (theta - ref)), where g is a mixture, by the client's ``link``, of

    e,    exp(e) - 1 (bent over above e = 1),    tanh(e), a threshold,    (d + 1) softmax(e, 0)_j - 1, a choice.

Noise is normal or Student's t with 4 degrees of freedom around that mean, with an sd that may follow theta, and a share
of rows may be zero; or z counts: Poisson, negative binomial, or Bernoulli times ``top``. Losses are sums over the
entries of z of a line, a square or a kink, whose expectations are exact, or the logistic loss of theta.z, by
quadrature. Problems of equal shape, loss and family so share one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.scipy.special import gammaln

from profl import random
from profl.cases.pricing import negative_revenue
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key
from profl_papers.drawn.losses import OVER, SHORT, cost, expected_over, profit_lost, square

LEVEL = 0.9  # of the quantile
SQUARE_RIDGE, QUANTILE_RIDGE, LOGISTIC_RIDGE = 0.3, 0.05, 0.1
BURDEN = 0.5
"""What a unit of z costs by itself, in the losses that else only ask for theta near z: where theta can follow z there
would be next to nothing to gain over retraining."""
COUNTS = 64  # values of a count
LEAST_MEAN, LARGEST_MEAN = 0.05, 16.0  # of a count
GRID = np.linspace(-6.0, 6.0, 201)
GRID_WEIGHTS = scipy.stats.norm.pdf(GRID) / scipy.stats.norm.pdf(GRID).sum()
NORMAL_NODES, T_NODES = GRID, scipy.stats.t.ppf(scipy.stats.norm.cdf(GRID), 4) / np.sqrt(2)
"""Quantiles of the normal and of the t of variance one at the same levels."""


def stock_and_service(theta: Array, z: Array) -> Array:
    """The cost of stocks, and of serving demand."""
    return cost(theta, z) + BURDEN * jnp.sum(z)


def ridged_square(theta: Array, z: Array) -> Array:
    """|theta - z|^2 / 2 with a ridge and the burden of z."""
    return square(theta, z) + 0.5 * SQUARE_RIDGE * jnp.sum(theta**2) + BURDEN * jnp.sum(z)


def quantile(theta: Array, z: Array) -> Array:
    """The pinball loss of a LEVEL quantile, with a ridge and the burden of z."""
    pinball = jnp.sum(jax.nn.relu(theta - z) - LEVEL * (theta - z))
    return pinball + 0.5 * QUANTILE_RIDGE * jnp.sum(theta**2) + BURDEN * jnp.sum(z)


def logistic(theta: Array, z: Array) -> Array:
    """log(1 + exp(-theta.z)) with a ridge; z are features times the label, 1 or -1."""
    return jax.nn.softplus(-jnp.sum(theta * z)) + 0.5 * LOGISTIC_RIDGE * jnp.sum(theta**2)


LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "revenue": negative_revenue,
    "cost": stock_and_service,
    "profit": profit_lost,
    "quantile": quantile,
    "square": ridged_square,
    "logistic": logistic,
}


def expected_t_over(u: Array) -> Array:
    """E max(u - e, 0), e Student's t with 4 degrees of freedom scaled to variance one."""
    v = jnp.sqrt(2.0) * u
    w = 1 + v**2 / 4
    density = 0.375 * w**-2.5
    share = 0.5 + 0.375 * v / jnp.sqrt(w) * (1 - v**2 / (12 * w))
    return (v * share + (4 + v**2) / 3 * density) / jnp.sqrt(2.0)


def soft_clip(values: Array, lower: float, upper: float) -> Array:
    """values between the bounds, smooth at both."""
    width = 0.02 * (upper - lower)
    inside = jax.nn.softplus((values - lower) / width) - jax.nn.softplus((values - upper) / width)
    return lower + width * inside


@dataclass(frozen=True)
class World(Reaction):
    """``loss``: a name in LOSSES; ``counts``: whether z counts; ``both``: whether f holds the log sd beside the mean.

    A client is {"level", "scale", "ref", "k": (d,), "a": (d, d), "link": (4,), "sd", "tail", "zeros": ()} and, where z
    counts, {"poisson", "bernoulli", "size", "top": ()}.
    """

    loss: str
    counts: bool = False
    both: bool = False

    def parameters(self, theta: Array, client: Client) -> Array:
        mean, variance = self.moments(theta, client)
        return jnp.concatenate([mean, 0.5 * jnp.log(variance)]) if self.both else mean

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        if self.counts:
            values, chances = self.table(theta, client)
            unit = jax.random.uniform(key, (theta.shape[0], n))
            rank = jax.vmap(jnp.searchsorted)(jnp.cumsum(chances, axis=1), unit)
            return (values[0] + (values[1] - values[0]) * jnp.minimum(rank, COUNTS - 1)).T
        keys = jax.random.split(key, 3)
        noise = random.normal(keys[0], n, theta.shape[0])
        chi = -2 * jnp.sum(jnp.log1p(-jax.random.uniform(keys[1], (n, 2))), axis=1, keepdims=True)
        heavy = noise * jnp.sqrt(2 / jnp.maximum(chi, 1e-6))  # one chi for a row: a multivariate t
        there = jax.random.uniform(keys[2], (n, 1)) >= client["zeros"]
        mean = self.mean(theta, client) / (1 - client["zeros"])
        return there * (mean + self.sd(theta, client) * jnp.where(client["tail"] > 0, heavy, noise))

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        mean, variance = self.moments(deployed, client)
        size, burden = 0.5 * jnp.sum(theta**2), BURDEN * jnp.sum(mean)
        if self.loss == "revenue":
            return -jnp.sum(theta * mean)
        if self.loss == "square":
            return 0.5 * jnp.sum((theta - mean) ** 2 + variance) + SQUARE_RIDGE * size + burden
        if self.loss == "logistic":
            return self.expected_logistic(deployed, theta, client)
        over = self.over(deployed, theta, client)
        if self.loss == "cost":
            return jnp.sum((OVER + SHORT) * over - SHORT * (theta - mean)) + burden
        if self.loss == "profit":
            return jnp.sum(OVER * theta - (OVER + SHORT) * (theta - over))
        return jnp.sum(over - LEVEL * (theta - mean)) + QUANTILE_RIDGE * size + burden

    def mean(self, theta: Array, client: Client) -> Array:
        """The mean of z, (d,); of counts, before it is clipped."""
        e = client["a"] @ (theta - client["ref"])
        bent = jnp.exp(e - jax.nn.softplus(4 * (e - 1)) / 4) - 1
        choice = (e.shape[0] + 1) * jax.nn.softmax(jnp.append(e, 0.0))[:-1] - 1
        return client["level"] + client["scale"] * (client["link"] @ jnp.stack([e, bent, jnp.tanh(e), choice]))

    def sd(self, theta: Array, client: Client) -> Array:
        """The sd of rows that are not zero, (d,)."""
        return client["sd"] * jnp.exp(1.5 * jnp.tanh(client["k"] * (theta - client["ref"])))

    def table(self, theta: Array, client: Client) -> tuple[Array, Array]:
        """The values of a count, (COUNTS,), and the chance of each in every entry of z, (d, COUNTS)."""
        k = jnp.arange(COUNTS, dtype=theta.dtype)
        mean = soft_clip(self.mean(theta, client), LEAST_MEAN, LARGEST_MEAN)[:, None]
        poisson = k * jnp.log(mean) - gammaln(k + 1)
        size = client["size"]
        negative = k * jnp.log(mean / (size + mean)) + gammaln(k + size) - gammaln(k + 1)
        counted = jax.nn.softmax(jnp.where(client["poisson"] > 0, poisson, negative), axis=1)
        bernoulli = client["bernoulli"] > 0
        share = soft_clip(self.mean(theta, client) / client["top"], 0.01, 0.99)[:, None]
        either = jnp.where(k == 0, 1 - share, jnp.where(k == 1, share, 0.0))
        return k * jnp.where(bernoulli, client["top"], 1.0), jnp.where(bernoulli, either, counted)

    def moments(self, theta: Array, client: Client) -> tuple[Array, Array]:
        """The means and variances of z, (d,) each."""
        if self.counts:
            values, chances = self.table(theta, client)
            mean = chances @ values
            return mean, chances @ values**2 - mean**2
        mean, zeros = self.mean(theta, client), client["zeros"]
        return mean, mean**2 * zeros / (1 - zeros) + (1 - zeros) * self.sd(theta, client) ** 2

    def over(self, deployed: Array, theta: Array, client: Client) -> Array:
        """E max(theta - z, 0) under D(deployed), (d,)."""
        if self.counts:
            values, chances = self.table(deployed, client)
            return jnp.sum(chances * jax.nn.relu(theta[:, None] - values), axis=1)
        sd, zeros = self.sd(deployed, client), client["zeros"]
        mean = self.mean(deployed, client) / (1 - zeros)
        heavy = sd * expected_t_over((theta - mean) / sd)
        present = jnp.where(client["tail"] > 0, heavy, expected_over(theta, mean, sd))
        return zeros * jax.nn.relu(theta) + (1 - zeros) * present

    def expected_logistic(self, deployed: Array, theta: Array, client: Client) -> Array:
        """theta.z is normal or t around theta.mean, with sd |theta * sd|; zero rows give log 2."""
        zeros = client["zeros"]
        centre = jnp.sum(theta * self.mean(deployed, client)) / (1 - zeros)
        width = jnp.sqrt(jnp.sum((theta * self.sd(deployed, client)) ** 2) + 1e-12)
        nodes = jnp.where(client["tail"] > 0, jnp.asarray(T_NODES), jnp.asarray(NORMAL_NODES)).astype(theta.dtype)
        present = jnp.asarray(GRID_WEIGHTS, theta.dtype) @ jax.nn.softplus(-(centre + width * nodes))
        ridge = 0.5 * LOGISTIC_RIDGE * jnp.sum(theta**2)
        return zeros * jnp.log(2.0) + (1 - zeros) * present + ridge
