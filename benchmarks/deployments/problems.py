"""The problems of ``python -m benchmarks deployments``: what ships, and what a method could stumble over.

Every one states its risk, PO and PS exactly, and has ten clients that differ. Beside the cases:

* ``asymmetric``: l = (|theta - z|^2 + RIDGE |theta|^2) / 2, z ~ N(mu_i + A_i theta, I) with A_i far from symmetric: the
  performative gradient turns away from what retraining follows, and theta may go anywhere (without the ridge equal
  clients would have theta = f(theta) at PS, where the loss is least anyhow: PO = PS);
* ``crossed_pricing``: fifty goods, of which some push the demand for others: df/dtheta = -gamma_i (I + U V^T), of
  which thirty deployments cannot show every entry;
* ``logistic_small``, ``no_reaction``: there is next to nothing, and nothing, to gain over retraining;
* ``shifted``, ``rescaled``: any of them, told in other units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.deployments.units import rescaled, shifted
from profl import random
from profl.cases import adult, credit, group_pricing, housing, pricing, retail, strategic
from profl.cases.common import copies
from profl.cases.pricing import PRICES, negative_revenue
from profl.cases.strategic import BestResponse
from profl.problem.families import ClassMeans, GaussianMean
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

CLIENTS = 10
NORM, DIFFERENT, RIDGE, WIDTH = 1.8, 0.3, 1.0, 4.0
"""Spectral norms of what all A_i share and of what each has of its own, the ridge, and the deviation of the entries of
mu. L(PS) - L(PO) is 0.8, 1.4 and 31 for the three matrices; the risk is so curved that PoFL at a rate of 0.03 is still
on its way after thirty steps, and one of 0.3 overshoots."""
GOODS, RANK, PUSH = 50, 2, 0.8
"""Of crossed pricing: goods, the rank of U V^T, and the length of the columns of U and V. The least eigenvalue of
I + (U V^T + V U^T) / 2 is at least 1 - PUSH^2 where the columns are orthogonal, as they nearly are."""
SMALL, WIDE = 0.165, 1.0
"""The sensitivity with which L(PS) - L(PO) of ``logistic_small`` is 0.001, and the deviation of its features."""
UNITS = (1.0, 10.0, 100.0, 1000.0, 1.0)
"""Of five goods' prices, in ``rescaled`` pricing."""
AWAY = 100.0
"""How far ``shifted`` pricing is from where it was."""


def distance_loss(theta: Array, z: Array) -> Array:
    """(|theta - z|^2 + RIDGE |theta|^2) / 2 of one sample."""
    return 0.5 * (jnp.sum((theta - z) ** 2) + RIDGE * jnp.sum(theta**2))


@dataclass(frozen=True)
class LinearMean(Reaction):
    """z ~ N(mu + A theta, I) under ``distance_loss``; a client is {"mu": (d,), "a": (d, d)}."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["mu"] + client["a"] @ theta

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return distance_loss(theta, self.parameters(deployed, client)) + 0.5 * theta.shape[0]


def asymmetric(seed: int = 0, clients: int = CLIENTS, size: int = 5) -> Problem:
    """Means that follow the model, each parameter in its own way.

    >>> a = asymmetric().clients["a"].mean(0)
    >>> bool(np.linalg.norm(a - a.T) > 0.5 * np.linalg.norm(a + a.T))
    True
    """
    rng = np.random.default_rng([seed, 0xA])
    shared = _of_norm(rng.normal(size=(size, size)), NORM)
    own = np.stack([_of_norm(rng.normal(size=(size, size)), DIFFERENT) for _ in range(clients)])
    mu = WIDTH * rng.normal(size=size) + 0.3 * rng.normal(size=(clients, size))
    return _means(f"asymmetric {seed}", mu, shared + own)


def no_reaction(clients: int = CLIENTS, size: int = 5) -> Problem:
    """The mean of data that do not care: PO = PS.

    >>> case = no_reaction()
    >>> bool(np.allclose(case.optimum, case.stable))
    True
    """
    mu = np.random.default_rng(0xB).normal(size=(clients, size))
    return _means("no reaction", mu, np.zeros((clients, size, size)))


def _means(name: str, mu: np.ndarray, a: np.ndarray) -> Problem:
    def initial(key: Key) -> Array:
        return jax.random.normal(key, mu.shape[1:], dtype=jnp.float32)

    return Problem(name, distance_loss, GaussianMean(), LinearMean(), {"mu": mu, "a": a}, initial)


def _of_norm(matrix: np.ndarray, norm: float) -> np.ndarray:
    return matrix * (norm / np.linalg.norm(matrix, 2))


@dataclass(frozen=True)
class CrossedDemand(Reaction):
    """Demand N(mu0 - gamma (theta + U V^T theta), I); a client is {"mu0": (d,), "gamma": (), "u": (d, r), "v": ...}."""

    def parameters(self, theta: Array, client: Client) -> Array:
        return client["mu0"] - client["gamma"] * (theta + client["u"] @ (client["v"].T @ theta))

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        return -jnp.sum(theta * self.parameters(deployed, client))


def crossed_pricing(clients: int = CLIENTS, goods: int = GOODS, rank: int = RANK, sensitivity: float = 1.5) -> Problem:
    """``pricing`` of many goods where the price of some moves the demand for others; it starts where that does."""
    rng = np.random.default_rng(0xC)
    u, v = (rng.normal(size=(goods, rank)) for _ in range(2))
    u, v = (PUSH * side / np.linalg.norm(side, axis=0) for side in (u, v))
    plain = pricing(clients, goods=goods, sensitivity=sensitivity)
    own = {"u": copies(u, clients), "v": copies(v, clients)}
    return Problem(
        name=f"{goods} goods, crossed",
        loss=negative_revenue,
        family=GaussianMean(),
        reaction=CrossedDemand(),
        clients={**plain.clients, **own},
        initial=plain.initial,
        project=PRICES,
    )


def logistic_small(clients: int = CLIENTS, features: int = 5) -> Problem:
    """``strategic`` with people who hardly move: retraining ends 0.001 above the optimum."""
    case = strategic(clients, SMALL / 2, features=features, sensitivity=SMALL)
    return replace(case, name="small shifts", family=ClassMeans(2, WIDE), reaction=BestResponse("all", WIDE))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "pricing": pricing,
    "housing": housing,
    "exponential": partial(pricing, reaction="exponential"),
    "group_pricing": group_pricing,
    "retail": retail,
    "strategic": strategic,
    "adult": adult,
    "credit": credit,
    **{f"asymmetric {seed}": partial(asymmetric, seed) for seed in range(3)},
    "50 goods": partial(pricing, goods=GOODS),
    "50 goods, crossed": crossed_pricing,
    "small shifts": logistic_small,
    "no reaction": no_reaction,
    "pricing, shifted": lambda: shifted(pricing(), AWAY),
    "pricing, mixed units": lambda: rescaled(pricing(), UNITS),
}
"""Row -> what makes its problem; adult and credit need their data."""
