"""Problems that several tests use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

import profl
from profl import random
from profl.cases.pricing import negative_revenue
from profl.data import adult
from tests.made import made_adult

MADE_ADULT = adult.table(made_adult())

CASES = {
    "pricing": profl.cases.pricing,
    "pricing, exponential": lambda **kw: profl.cases.pricing(reaction="exponential", **kw),
    "group_pricing": profl.cases.group_pricing,
    "unified_pricing": profl.cases.unified_pricing,
    "strategic": profl.cases.strategic,
    "strategic, positive": lambda **kw: profl.cases.strategic(respond="positive", **kw),
    "housing": profl.cases.housing,
    "retail": profl.cases.retail,
    "sales": profl.cases.sales,
    "sales, negative binomial": lambda **kw: profl.cases.sales(demand="negative_binomial", link="identity", **kw),
    "choice": profl.cases.choice,
    "choice, shares": lambda **kw: profl.cases.choice(link="identity", **kw),
    "adult, made": lambda **kw: profl.cases.adult(**{"data": MADE_ADULT, "sensitivity": 3.0, **kw}),
}

QUICK = "least_squares"  # for runs in which the estimate of the reaction is not the subject: a third of the compiling

ALGORITHMS = {
    "pfl": profl.pfl(),
    "pofl": profl.pofl(),
    "pofl, least squares": profl.pofl(jacobian="least_squares"),
    "pofl, no exploration": profl.pofl(explore=None),
    "pofl, uncovered": profl.pofl(explore=profl.parts.Exploration(directions="uncovered", fade=0.5)),
    "pofl, paper": profl.pofl(jacobian="paper", window=4),
    "pofl, exact": profl.pofl(jacobian="exact"),
    "pofl, score": profl.pofl(second_term="score"),
    "profl": profl.profl(),
    "profl, paper": profl.profl(filter="paper", aggregate="median"),
    "profl, shared": profl.profl(filter="none", share=2, aggregate="history"),
    "profl, adaptive": profl.profl(filter="none", jacobian=QUICK, samples=profl.parts.AdaptiveSamples(0.2, 20, 40)),
    "profl, adaptive paper": profl.profl(
        filter="none", samples=profl.parts.AdaptiveSamples(1e3, 20, 80, rule="paper"), second_term="score"
    ),
    "pg": profl.pg(),
    "pg, least squares": profl.pg(jacobian=QUICK),
    "rgd": profl.rgd(),
    "rrm": profl.rrm(inner_steps=5),
}


@dataclass(frozen=True)
class CrossDemand(profl.worlds.Reaction):
    """Demand for one good answers the price of another: mu0 - A theta with an asymmetric A."""

    def parameters(self, theta, client):
        return client["mu0"] - client["a"] @ theta

    def sample(self, key, theta, client, n):
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed, theta, client):
        return -jnp.sum(theta * self.parameters(deployed, client))


def cross_pricing() -> profl.Problem:
    """PO solves (A + A^T) theta = mu0, PS solves A theta = mu0."""
    a = np.array([[2.0, 0.9, 0.0], [-0.5, 1.5, 0.4], [0.3, -0.8, 1.8]], np.float32)
    mu0 = np.array([3.0, 3.5, 4.0], np.float32)
    return profl.Problem(
        "cross pricing",
        negative_revenue,
        profl.GaussianMean(),
        CrossDemand(),
        clients={"mu0": np.tile(mu0, (2, 1)), "a": np.tile(a, (2, 1, 1))},
        initial=lambda key: jnp.array([1.0, 2.0, 1.5]),
        project=profl.Box(-5.0, 5.0),
    )


def spread_loss(theta, z):
    """Half the squared miss, and a little for every unit of z: both the mean and the spread of z cost."""
    return jnp.sum(0.5 * (theta - z) ** 2 + COST_OF_Z * z)


COST_OF_Z = 0.1


@dataclass(frozen=True)
class Spreading(profl.worlds.Reaction):
    """z ~ N(base + slope theta, exp(a + b theta)^2): both the mean and the spread grow with theta."""

    def parameters(self, theta, client):
        return jnp.concatenate([client["base"] + client["slope"] * theta, client["a"] + client["b"] * theta])

    def sample(self, key, theta, client, n):
        mean, log_sd = jnp.split(self.parameters(theta, client), 2)
        return mean + jnp.exp(log_sd) * random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed, theta, client):
        mean, log_sd = jnp.split(self.parameters(deployed, client), 2)
        return jnp.sum(0.5 * ((theta - mean) ** 2 + jnp.exp(2 * log_sd)) + COST_OF_Z * mean)


def spreading(clients=3, **changes) -> profl.Problem:
    """Retraining follows the mean, and so does a family without a spread; what it costs is mostly the spread."""
    share = np.linspace(0.8, 1.2, clients, dtype=np.float32)
    parts = {
        "name": "spreading",
        "loss": spread_loss,
        "family": profl.LocationScale(),
        "reaction": Spreading(),
        "clients": {"base": 1.0 + 1.5 * share, "slope": 0.3 * share, "a": 0 * share - 1.0, "b": 0.5 * share},
        "initial": lambda key: jax.random.uniform(key, (1,), minval=1.0, maxval=2.0),
        "project": profl.Box(-2.0, 6.0),
    }
    return profl.Problem(**{**parts, **changes})


def unmeasured(case: profl.Problem) -> profl.Problem:
    """The same data without exact answers: for runs that are compared with each other, half of the compiling."""
    return replace(case, reaction=profl.worlds.SampledReaction(case.reaction.sample))


def noting(clients, seen):
    """Live clients that note every deployment, as (client, step), in the list ``seen``."""

    class Noting:
        def __init__(self, number, client):
            self.number, self.client = number, client

        def deploy(self, theta, samples, step):
            seen.append((self.number, step))
            return self.client.deploy(theta, samples, step)

    return [Noting(*each) for each in enumerate(clients)]
