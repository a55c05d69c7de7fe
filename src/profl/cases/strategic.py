"""Binary classification of people who game the classifier (distribution dynamics).

Features are X | y ~ N(+1 / -1 in every coordinate, sd^2 I), both classes equally many. Who responds moves from x to
the best response x - gamma_i theta (paper, Appendix). Loss: cross-entropy of sigmoid(theta.x) plus 0.005 |theta|^2
(ridge 0.01).

f holds the two class means. theta.x is Gaussian within a class, so the exact risk is a one-dimensional Gauss-Hermite
sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.cases.common import base_data, sensitivities
from profl.problem.families import ClassMeans
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key

NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
CLASS_MEANS = ((-1.0,), (1.0,))  # of class 0 and class 1, in every feature


def cross_entropy(ridge: float, theta: Array, z: Batch) -> Array:
    """-log sigmoid(+-theta.x) + ridge / 2 |theta|^2 of one sample, y in {0, 1}."""
    score = z["x"] @ theta
    return jax.nn.softplus(score) - z["y"] * score + 0.5 * ridge * jnp.sum(theta**2)


@dataclass(frozen=True)
class RidgeCrossEntropy:
    """``cross_entropy`` with a fixed ridge."""

    ridge: float = 0.01

    def __call__(self, theta: Array, z: Batch) -> Array:
        return cross_entropy(self.ridge, theta, z)


@dataclass(frozen=True)
class BestResponse(Reaction):
    """Gaussian classes whose members move by -gamma_i theta.

    A client is {"gamma": ()}, and has "mean": (2, d), its class means before they move, where they are not -1 and +1.
    """

    respond: str = "all"
    sd: float = 0.5
    ridge: float = 0.01

    def means(self, theta: Array, client: Client) -> Array:
        """The means of class 0 and class 1 once theta is deployed: (2, d)."""
        before = client.get("mean")
        if before is None:
            before = jnp.array(CLASS_MEANS, theta.dtype) * jnp.ones_like(theta)
        moves = jnp.array([[1.0 if self.respond == "all" else 0.0], [1.0]], theta.dtype)
        return before - moves * client["gamma"] * theta

    def parameters(self, theta: Array, client: Client) -> Array:
        return self.means(theta, client).ravel()

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        label, noise = jax.random.split(key)
        y = jax.random.bernoulli(label, 0.5, (n,)).astype(jnp.int32)
        x = self.means(theta, client)[y] + self.sd * random.normal(noise, n, theta.shape[0])
        return {"x": x, "y": y}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        centre, width = self._scores(deployed, theta, client)
        scores = centre[:, None] + width * jnp.asarray(NODES, theta.dtype)
        losses = jax.nn.softplus(scores) - jnp.array([[0.0], [1.0]], theta.dtype) * scores
        return jnp.mean(losses @ jnp.asarray(WEIGHTS, theta.dtype)) + 0.5 * self.ridge * jnp.sum(theta**2)

    def accuracy(self, deployed: Array, theta: Array, client: Client) -> Array:
        centre, width = self._scores(deployed, theta, client)
        signs = jnp.array([-1.0, 1.0], theta.dtype)
        return jnp.mean(jax.scipy.stats.norm.cdf(signs * centre / width))

    def _scores(self, deployed: Array, theta: Array, client: Client) -> tuple[Array, Array]:
        """Mean of theta.x in each class, and its standard deviation."""
        length = jnp.sqrt(jnp.maximum(jnp.sum(theta**2), 1e-30))  # the root's slope at 0 is infinite
        return self.means(deployed, client) @ theta, self.sd * length


@checks.explain_call
def strategic(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    features: int = 2,
    sensitivity: float = 1.0,
    respond: str = "all",
    spread: str = "even",
    base_spread: float = 0.0,
) -> Problem:
    """Logistic regression on people who move against the score: ``respond`` is "all" or "positive" (only class 1 does).

    Args:
      base_spread: by which share the class means differ between clients, up or down.

    >>> case = strategic()
    >>> case.risk(case.optimum) < case.risk(case.stable)
    True
    """
    checks.positive_int("features", features)
    checks.positive("sensitivity", sensitivity)
    checks.one_of("respond", respond, ["all", "positive"])

    def initial(key: Key) -> Array:
        return 1.0 + 0.25 * jax.random.normal(key, (features,), dtype=jnp.float32)

    rows = {"gamma": sensitivities(sensitivity, heterogeneity, clients, spread, seed)}
    means = base_data(np.tile(CLASS_MEANS, (1, features)), base_spread, clients, seed)
    if base_spread:
        rows["mean"] = means

    return Problem(
        name="strategic" if respond == "all" else "strategic (positives respond)",
        loss=RidgeCrossEntropy(),
        family=ClassMeans(classes=2, sd=0.5),
        reaction=BestResponse(respond),
        clients=rows,
        initial=initial,
        project=Box(-10.0, 10.0),
        weights=weights,
    )
