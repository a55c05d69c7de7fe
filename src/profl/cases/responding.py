"""Binary classification of real people who game the classifier (distribution dynamics; paper, Figure 4).

Every client holds rows of its own: real features, standardised, and a class. When theta is deployed, rows are drawn
with replacement, and who responds moves from x to the best response x - gamma_i theta. Loss: cross-entropy of
sigmoid(theta.x) plus 0.005 |theta|^2 (ridge 0.01), no intercept.

The distribution of a client's data is its rows, so every exact answer is a mean over them. A row's score once
``deployed`` is deployed is theta.x - gamma_i deployed.theta: the moved features are never written out, and no array is
larger than rows x models. The rows lie innermost in memory, so that a sum over them runs along contiguous memory.

f holds the two class means, and the gradient is pathwise: it needs no density, which matters here because the
features are anything but Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import sensitivities
from profl.cases.strategic import RidgeCrossEntropy
from profl.data.dataset import Table
from profl.data.prepare import prepare
from profl.problem.families import ClassMeans
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key


@dataclass(frozen=True)
class MeasuredClassMeans(ClassMeans):
    """Class means whose sampling variance is measured: the variance of a real column is not the same in both classes.

    A class that is not in the batch has a mean of 0 and, for columns of variance 1, a variance of 1.
    """

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        member = jax.nn.one_hot(batch["y"], self.classes)
        share = jnp.maximum(weights @ member, jnp.finfo(weights.dtype).tiny)[:, None]
        misses = (batch["x"] - self._mean(batch, f)) ** 2
        measured = ((weights[:, None] ** 2 * member).T @ misses) / share / share
        present = jnp.any(member * weights[:, None] > 0, axis=0)[:, None]
        return jnp.where(present, measured, 1.0).ravel()


@dataclass(frozen=True)
class RowsRespond(Reaction):
    """Rows that move by -gamma_i theta; a client is {"x": (d, rows), "y": (rows,), "count": (), "gamma": ()}."""

    respond: str = "all"
    ridge: float = 0.01

    def parameters(self, theta: Array, client: Client) -> Array:
        weights = self._row_weights(client, theta)
        before = ClassMeans().estimate({"x": client["x"].T, "y": client["y"]}, weights).reshape(2, -1)
        moves = self._moves(jnp.arange(2), client, theta)
        return (before - moves[:, None] * theta).ravel()

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        rows = random.indices(key, n, client["count"])
        y = client["y"][rows]
        return {"x": client["x"][:, rows].T - self._moves(y, client, theta)[:, None] * theta, "y": y}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        scores = self._scores(deployed, theta, client)
        losses = jax.nn.softplus(jnp.where(client["y"] == 1, -scores, scores))
        return jnp.sum(self._row_weights(client, theta) * losses) + 0.5 * self.ridge * jnp.sum(theta**2)

    def accuracy(self, deployed: Array, theta: Array, client: Client) -> Array:
        right = (self._scores(deployed, theta, client) > 0) == (client["y"] == 1)
        return self._row_weights(client, theta) @ right.astype(theta.dtype)

    def _scores(self, deployed: Array, theta: Array, client: Client) -> Array:
        """theta.x of every row once ``deployed`` is deployed."""
        return jnp.sum(theta[:, None] * client["x"], axis=0) - self._moves(client["y"], client, theta) * (
            deployed @ theta
        )

    def _moves(self, y: Array, client: Client, theta: Array) -> Array:
        """How far a row of class y moves along -theta."""
        responds = (y == 1) | (self.respond == "all")
        return jnp.where(responds, client["gamma"], jnp.zeros((), theta.dtype))

    @staticmethod
    def _row_weights(client: Client, theta: Array) -> Array:
        own = jnp.arange(client["y"].shape[0]) < client["count"]
        return own / client["count"].astype(theta.dtype)


def responding(
    table: Table,
    *,
    clients: int,
    sensitivity: float,
    heterogeneity: float,
    respond: str = "all",
    split: str = "random",
    part: str = "train",
    test: float = 0.2,
    weights: Any = None,
    spread: str = "even",
    seed: int = 0,
) -> Problem:
    """Strategic classification of the rows of any table; ``adult`` and ``credit`` explain the arguments.

    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 2
    >>> table = Table("made", ("a", "b"), rng.normal(size=(400, 2)) + y[:, None], y, {})
    >>> case = responding(table, clients=4, sensitivity=2.0, heterogeneity=0.1)
    >>> case.clients["x"].shape, case.accuracy(np.array([0.1, 0.1])) > 0.5
    ((4, 2, 80), True)
    """
    checks.positive("sensitivity", sensitivity)
    checks.one_of("respond", respond, ["all", "positive"])
    checks.one_of("part", part, ["train", "test"])
    ready = prepare(table, clients, split, test, seed)
    rows = ready.train if part == "train" else ready.test
    if np.any(rows.counts == 0):
        raise checks.InputError(f"every client needs rows in the {part} part: take fewer clients or another split")
    gamma = sensitivities(sensitivity, heterogeneity * sensitivity, clients, spread, seed)
    features = rows.x.shape[2]

    def initial(key: Key) -> Array:
        return 0.1 * jax.random.normal(key, (features,), dtype=jnp.float32)

    return Problem(
        name=table.name if respond == "all" else f"{table.name} (positives respond)",
        loss=RidgeCrossEntropy(),
        family=MeasuredClassMeans(),
        reaction=RowsRespond(respond),
        clients={"x": rows.x.swapaxes(1, 2), "y": rows.y, "count": rows.counts, "gamma": gamma},
        initial=initial,
        project=Box(-10.0, 10.0),
        weights=rows.counts / rows.counts.sum() if weights is None else weights,
    )
