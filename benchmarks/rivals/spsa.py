"""SPSA (Spall, 1992) with gains by Spall's guidelines (1998), in the unit cube of the model space.

    theta_{k+1} = theta_k - a_k g_k,    a_k = a / (k + 1 + A)^0.602,    c_k = c / (k + 1)^0.101

Two deployments make one iteration: every client deploys theta + c_k delta_i, then theta - c_k delta_i, with random
signs delta_i of its own, and g = sum_i alpha_i delta_i (l_i(+) - l_i(-)) / (2 c_k): with a direction for each client it
is better known than with one for all. A is a tenth of the iterations, and ``a`` makes the first step as long as
``first``.
"""

from __future__ import annotations

import numpy as np

from benchmarks.rivals.federation import Seen

ALPHA, GAMMA, STABILITY = 0.602, 0.101, 0.1
"""Spall's exponents, and A as a share of the iterations."""
WIDTHS, FIRST = (0.02, 0.1), (0.03, 0.1, 0.3)
"""What is tried of c and of the length of the first step, as shares of the model space."""


class Spsa:
    """One run of ``rounds`` deployments."""

    def __init__(
        self, start: np.ndarray, weights: np.ndarray, rounds: int, seed: int, width: float, first: float
    ) -> None:
        self.theta, self.weights, self.width, self.first = start, weights, width, first
        self.rng, self.later = np.random.default_rng(seed), STABILITY * (rounds // 2)
        self.k, self.a = 0, np.nan
        self.waiting: np.ndarray | None = None
        self.signs = self._signs()

    def models(self) -> np.ndarray:
        side = 1 if self.waiting is None else -1
        return np.clip(self.theta + side * self.width / (self.k + 1) ** GAMMA * self.signs, 0.0, 1.0)

    def see(self, seen: Seen) -> None:
        if self.waiting is None:
            self.waiting = seen.loss
            return
        change = (self.waiting - seen.loss) / (2 * self.width / (self.k + 1) ** GAMMA)
        slope = (self.weights * change) @ self.signs
        if self.k == 0:
            self.a = self.first * (1 + self.later) ** ALPHA / max(float(np.sqrt(np.mean(slope**2))), 1e-12)
        self.theta = np.clip(self.theta - self.a / (self.k + 1 + self.later) ** ALPHA * slope, 0.0, 1.0)
        self.k, self.waiting, self.signs = self.k + 1, None, self._signs()

    def returned(self) -> dict[str, np.ndarray]:
        return {"": self.theta}

    def _signs(self) -> np.ndarray:
        return self.rng.choice([-1.0, 1.0], (len(self.weights), self.theta.size))
