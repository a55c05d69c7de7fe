"""Pricing with demand that is not Gaussian, in a run: what the filter costs where nothing is junk, or a fifth.

Demand has the mean of ``profl.cases.pricing`` and so the same exact answers, but it is exponential, counted (Poisson,
also where hardly anybody buys) or that of two kinds of customers that nobody declared. Of these, the filter is shown
vetted samples: from a batch alone nobody can tell a second kind from junk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import random
from profl.cases import pricing
from profl.cases.pricing import Demand
from profl.methods import pofl, profl
from profl.parts.filters import RobustFilter
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl.typing import Array, Batch, Client, Key
from profl_papers.claims import Part, at_most

SAMPLES = 500
NO_WORSE = 1.1
"""How many times PoFL's excess ProFL's may be on clean data."""
JUNK, DISTANCE = 0.2, 10
TIMES, MORE = 1.5, 0.01
"""At most TIMES the excess of the clean run plus MORE, as in Figure 2a."""
KINDS, APART = 0.3, 6.0
"""The share of the second kind, and how many deviations more it buys."""
COUNTS = 32
"""Counts up to so many: demand is 7 at most."""
RARE, DEAREST = 0.1, 2.0
"""Rare sales: 0.1 (2 - price) of every good."""
VETTED = 500


@dataclass(frozen=True)
class Crowd(Demand):
    """Demand of the same mean and another shape: "exponential", "Poisson" or "two kinds"."""

    shape: str = "exponential"

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        mean, d = self.parameters(theta, client), theta.shape[0]
        z = random.normal(key, n, d + 1)
        part = jax.scipy.special.ndtr(z)
        if self.shape == "exponential":
            return mean + self.sd * (-jnp.log1p(-part[:, :d]) - 1)
        if self.shape == "two kinds":
            second = (part[:, d:] < KINDS) - KINDS
            return mean + self.sd * (z[:, :d] + APART / math.sqrt(d) * second)
        return _counts(part[:, :d], jnp.maximum(mean, 0.0))


def _counts(part: Array, rate: Array) -> Array:
    """Poisson counts: the part of a uniform that each value takes."""
    term, total, counts = jnp.exp(-rate), jnp.exp(-rate), jnp.zeros_like(part)
    for k in range(1, COUNTS):
        counts = counts + (part > total)
        term = term * rate / k
        total = total + term
    return counts


def crowd(shape: str) -> Problem:
    """Pricing with demand of that shape; "rare Poisson" is of 0.1 (2 - price)."""
    case = pricing()
    if shape != "rare Poisson":
        return replace(case, name=f"pricing, {shape}", reaction=Crowd(shape=shape))
    many, goods = case.clients["mu0"].shape
    clients = {"mu0": np.full((many, goods), RARE * DEAREST), "gamma": np.full(many, RARE)}

    def initial(key: Key) -> Array:
        return case.project(0.75 * DEAREST + 0.1 * jax.random.normal(key, (goods,)))

    return replace(
        case, name="pricing, rare Poisson", reaction=Crowd(shape="Poisson"), clients=clients, initial=initial
    )


SHAPES = ("exponential", "Poisson", "rare Poisson", "two kinds")
SHORTER, RATE, RATES = 2, 0.02, {"rare Poisson": 0.2}
"""Half as many rounds as other runs, at twice their learning rate, and more where sales are rare, with a tenth of the
slope."""


def crowds(shape: str, settings: dict[str, Any]) -> Part:
    """Demand of one shape, clean and with junk, with the filter and without."""
    settings = {**settings, "rounds": settings["rounds"] // SHORTER}
    case, rate = crowd(shape), RATES.get(shape, RATE)
    rule = _filter(case, shape)

    def excess(case: Problem, method: Any) -> float:
        return float(simulate(case, method, samples=SAMPLES, **settings).tail_excess().mean())

    def filtered(share: float) -> float:
        return excess(contaminate(case, share, "blob", distance=DISTANCE), profl(rate, filter=rule))

    plain, clean, dirty = excess(case, pofl(rate)), filtered(0.0), filtered(JUNK)
    row = {"part": "crowds", "demand": shape, "pofl": plain, "profl": clean, f"profl, {JUNK:.0%} junk": dirty}
    claims = [at_most(f"pricing, {shape}, clean: excess over PoFL's", clean / plain, NO_WORSE)]
    if shape != "rare Poisson":  # nobody can tell ten deviations of 0.3 sales from one customer who buys three
        claims.append(at_most(f"pricing, {shape}, {JUNK:.0%} junk: tail excess", dirty, TIMES * clean + MORE))
    return Part([row], claims)


def _filter(case: Problem, shape: str) -> Any:
    """The default, with vetted samples of one client where there are two kinds."""
    if shape != "two kinds":
        return "robust"
    key, client = random.seed_key(0), jax.tree.map(lambda leaf: leaf[0], case.clients)
    vetted = case.reaction.sample(random.data_key(key, 0, 0), jnp.zeros(5), client, VETTED)
    return RobustFilter(reference=vetted)
