"""Local differential privacy: what leaves a client is clipped and noised there, the model and the Jacobian alike.

    theta_sent + clip(theta_i - theta_sent, C) + N(0, (z 2C)^2 I)         clip(v, C) = v min(1, C / |v|)
    clip(J_i, C_J) + N(0, (z 2C_J)^2 I)                                    where Jacobians are shared

Exchanging all data of a client moves a clipped report by at most 2C, so each is a Gaussian mechanism with noise
multiplier z. k of them together are one with multiplier s = z / sqrt(k), for which (Balle and Wang 2018)

    delta(epsilon) = Phi(1 / (2 s) - epsilon s) - e^epsilon Phi(-1 / (2 s) - epsilon s).

Not in the paper. A move that is not finite counts as none. The other numbers of a report are left out
(``profl.run.live.protection``).

Every number of the noise is made from the operating system's randomness, never from the run's seed, which the server
knows; so a run with privacy cannot be repeated to the bit, and a round that is repeated after a crash counts as one
more report. The noise is rounded to floating point: attacks on its last bits (Mironov 2012) are not defended against.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Theta

SEED_WARNING = (
    "Privacy(seed=...): whoever knows the seed can take the noise off, so nothing is protected; leave it out except in "
    "experiments"
)


class PrivacyAccount(NamedTuple):
    """The reports of each client in a run, and their epsilon."""

    noise: float  # z
    clip: float  # C
    clip_jacobian: float  # C_J
    delta: float
    seeded: bool  # whether the noise can be taken off by who knows its seed
    mechanisms: int  # noised entries in a report: 2 where Jacobians are shared
    reports: np.ndarray  # (clients,) that left each client
    epsilon: np.ndarray  # (clients,) at delta


@dataclass(frozen=True)
class Privacy:
    """How a client's reports are clipped and noised.

    Args:
      noise: z, the standard deviation of the noise over the sensitivity 2C.
      clip: C, the largest move of a model in one round.
      clip_jacobian: C_J, the largest Frobenius norm of a Jacobian.
      seed: of the noise, for experiments alone: whoever knows it can take the noise off.
      delta: at which ``run.privacy`` states the epsilon of each client.
    """

    noise: float
    clip: float = 1.0
    clip_jacobian: float = 5.0
    seed: int | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        checks.positive("noise", self.noise)
        checks.positive("clip", self.clip)
        checks.positive("clip_jacobian", self.clip_jacobian)
        _check_delta(self.delta)
        if self.seed is not None:
            checks.positive_int("seed", self.seed, least=0)
            warnings.warn(SEED_WARNING, stacklevel=4)  # above __init__ and ``explain_call``

    def model(self, sent: Theta, own: Theta, step: int = 0) -> Theta:
        """The model that is reported in place of ``own``; ``step`` tells reports apart where a seed is given."""
        moves = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), own, sent)
        noisy = self._add_noise(moves, self.clip, 2 * step)
        return jax.tree.map(lambda old, move, like: jnp.asarray(old + move, like.dtype), sent, noisy, own)

    def jacobian(self, own: Any, step: int = 0) -> Any:
        """The Jacobian, or the pytree of Jacobians, that is reported in place of ``own``; clipped as one."""
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), own)
        noisy = self._add_noise(exact, self.clip_jacobian, 2 * step + 1)
        return jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), noisy, own)

    def epsilon(self, reports: int, delta: float | None = None, *, share: bool = False) -> float:
        """epsilon after ``reports`` reports of one client; with ``share`` each has a Jacobian.

        >>> round(Privacy(noise=4.0).epsilon(40), 3)
        7.511
        """
        checks.positive_int("reports", reports, least=0)
        delta = self.delta if delta is None else _check_delta(delta)
        return gaussian_epsilon(self.noise, reports * (2 if share else 1), delta)

    def account(self, reports: np.ndarray, share: bool) -> PrivacyAccount:
        """The account of a run with so many ``reports`` (clients,) of each client."""
        counts, which = np.unique(reports, return_inverse=True)
        epsilon = np.array([self.epsilon(int(count), share=share) for count in counts])[which]
        settings = (self.noise, self.clip, self.clip_jacobian, self.delta, self.seed is not None)
        return PrivacyAccount(*settings, 2 if share else 1, np.asarray(reports), epsilon)

    def _add_noise(self, tree: Any, clip: float, number: int) -> Any:
        """The tree clipped to length ``clip``, plus noise; ``number`` tells draws apart where there is a seed."""
        with np.errstate(over="ignore", invalid="ignore"):
            length = math.sqrt(sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(tree)))
        if not math.isfinite(length):
            tree, length = jax.tree.map(np.zeros_like, tree), 0.0
        factor = min(1.0, clip / length) if length > 0 else 1.0
        normal = standard_normals if self.seed is None else _seeded_normals(self.seed, number)
        return jax.tree.map(lambda leaf: factor * leaf + 2 * clip * self.noise * normal(leaf.shape), tree)


def standard_normals(shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, each from 106 bits of the operating system's randomness (Box and Muller 1958)."""
    count = math.prod(shape)
    bits = np.frombuffer(secrets.token_bytes(16 * count), np.uint64).reshape(2, count) >> 11
    radius = np.sqrt(-2 * np.log((bits[0] + 1.0) * 2.0**-53))
    return (radius * np.cos(2 * np.pi * 2.0**-53 * bits[1])).reshape(shape)


def gaussian_epsilon(noise: float, count: int, delta: float) -> float:
    """The least epsilon at ``delta`` of ``count`` Gaussian mechanisms with noise multiplier ``noise``, exactly.

    >>> gaussian_epsilon(1.0, 0, 1e-5), round(gaussian_epsilon(1.0, 1, 1e-5), 4)
    (0.0, 4.3772)
    """
    mu = math.sqrt(count) / noise
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # there Phi(1 / (2 s) - epsilon s) < delta
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) with mu = 1 / s; e^epsilon phi(b) = phi(a), so neither tail leaves the range of numbers."""
    if mu == 0:
        return 0.0
    a, b = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a < 0:
        return density * (_mills(-a) - _mills(b))
    return math.erfc(-a / math.sqrt(2)) / 2 - density * _mills(b)


def _mills(x: float) -> float:
    """Phi(-x) / phi(x) for x >= 0; from 5 on by its continued fraction 1 / (x + 1 / (x + 2 / (x + ...)))."""
    if x < 5:
        return math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    below = x
    for k in range(60, 0, -1):
        below = x + k / below
    return 1 / below


def _seeded_normals(seed: int, number: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A function that draws standard normals of a shape, the same for the same seed and number."""
    return np.random.default_rng([seed, number]).standard_normal


def _check_delta(delta: float) -> float:
    if not 0 < checks.real("delta", delta) < 1:
        raise checks.InputError(f"delta must lie in (0, 1), got {delta!r}")
    return delta
