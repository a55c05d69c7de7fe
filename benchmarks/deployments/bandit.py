"""A Gaussian-process bandit on the deployed risk: what can be found with neither gradients nor a family.

All clients deploy the same model; what is seen of it is the weighted mean loss over their batches. The next one is
where the expected improvement over the best posterior mean so far is largest, among random candidates that are then
searched around. What it would return is the model tried with the best posterior mean.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.deployments.outcome import Outcome, start_spread, starts
from profl import checks, random
from profl.parts.units import PROBE_DISTANCE, WIDEST_SPACE
from profl.problem.problem import Problem
from profl.typing import Array, Key

FIRST = 10
"""Models drawn at random before the surrogate is asked, at most: two per parameter, and a third of all."""
CANDIDATES, BEST, AROUND = 1000, 5, (0.1, 0.03, 0.01)
"""Random models the improvement is judged at; how many of the best are searched around, and how wide in turn, as shares
of the model space."""
SIDES = 3.0
"""Where there is no model space: so many deviations of the start to each side."""
MANY = 10
"""Parameters from which on all share one length scale: thirty values cannot tell more apart."""


class Surrogate(Protocol):
    """What is believed of the risk on the unit cube; scikit-learn's regressors are of this form."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Any: ...

    def predict(self, x: np.ndarray, return_std: bool = False) -> Any: ...


def gaussian_process(size: int) -> Surrogate:
    """Matern 5/2 with learned scales and noise, on normalised values."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    except ImportError as error:
        raise ImportError("the bandit needs scikit-learn: pip install 'profl[data]'") from error
    scales = np.full(size if size <= MANY else 1, 0.3)
    kernel = ConstantKernel(1.0) * Matern(scales, (1e-2, 1e2), nu=2.5) + WhiteKernel(1e-2, (1e-8, 1e1))
    return GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)


def bandit(
    problem: Problem,
    *,
    rounds: int,
    samples: int,
    seeds: Any,
    surrogate: Callable[[int], Surrogate] = gaussian_process,
) -> Outcome:
    """One search per seed, ``rounds`` deployments each; models must be vectors."""
    lower, upper = space(problem)
    if lower.ndim != 1:
        raise checks.InputError(f"the bandit needs models that are vectors, got shape {lower.shape}")
    observe = jax.jit(partial(_mean_loss, problem, samples))
    best = problem.risk(problem.optimum)
    excess, regret, ends = [], [], []
    for seed in seeds:
        key = random.seed_key(seed)
        start = np.asarray(problem.initial(random.start_key(key)), float)
        search = _Search(start, lower, upper, surrogate, np.random.default_rng(seed), rounds)
        for step in range(rounds):
            search.see(float(observe(key, step, search.model())))
        risks = problem.risks(np.stack([start, *search.returned])) - best
        excess.append(risks)
        regret.append(float(np.mean(problem.risks(np.stack(search.tried)) - best)))
        ends.append(search.returned[-1])
    accuracy = None
    if problem.reaction.accuracy is not None:
        accuracy = problem.accuracies(np.stack(ends)) - problem.accuracy(problem.optimum)
    return Outcome("bandit", np.stack(excess), np.array(regret), accuracy, np.zeros(len(ends), bool))


def space(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the model space; around where runs start, in parameters that have no end."""
    middle = starts(problem).mean(0)
    ends = [
        np.asarray(problem.project(jnp.asarray(middle + side, jnp.float32)), float)
        for side in (-PROBE_DISTANCE, PROBE_DISTANCE)
    ]
    bounded = ends[1] - ends[0] < WIDEST_SPACE
    reach = SIDES * start_spread(problem)
    lower, upper = (np.where(bounded, end, middle + side) for end, side in zip(ends, (-reach, reach), strict=True))
    return lower, upper


def _mean_loss(problem: Problem, samples: int, key: Key, step: Array, theta: Array) -> Array:
    """What every client loses on the data that theta brings in, weighted."""

    def one(number: Array, client: Any) -> Array:
        batch = problem.reaction.sample(random.data_key(key, number, step), theta, client, samples)
        return jnp.mean(jax.vmap(problem.loss, (None, 0))(theta, batch))

    clients = jax.tree.map(jnp.asarray, problem.clients)
    return jnp.asarray(problem.weights) @ jax.vmap(one)(jnp.arange(problem.count), clients)


class _Search:
    """The models tried so far, what was seen, and what would be returned after each."""

    def __init__(self, start: Any, lower: Any, upper: Any, surrogate: Any, rng: Any, rounds: int) -> None:
        self.lower, self.width, self.rng, self.make = lower, upper - lower, rng, surrogate
        self.first = 1 + min(FIRST, 2 * start.size, rounds // 3)
        self.at = [np.clip((start - lower) / self.width, 0.0, 1.0)]
        self.seen: list[float] = []
        self.tried: list[np.ndarray] = []
        self.returned: list[np.ndarray] = []

    def model(self) -> np.ndarray:
        """What to deploy next."""
        self.tried.append(self._model(self.at[-1]))
        return self.tried[-1].astype(np.float32)

    def see(self, loss: float) -> None:
        """What it lost: the surrogate learns, and the next model is chosen."""
        self.seen.append(loss)
        points, size = np.stack(self.at), self.at[0].size
        if len(self.seen) < self.first:
            self.returned.append(self._model(points[int(np.argmin(self.seen))]))
            self.at.append(self.rng.uniform(size=size))
            return
        believed = self.make(size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of length scales that end at their bounds
            believed.fit(points, np.array(self.seen))
        means = believed.predict(points)
        self.returned.append(self._model(points[int(np.argmin(means))]))
        found = self.rng.uniform(size=(CANDIDATES, size))
        for width in AROUND:
            gains = improvement(believed, found, float(np.min(means)))
            centres = np.concatenate([found[np.argsort(-gains)[:BEST]], points[np.argsort(means)[:BEST]]])
            near = centres[:, None] + width * self.rng.normal(size=(len(centres), CANDIDATES // 50, size))
            found = np.clip(np.concatenate([centres, near.reshape(-1, size)]), 0.0, 1.0)
        self.at.append(found[int(np.argmax(improvement(believed, found, float(np.min(means)))))])

    def _model(self, at: np.ndarray) -> np.ndarray:
        return self.lower + at * self.width


def improvement(believed: Surrogate, points: np.ndarray, best: float) -> np.ndarray:
    """E max(best - risk, 0) under the surrogate.

    >>> class Known:
    ...     def fit(self, x, y): ...
    ...     def predict(self, x, return_std=False): return np.zeros(len(x)), np.ones(len(x))
    >>> improvement(Known(), np.zeros((1, 1)), 0.0).round(4).tolist()
    [0.3989]
    """
    mean, deviation = believed.predict(points, return_std=True)
    deviation = np.maximum(deviation, 1e-12)
    z = (best - mean) / deviation
    normal = NormalDist()
    below = np.array([normal.cdf(value) for value in z])
    return deviation * (z * below + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
