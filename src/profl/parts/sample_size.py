"""How many samples the next deployment should draw (paper, Section V, "Balancing sampling error and cost").

The default asks for what the batch itself says is needed. With per-sample performative gradients

    g_j = grad l(z_j; theta) + J^T u_j,        v = sum_j w_j |g_j - g|^2   (the trace of their covariance),

a batch of n has E|g_hat - g|^2 = v / n, so n = v / tolerance, within ``min_samples`` and ``max_samples``.

``rule="paper"`` is the published bound,

    n >= 2 (2 l^2 H / D + F^2) s^2 log(2 / phi) / (2 Phi - M^2 eta^2 G^4 H^6 D l^2),

with l the largest loss, F = |J|, G = |g|, s^2 the variance of one sample's f, Phi the tolerance, phi = 0.05 and
D = |Delta theta|^2, for which the window's own length eta^2 G^2 (1 + 4 + ... + H^2) is taken. Its denominator is
negative for ordinary H as soon as the reaction is curved (M > 0); ``max_samples`` is drawn then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.parts.gradient import pull_back, sample_terms
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta

RULES = ("variance", "paper")
PHI = 0.05  # the paper's own choice: the bound may fail once in twenty batches
BUCKETS = 6  # batch sizes for which code is compiled: a batch is at most twice as large as asked for, in few programs


class Evidence(NamedTuple):
    """What a step knows when it decides how many samples to draw next."""

    theta: Theta  # what was deployed
    batch: Batch
    weights: Array
    f: Array
    jacobian: Array
    gradient: Theta
    second: str  # how L2 was computed: "pathwise", "score" or "push"
    learning_rate: float


@dataclass(frozen=True)
class AdaptiveSamples:
    """The sample size that follows the noise; give it to ``profl.profl(samples=...)``.

    Args:
      tolerance: the mean squared error that the performative gradient may have at each client.
      min_samples, max_samples: the size always lies between them.
      rule: "variance", or "paper" for the published bound.
      curvature, window: M, a bound on the second derivative of f, and H; used by the published bound alone.

    >>> AdaptiveSamples(0.05, min_samples=60, max_samples=1000).sizes
    (60, 120, 240, 480, 960, 1020)
    """

    tolerance: float = 0.05
    min_samples: int = 50
    max_samples: int = 1000
    rule: str = "variance"
    curvature: float = 0.0
    window: int = 20

    def __post_init__(self) -> None:
        checks.positive("tolerance", self.tolerance)
        least = checks.positive_int("min_samples", self.min_samples, least=2)
        if checks.positive_int("max_samples", self.max_samples, least=2) < least:
            raise checks.InputError(f"min_samples must be at most max_samples, got {least} > {self.max_samples}")
        checks.one_of("rule", self.rule, RULES)
        if checks.real("curvature", self.curvature) < 0:
            raise checks.InputError(f"curvature must be 0 or more, got {self.curvature}")
        checks.positive_int("window", self.window)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes for which code is compiled: multiples of ``min_samples``, about six."""
        most = math.ceil(self.max_samples / self.min_samples)
        factor = max(2.0, most ** (1 / (BUCKETS - 1)))
        blocks, count = [1], 1.0
        while blocks[-1] < most:
            count *= factor
            blocks.append(min(most, math.ceil(count - 1e-9)))
        return tuple(self.min_samples * b for b in blocks)

    def clip(self, n: Array) -> Array:
        """n as a whole number within the limits; the largest where n is not a number."""
        n = jnp.where(jnp.isnan(n), jnp.inf, n)
        return jnp.ceil(jnp.clip(n, self.min_samples, self.max_samples)).astype(jnp.int32)

    def next(self, problem: View, known: Evidence) -> Array:
        """How many samples to draw next."""
        if self.rule == "variance":
            return variance_size(self, problem, known)
        weights, theta = known.weights, known.theta
        losses = jnp.where(weights > 0, jax.vmap(problem.loss, (None, 0))(theta, known.batch), 0.0)
        one = jnp.mean(problem.family.variance(known.batch, weights, known.f)) / jnp.sum(weights**2)
        return paper_size(self, known.learning_rate, losses, known.gradient, known.jacobian, one)


def variance_size(size: AdaptiveSamples, problem: View, known: Evidence) -> Array:
    """n = v / tolerance."""
    theta, weights = known.theta, known.weights
    first, f_gradients = sample_terms(problem, known.second, theta, known.batch, weights, known.f)
    second = jax.vmap(lambda u: trees.ravel(pull_back(problem, theta, known.jacobian, u)))(f_gradients)
    own = first + second
    variance = jnp.sum(weights[:, None] * (own - weights @ own) ** 2)
    return size.clip(variance / size.tolerance)


def paper_size(
    size: AdaptiveSamples, learning_rate: float, losses: Array, gradient: Theta, jacobian: Array, s2: Array
) -> Array:
    """The published bound, ``max_samples`` where its denominator is not positive."""
    window = size.window
    steps = window * (window + 1) * (2 * window + 1) / 6
    slope2 = trees.norm(gradient) ** 2
    length2 = learning_rate**2 * slope2 * steps + jnp.finfo(losses.dtype).tiny
    loss2 = jnp.max(jnp.abs(losses)) ** 2
    above = 2 * (2 * loss2 * window / length2 + jnp.sum(jacobian**2)) * s2 * math.log(2 / PHI)
    curved = size.curvature**2 * learning_rate**2 * slope2**2 * float(window) ** 6 * length2 * loss2
    below = 2 * size.tolerance - curved
    return size.clip(jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), jnp.inf))
