"""Optimum and stable point of a problem in a box, from its decoupled risk: L-BFGS-B from several starts.

One small program gives DPR(deployed; theta) and both of its gradients; the rest is SciPy. Where a loss has kinks and
data count, the risk has kinks too: coordinates are then searched one by one from where the descent stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from profl import random, trees
from profl.problem import model_space, oracle
from profl.problem.problem import Problem

SCATTERED, DESCENTS = 32, 4
"""Models in the box whose risk is looked at, and how many of the best are starts, as the start and PS are."""
RETRAININGS, SETTLED = 400, 1e-6
"""Full retrainings on the way to the stable point, and the share of the box below which a move is none."""
NEARBY, NEARBY_STEPS = 0.01, 400
"""Half the side of a small box, as a share of the whole, and how many such boxes may follow one another."""
POLISHES, FIRST, LAST = 2, 0.05, 1e-4
"""Passes over the coordinates; from and to which share of the box steps halve."""

Valued = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Known(NamedTuple):
    """The models and their risks."""

    optimum: np.ndarray
    stable: np.ndarray
    start: np.ndarray
    optimum_risk: float
    stable_risk: float
    start_risk: float

    @property
    def gap(self) -> float:
        """L(PS) - L(PO)."""
        return self.stable_risk - self.optimum_risk

    @property
    def way(self) -> float:
        """L(start) - L(PO)."""
        return self.start_risk - self.optimum_risk


class Risk:
    """The decoupled risk of a problem with its gradients, in double precision on the host."""

    def __init__(self, problem: Problem) -> None:
        with jax.enable_x64(True):
            self.world = trees.cast((problem.clients, problem.weights), jnp.float64)
        self.reaction = problem.reaction

    def parts(self, deployed: np.ndarray, theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """DPR(deployed; theta), and its gradients in deployed and in theta."""
        with jax.enable_x64(True):
            models = jnp.asarray(deployed, jnp.float64), jnp.asarray(theta, jnp.float64)
            value, slopes = _parts(self.reaction, *self.world, *models)
            return float(value), np.asarray(slopes[0]), np.asarray(slopes[1])

    def total(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """L(theta) and the performative gradient."""
        value, moved, own = self.parts(theta, theta)
        return value, moved + own

    def value(self, theta: np.ndarray) -> float:
        """L(theta)."""
        return self.total(theta)[0]

    def held(self, deployed: np.ndarray, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The risk on the data of ``deployed``, and its gradient in theta."""
        value, _, own = self.parts(deployed, theta)
        return value, own


@partial(jax.jit, static_argnums=0)
def _parts(reaction: Any, clients: Any, weights: Any, deployed: Any, theta: Any) -> Any:
    risk = partial(oracle.decoupled_risk, (reaction, clients, weights))
    return jax.value_and_grad(risk, argnums=(0, 1))(deployed, theta)


def solve(problem: Problem) -> Known:
    """PO, PS and the start of seed 0 of a problem whose models are vectors in a ``Box``."""
    risk, box = Risk(problem), model_space.bounds(problem.project)
    assert box is not None
    start = np.asarray(problem.initial(random.start_key(random.seed_key(0))), float)
    bounds = np.tile([box], (start.size, 1))
    stable = stable_point(risk, start, bounds)
    rng = np.random.default_rng(0)
    scattered = sorted(rng.uniform(*box, (SCATTERED, start.size)), key=risk.value)[:DESCENTS]
    ends = [descend(risk.total, each, bounds) for each in (start, stable, *scattered)]
    best = polish(risk.value, min(ends, key=risk.value), bounds)
    if not any(risk.parts(each, each)[1].any() for each in scattered):  # nothing reacts: retraining ends at the optimum
        stable = best
    return Known(best, stable, start, *(risk.value(each) for each in (best, stable, start)))


def descend(valued: Valued, start: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """A local minimum in the box below ``start``."""
    end = minimize(valued, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-10})
    return end.x if end.fun <= valued(start)[0] else start


def minimum_nearby(valued: Valued, start: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The local minimum in whose valley ``start`` lies: descents that each leave a small box by no coordinate."""
    theta, width = start, bounds[0, 1] - bounds[0, 0]
    for _ in range(NEARBY_STEPS):
        around = np.clip(theta[:, None] + NEARBY * width * np.array([-1, 1]), bounds[:, :1], bounds[:, 1:])
        new = descend(valued, theta, around)
        if np.max(np.abs(new - theta)) < SETTLED * width:
            break
        theta = new
    return theta


def stable_point(risk: Risk, start: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Where retraining on what comes in rests: each coordinate goes a share of the way to the retrained model.

    The share halves whenever the coordinate turns round: a loss that is a line in theta sends it from edge to edge.
    """
    theta, width = start, bounds[0, 1] - bounds[0, 0]
    share, last = np.ones_like(theta), np.zeros_like(theta)
    for _ in range(RETRAININGS):
        move = descend(partial(risk.held, theta), theta, bounds) - theta
        share = np.where(move * last < 0, share / 2, np.minimum(1.0, 1.2 * share))
        theta, last = theta + share * move, move
        if np.max(np.abs(share * move)) < SETTLED * width:
            break
    return theta


def polish(value: Callable[[np.ndarray], float], theta: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """``theta`` or a better model, found by steps along one coordinate at a time."""
    least, width = value(theta), bounds[0, 1] - bounds[0, 0]
    for _ in range(POLISHES):
        before = least
        for j in range(theta.size):
            step = FIRST * width
            while step > LAST * width:
                trials = [np.clip(theta + side * step * np.eye(theta.size)[j], *bounds.T) for side in (-1, 1)]
                values = [value(trial) for trial in trials]
                side = int(np.argmin(values))
                if values[side] < least:
                    theta, least = trials[side], values[side]
                else:
                    step /= 2
        if before - least < 1e-9 * (1 + abs(least)):
            break
    return theta
