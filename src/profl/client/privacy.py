"""Local differential privacy: what leaves a client is clipped and noised there, the model and the Jacobian alike.

    theta_sent + clip(theta_i - theta_sent, C) + N(0, (z 2C)^2 I)         clip(v, C) = v min(1, C / |v|)
    clip(J_i, C_J) + N(0, (z 2C_J)^2 I)                                    where Jacobians are shared

Exchanging all data of a client moves a clipped report by at most 2C, so each is a Gaussian mechanism with noise
multiplier z; epsilon follows by composition over the client's reports. The other numbers of a report (its loss, the
share that the filter kept, its sample count) are left out. Noise comes from the operating system's randomness, never
from the run's seed, which the server knows; so a run with privacy cannot be repeated to the bit, and a round that is
repeated after a crash counts as one more report.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Theta


@dataclass(frozen=True)
class Privacy:
    """How a client's reports are clipped and noised.

    Args:
      noise: z, the standard deviation of the noise over the sensitivity 2C.
      clip: C, the largest move of a model in one round.
      clip_jacobian: C_J, the largest Frobenius norm of a Jacobian.
      seed: of the noise, for experiments alone: whoever knows it can take the noise off.
    """

    noise: float
    clip: float = 1.0
    clip_jacobian: float = 5.0
    seed: int | None = None

    def __post_init__(self) -> None:
        checks.positive("noise", self.noise)
        checks.positive("clip", self.clip)
        checks.positive("clip_jacobian", self.clip_jacobian)

    def model(self, sent: Theta, own: Theta, step: int = 0) -> Theta:
        """The model that is reported in place of ``own``; ``step`` tells reports apart where a seed is given."""
        moves = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), own, sent)
        noised = self._noised(moves, self.clip, 2 * step)
        return jax.tree.map(lambda old, move, like: jnp.asarray(old + move, like.dtype), sent, noised, own)

    def jacobian(self, own: Any, step: int = 0) -> Any:
        """The Jacobian that is reported."""
        noised = self._noised(np.asarray(own, np.float64), self.clip_jacobian, 2 * step + 1)
        return jnp.asarray(noised, own.dtype)

    def epsilon(self, reports: int, delta: float = 1e-5, *, share: bool = False) -> float:
        """epsilon after ``reports`` reports of one client, by ``dp_accounting``; with ``share`` each has a Jacobian."""
        checks.positive_int("reports", reports)
        if not 0 < checks.real("delta", delta) < 1:
            raise checks.InputError(f"delta must lie in (0, 1), got {delta!r}")
        try:
            from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
            from dp_accounting.pld import PLDAccountant
        except ImportError as error:
            raise ImportError("epsilon needs dp-accounting: pip install 'profl[dp]'") from error
        event = SelfComposedDpEvent(GaussianDpEvent(self.noise), reports * (2 if share else 1))
        return float(PLDAccountant().compose(event).get_epsilon(delta))

    def _noised(self, tree: Any, clip: float, number: int) -> Any:
        length = math.sqrt(sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(tree)))
        if not math.isfinite(length):
            return jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), tree)  # the server refuses it
        factor = min(1.0, clip / length) if length > 0 else 1.0
        seed = [secrets.randbits(32) for _ in range(8)] if self.seed is None else [self.seed, number]
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda leaf: factor * leaf + 2 * clip * self.noise * rng.normal(size=leaf.shape), tree)
