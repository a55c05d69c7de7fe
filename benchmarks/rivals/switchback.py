"""A switchback experiment: random perturbations by client and period, least squares, then the best model as fitted.

For the first k = T^(2/3) of T deployments, the rate of explore-then-commit, every client deploys the start plus a
uniform perturbation of its own. Least squares give f = level_i + J theta, with a slope for all clients or one for each;
the loss is known (``moved_risk``). Then all deploy the minimiser of the fitted risk, which is fitted again to all there
is after every deployment.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from benchmarks.rivals.federation import Seen
from benchmarks.rivals.moved_risk import MovedRisk

RADII = (0.05, 0.15, 0.3)
"""What is tried of the perturbations' half width, as shares of the model space."""
DESCENTS, STEPS = 4, 50
"""Descents of the fitted risk, and the steps of each at most."""


class Switchback:
    """One run of ``rounds`` deployments."""

    def __init__(
        self, start: np.ndarray, risk: MovedRisk, rounds: int, seed: int, radius: float, own_slopes: bool
    ) -> None:
        self.start, self.risk, self.radius, self.own_slopes = start, risk, radius, own_slopes
        self.explored, self.rng = round(rounds ** (2 / 3)), np.random.default_rng(seed)
        self.count, self.best = len(risk.weights), start
        self.tried: list[np.ndarray] = []
        self.seen: list[np.ndarray] = []

    def models(self) -> np.ndarray:
        models = np.tile(self.best, (self.count, 1))
        if len(self.tried) < self.explored:
            moves = self.rng.uniform(-self.radius, self.radius, models.shape)
            models = np.clip(self.start + moves, 0.0, 1.0)
        self.tried.append(models)
        return models

    def see(self, seen: Seen) -> None:
        self.risk.see(seen)
        self.seen.append(seen.f)
        if len(self.tried) >= self.explored:
            self.best = minimiser(self.risk, *self.fit(), self.best, self.rng)

    def returned(self) -> dict[str, np.ndarray]:
        return {"": self.best}

    def fit(self) -> tuple[np.ndarray, np.ndarray]:
        """Levels (clients, p) and slopes (clients, p, d) in the unit cube."""
        x, y = np.stack(self.tried, 1), np.stack(self.seen, 1)  # (clients, periods, .)
        middle, level = x.mean(1, keepdims=True), y.mean(1, keepdims=True)
        x, y = x - middle, y - level
        if self.own_slopes:
            slopes = np.stack([np.linalg.lstsq(*each, rcond=None)[0].T for each in zip(x, y, strict=True)])
        else:
            rows, values = (each.reshape(-1, each.shape[2]) for each in (x, y))
            slopes = np.tile(np.linalg.lstsq(rows, values, rcond=None)[0].T, (self.count, 1, 1))
        return level[:, 0] - np.einsum("ipd,id->ip", slopes, middle[:, 0]), slopes


def minimiser(
    risk: MovedRisk, levels: np.ndarray, slopes: np.ndarray, near: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The model of the least fitted risk in the unit cube, by descents from ``near`` and from random models."""
    if risk.pooled:  # a line in f: the mean of all lines says the same
        levels, slopes = (np.tensordot(risk.weights, each, 1)[None] for each in (levels, slopes))
    lower, upper = risk.box

    def valued(x: np.ndarray) -> tuple[float, np.ndarray]:
        f = levels + slopes @ x
        value, of_theta, of_f = risk(lower[None] + x[None] * (upper - lower), f[None])
        return float(value[0]), of_theta[0] * (upper - lower) + np.einsum("ip,ipd->d", of_f[0], slopes)

    bounds = [(0.0, 1.0)] * near.size
    starts = [near, *rng.uniform(size=(DESCENTS - 1, near.size))]
    known = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": {"maxiter": STEPS}}
    ends = [minimize(valued, each, **known) for each in starts]
    return min(ends, key=lambda end: float(end.fun) if np.isfinite(end.fun) else np.inf).x
