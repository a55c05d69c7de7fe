"""Prices where sales are counted, and where buyers choose (distribution dynamics; not in the paper).

theta are the prices of d goods and the loss is minus the revenue.

``sales``: a sample is a day's sales of every good, whole numbers around

    mu_i(theta) = mu0 exp(-gamma_i theta / 4),    Poisson, or negative binomial with variance mu + dispersion mu^2

as with the exponential demand of ``pricing``, whose optimum and stable point are therefore the same.

``choice``: a sample is one buyer, who takes good k or nothing, by multinomial logit:

    P(k) = exp(v_k - gamma_i theta_k) / (1 + sum_j exp(v_j - gamma_i theta_j)),    l(theta, k) = -theta_k

What is sold today never argues for a lower price: retraining drives every price to the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from profl import checks
from profl.cases.common import copies, generator, sensitivities
from profl.cases.group_pricing import draw_groups
from profl.cases.pricing import PRICES, Demand, negative_revenue
from profl.problem.counts import CHOICE_LINKS, COUNT_LINKS, Categorical, NegativeBinomial, Poisson
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

BITS = 7
"""Counts that are drawn are below 2^7: of a mean of 7 with a variance of 31, one in ten million is not."""


def draw_counts(key: Key, mean: Array, dispersion: float, n: int) -> Array:
    """n rows of counts of these means (d,): Poisson where the dispersion is 0, else negative binomial.

    A count is the number of k at which the distribution function lies below a uniform number, found by bisection.
    """
    k: Any = np.arange(2**BITS - 1)[:, None]
    mean = jnp.maximum(mean, np.finfo(np.float32).tiny)
    if dispersion:
        size = 1 / dispersion
        ways = gammaln(k + size) - gammaln(k + 1.0) - gammaln(size)
        log_p = ways + k * jnp.log(mean / (mean + size)) + size * jnp.log(size / (mean + size))
    else:
        log_p = k * jnp.log(mean) - mean - gammaln(k + 1.0)
    below, good = jnp.cumsum(jnp.exp(log_p), axis=0), np.arange(mean.shape[0])
    draws = jax.random.uniform(key, (n, mean.shape[0]), dtype=mean.dtype)
    count = jnp.zeros(draws.shape, jnp.int32)
    for step in 2 ** np.arange(BITS)[::-1]:
        count = count + step.astype(np.int32) * (below[count + (step - 1), good] < draws)
    return count.astype(mean.dtype)


@dataclass(frozen=True)
class CountedDemand(Demand):
    """Whole sales around mu_i(theta); a client is {"mu0": (d,), "gamma": ()}."""

    curve: str = "exponential"
    dispersion: float = 0.0  # none: Poisson
    link: str = "log"

    def parameters(self, theta: Array, client: Client) -> Array:
        means = super().parameters(theta, client)
        return jnp.log(means) if self.link == "log" else means

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return draw_counts(key, super().parameters(theta, client), self.dispersion, n)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * super().parameters(deployed, client))


@dataclass(frozen=True)
class Choice(Reaction):
    """Multinomial logit; a client is {"value": (d,), "gamma": ()}. A sample is 0 for nothing, k for good k."""

    link: str = "logit"

    def shares(self, theta: Array, client: Client) -> Array:
        """Of nothing, and of every good: (1 + d,)."""
        utility = client["value"] - client["gamma"] * theta
        return jax.nn.softmax(jnp.concatenate([jnp.zeros_like(utility[:1]), utility]))

    def parameters(self, theta: Array, client: Client) -> Array:
        if self.link == "logit":
            return client["value"] - client["gamma"] * theta
        return self.shares(theta, client)[1:]

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return draw_groups(key, self.shares(theta, client), n)

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * self.shares(deployed, client)[1:])


def choice_loss(theta: Array, z: Array) -> Array:
    """Minus what one buyer pays: nothing, or the price of good z = 1, 2, ..."""
    return -jnp.concatenate([jnp.zeros_like(theta[:1]), theta])[z]


@jax.jit
def _between(key: Key, like: Array) -> Array:
    """Prices between 1 and 4."""
    return jax.random.uniform(key, like.shape, minval=1.0, maxval=4.0, dtype=like.dtype)


def _start(goods: int) -> Callable[[Key], Array]:
    """The prices that a run starts from."""
    like = np.zeros(goods, np.float32)

    def initial(key: Key) -> Array:
        return _between(key, like)

    return initial


@checks.explain_call
def sales(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    demand: str = "poisson",
    dispersion: float = 0.5,
    link: str = "log",
    goods: int = 5,
    sensitivity: float = 1.5,
    spread: str = "even",
) -> Problem:
    """Prices for ``goods`` goods from counted sales, which fall exponentially with the price.

    Args:
      demand: "poisson" or "negative_binomial".
      dispersion: of negative binomial sales, whose variance is mean + dispersion mean^2.
      link: of the family: "log" for f the logarithms of the means, which are linear in the prices, or "identity".

    >>> case = sales(goods=2, heterogeneity=0, demand="negative_binomial")
    >>> case.optimum.round(3).tolist(), case.stable.tolist()  # 4 / gamma, and the bound
    ([2.667, 2.667], [5.0, 5.0])
    """
    checks.positive_int("goods", goods)
    checks.positive("sensitivity", sensitivity)
    checks.positive("dispersion", dispersion)
    checks.one_of("link", link, COUNT_LINKS)
    known = checks.one_of("demand", demand, ["poisson", "negative_binomial"])
    mu0 = generator(seed, 0).uniform(6.0, 7.0, goods)
    return Problem(
        name=f"sales ({demand.replace('_', ' ')})",
        loss=negative_revenue,
        family=Poisson(link) if known == "poisson" else NegativeBinomial(dispersion, link),
        reaction=CountedDemand(dispersion=0.0 if known == "poisson" else dispersion, link=link),
        clients={
            "mu0": copies(mu0, clients),
            "gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed),
        },
        initial=_start(goods),
        project=PRICES,
        weights=weights,
    )


@checks.explain_call
def choice(
    clients: int = 10,
    heterogeneity: float = 0.25,
    weights: Any = None,
    seed: int = 0,
    *,
    link: str = "logit",
    goods: int = 5,
    sensitivity: float = 1.0,
    spread: str = "even",
) -> Problem:
    """Prices of ``goods`` goods, of which every buyer takes one or none (multinomial logit).

    Args:
      link: of the family: "logit" for f the log-odds against none, which are linear in the prices, or "identity", the
        shares.

    >>> case = choice(goods=2)
    >>> case.risk(case.optimum) < 2 * case.risk(case.stable) < 0
    True
    """
    checks.positive_int("goods", goods)
    checks.positive("sensitivity", sensitivity)
    checks.one_of("link", link, CHOICE_LINKS)
    return Problem(
        name="choice",
        loss=choice_loss,
        family=Categorical(goods, link),
        reaction=Choice(link),
        clients={
            "value": copies(generator(seed, 0).uniform(1.0, 2.0, goods), clients),
            "gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed),
        },
        initial=_start(goods),
        project=PRICES,
        weights=weights,
    )
