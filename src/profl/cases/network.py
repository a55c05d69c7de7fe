"""A neural network that decides about groups of people, who react to how it treats them (distribution dynamics).

The model is a network with one hidden layer, score = v.tanh(W x + b) + c, a pytree of four arrays. Applicants of K
groups come with features x ~ N(centre of their group and class, sd^2 I). A group that the network scores high on
average makes itself look better still: with s_k the mean of sigmoid(score) over a fixed public reference set of group
k, everyone in it moves by

    x <- x + gamma_i s_k (1, ..., 1)        (the direction that takes class 0 to class 1)

so the data react to K numbers made from the network, its ``signal``, and not to its parameters one by one. Only class 0
moves: those who should be refused. Loss: cross-entropy plus ridge / 2 |theta|^2.

f holds the means of all groups and classes. The exact answers are those of a fixed set of noise, antithetic, on which
the risk is a smooth function of theta. It is not convex: ``optimum`` is the best of the local optima that descent
reaches from five starts (risk 0.5608), ``stable`` the first of the points to which the flow of retraining leads from
them (risk 0.5849; it attracts). Both gradients vanish there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import sensitivities
from profl.problem.families import ClassMeans
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Theta

SD = 0.7
REFERENCE = 8  # people of the public set in every group, half of each class
DRAWS = 64  # of noise for the exact answers, in every group and class


def score(theta: Theta, x: Array) -> Array:
    """The network's score of people (..., d)."""
    return jnp.tanh(x @ theta["inner"] + theta["bias"]) @ theta["outer"] + theta["offset"]


def centres(groups: int, features: int) -> np.ndarray:
    """Of every group's two classes before anybody moves, (groups, 2, features).

    Groups lie on an arc, so that a straight line does not tell the classes of all of them apart.
    """
    angle = np.linspace(0.0, np.pi / 2, groups)
    out = np.zeros((groups, 2, features))
    out[:, :, 0], out[:, :, 1] = 2 * np.sin(angle)[:, None], 2 * np.cos(angle)[:, None]
    out[:, 0] -= 0.7
    out[:, 1] += 0.7
    return out


def fixed_noise(seed: int, count: int, features: int) -> np.ndarray:
    """Standard normal and antithetic, (count, features), the same in every run."""
    half = np.random.default_rng(seed).normal(size=(count // 2, features))
    return np.concatenate([half, -half])


@dataclass(frozen=True)
class GroupScores:
    """The signal: the mean of sigmoid(score) in every group's public reference set, (groups,)."""

    groups: int
    features: int

    def __call__(self, theta: Theta) -> Array:
        noise = SD * fixed_noise(1, REFERENCE // 2, self.features)
        people = (centres(self.groups, self.features)[:, :, None] + noise).reshape(self.groups, -1, self.features)
        return jnp.mean(jax.nn.sigmoid(score(theta, jnp.asarray(people, theta["inner"].dtype))), -1)


@dataclass(frozen=True)
class NetworkLoss:
    """Cross-entropy of the network's score plus ridge / 2 |theta|^2."""

    ridge: float = 0.01

    def __call__(self, theta: Theta, z: Batch) -> Array:
        """Cross-entropy of one person; the odd classes are to be accepted."""
        logit, size = score(theta, z["x"]), sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(theta))
        return jax.nn.softplus(logit) - (z["y"] % 2) * logit + 0.5 * self.ridge * size


@dataclass(frozen=True)
class GroupsMove(Reaction):
    """Groups that move with their mean score; z["y"] is 2 group + class, and a client is {"gamma": ()}."""

    groups: int
    features: int
    loss: NetworkLoss = NetworkLoss()

    def means(self, theta: Theta, client: Client) -> Array:
        """Of every group and class once theta is deployed, (2 groups, features)."""
        before = jnp.asarray(centres(self.groups, self.features), theta["inner"].dtype)
        move = client["gamma"] * GroupScores(self.groups, self.features)(theta)
        return before.at[:, 0].add(move[:, None]).reshape(-1, self.features)

    def parameters(self, theta: Theta, client: Client) -> Array:
        return self.means(theta, client).ravel()

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        who, noise = jax.random.split(key)
        y = jax.random.randint(who, (n,), 0, 2 * self.groups, dtype=jnp.int32)
        return {"x": self.means(theta, client)[y] + SD * random.normal(noise, n, self.features), "y": y}

    def decoupled(self, deployed: Theta, theta: Theta, client: Client) -> Array:
        people = self._people(deployed, client)
        return jnp.mean(jax.vmap(jax.vmap(self.loss, (None, 0)), (None, 0))(theta, people))

    def accuracy(self, deployed: Theta, theta: Theta, client: Client) -> Array:
        people = self._people(deployed, client)
        return jnp.mean((score(theta, people["x"]) > 0) == (people["y"] % 2 == 1))

    def _people(self, deployed: Theta, client: Client) -> Batch:
        """The fixed draws that the exact answers are of: every group and class, DRAWS each."""
        means = self.means(deployed, client)
        x = means[:, None] + jnp.asarray(SD * fixed_noise(2, DRAWS, self.features), means.dtype)
        return {"x": x, "y": jnp.broadcast_to(jnp.arange(2 * self.groups)[:, None], x.shape[:2])}


@checks.explain_call
def network(
    clients: int = 4,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    groups: int = 3,
    features: int = 2,
    hidden: int = 8,
    sensitivity: float = 2.0,
    spread: str = "even",
) -> Problem:
    """A neural network that accepts people, whose groups move with the mean score that it gives them.

    >>> case = network()
    >>> [leaf.shape for leaf in jax.tree.leaves(case.initial(random.seed_key(0)))]
    [(8,), (2, 8), (), (8,)]
    >>> case.signal(case.initial(random.seed_key(0))).shape
    (3,)
    """
    checks.positive_int("groups", groups)
    checks.positive_int("features", features, least=2)
    checks.positive_int("hidden", hidden)
    checks.positive("sensitivity", sensitivity)

    @jax.jit
    def initial(key: Key) -> Theta:
        inner, outer = jax.random.split(key)
        return {
            "inner": jax.random.normal(inner, (features, hidden), dtype=jnp.float32) / features**0.5,
            "bias": jnp.zeros(hidden, jnp.float32),
            "outer": jax.random.normal(outer, (hidden,), dtype=jnp.float32) / hidden**0.5,
            "offset": jnp.zeros((), jnp.float32),
        }

    return Problem(
        name="network",
        loss=NetworkLoss(),
        family=ClassMeans(classes=2 * groups, sd=SD),
        reaction=GroupsMove(groups, features),
        clients={"gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed)},
        initial=initial,
        weights=weights,
        signal=GroupScores(groups, features),
    )
