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
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.parts.part import Part, Step, plain
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

SIZE_RULES = ("variance", "paper")
FAILURE_PROBABILITY = 0.05  # phi, the paper's own choice: the bound may fail once in twenty batches
BATCH_SIZES = (
    6  # batch sizes for which code is compiled: a batch is at most twice as large as asked for, in few programs
)


@dataclass(frozen=True)
class AdaptiveSamples(Part):
    """The sample size that follows the noise, for ``profl.profl(samples=...)``; Algorithm 1, line 15.

    Args:
      tolerance: the mean squared error that the performative gradient may have at each client.
      min_samples, max_samples: the size always lies between them.
      rule: "variance", or "paper" for the published bound.
      curvature, window, learning_rate: M, a bound on the second derivative of f, H and eta; used by the published bound
        alone. A learning rate that is chosen during the run takes the place of the last.

    >>> AdaptiveSamples(0.05, min_samples=60, max_samples=1000).sizes
    (60, 120, 240, 480, 960, 1020)
    """

    tolerance: float = 0.05
    min_samples: int = 50
    max_samples: int = 1000
    rule: str = "variance"
    curvature: float = 0.0
    window: int = 20
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        checks.positive("tolerance", self.tolerance)
        least = checks.positive_int("min_samples", self.min_samples, least=2)
        if checks.positive_int("max_samples", self.max_samples, least=2, most=checks.MOST_COUNT) < least:
            raise checks.InputError(f"min_samples must be at most max_samples, got {least} > {self.max_samples}")
        checks.one_of("rule", self.rule, SIZE_RULES)
        if checks.real("curvature", self.curvature) < 0:
            raise checks.InputError(f"curvature must be 0 or more, got {self.curvature}")
        checks.positive_int("window", self.window)
        checks.positive("learning_rate", self.learning_rate)

    arguments = ("tolerance", "curvature", "learning_rate")

    def settings(self) -> dict[str, Any]:
        return {"samples": plain(self)}

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("gradient",) if self.rule == "variance" else ("gradient", "jacobian", "f")

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        """The batch sizes for which code is compiled: multiples of ``min_samples``, about six."""
        most = math.ceil(self.max_samples / self.min_samples)
        factor = max(2.0, most ** (1 / (BATCH_SIZES - 1)))
        blocks, count = [1], 1.0
        while blocks[-1] < most:
            count *= factor
            blocks.append(min(most, math.ceil(count - 1e-9)))
        return tuple(self.min_samples * b for b in blocks)

    def clip(self, n: Array) -> Array:
        """n as a whole number within the limits; the largest where n is not a number."""
        n = jnp.where(jnp.isnan(n), jnp.inf, n)
        return jnp.ceil(jnp.clip(n, self.min_samples, self.max_samples)).astype(jnp.int32)

    def init(self, view: View, theta: Theta, batch: Batch) -> Array:
        """How many samples to draw next, () int32."""
        return self.clip(jnp.asarray(trees.rows(batch), float))

    def samples_wanted(self, state: Array) -> Array:
        return state

    def update(self, view: View, state: Array, step: Step, key: Key) -> tuple[Step, Array]:
        with stage("sample size") as watch:  # once a round
            return step, watch(jax.lax.cond(step.last, lambda: self._next(view, step), lambda: state))

    def _next(self, view: View, step: Step) -> Array:
        if self.rule == "variance":
            assert step.sample_gradients is not None
            gradients = step.sample_gradients()
            squares = (gradients - step.weights @ gradients) ** 2
            return self.clip(jnp.sum(step.weights[:, None] * squares) / self.tolerance)
        losses = jnp.where(step.weights > 0, jax.vmap(view.loss, (None, 0))(step.deployed, step.batch), 0.0)
        assert step.f_variance is not None
        assert step.jacobian is not None
        sample_variance = jnp.mean(step.f_variance) / jnp.sum(step.weights**2)
        rate = self.learning_rate if step.learning_rate is None else step.learning_rate
        return paper_size(self, rate, losses, step.gradient, step.jacobian, sample_variance)


def paper_size(
    size: AdaptiveSamples, learning_rate: Array | float, losses: Array, gradient: Theta, jacobian: Array, s2: Array
) -> Array:
    """The sample size by the published bound, () int32; ``max_samples`` where its denominator is not positive."""
    window = size.window
    steps = window * (window + 1) * (2 * window + 1) / 6
    slope2 = trees.norm(gradient) ** 2
    length2 = learning_rate**2 * slope2 * steps + jnp.finfo(losses.dtype).tiny
    loss2 = jnp.max(jnp.abs(losses)) ** 2
    numerator = 2 * (2 * loss2 * window / length2 + jnp.sum(jacobian**2)) * s2 * math.log(2 / FAILURE_PROBABILITY)
    curved = size.curvature**2 * learning_rate**2 * slope2**2 * float(window) ** 6 * length2 * loss2
    denominator = 2 * size.tolerance - curved
    positive = denominator > 0
    return size.clip(jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), jnp.inf))
