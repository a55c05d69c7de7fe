"""What every rival sees of a problem: clients deploy models, batches come in, and what they say is summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.deployments.bandit import space
from profl import random
from profl.problem.problem import Problem
from profl.typing import Array, Batch

Observe = Callable[[int, int, np.ndarray], "Seen"]
"""A seed, the number of a deployment and the models of all clients, (clients, d): what came in."""


class Seen(NamedTuple):
    """What one deployment brought in, per client."""

    loss: np.ndarray  # mean, (clients,)
    loss_variance: np.ndarray  # of that mean
    f: np.ndarray  # estimated, (clients, p)
    f_variance: np.ndarray  # sampling variance of the estimate
    batch: Batch  # leaves (clients, samples, ...)


class Known(NamedTuple):
    """A problem with the exact risks that shares are measured by, and the box that rivals search."""

    problem: Problem
    optimum_risk: float
    stable_risk: float
    lower: np.ndarray
    upper: np.ndarray

    @property
    def gap(self) -> float:
        """L(PS) - L(PO)."""
        return self.stable_risk - self.optimum_risk


def known(problem: Problem, optimum_risk: float, stable_risk: float) -> Known:
    return Known(problem, optimum_risk, stable_risk, *space(problem))


class Search(Protocol):
    """One run of a rival, in the unit cube of the model space."""

    def models(self) -> np.ndarray:
        """What the clients deploy next, (clients, d)."""
        ...

    def see(self, seen: Seen) -> None: ...

    def returned(self) -> dict[str, np.ndarray]:
        """The model (d,) that a run that ends here returns, by how it is chosen."""
        ...


class Track(NamedTuple):
    """What became of one problem, a row per seed."""

    setting: str
    excess: np.ndarray  # (seeds, 1 + deployments): of the returned model after each deployment
    regret: np.ndarray  # (seeds, deployments): excess of what was deployed, summed
    seconds: float  # of CPU time, per seed


def observer(problem: Problem, samples: int) -> Observe:
    """The federation of a problem, as one compiled program."""
    clients = jax.tree.map(jnp.asarray, problem.clients)

    def one(key: Any, number: Array, step: Array, theta: Array, client: Any) -> tuple[Any, ...]:
        batch = problem.reaction.sample(random.data_key(key, number, step), theta, client, samples)
        losses = jax.vmap(problem.loss, (None, 0))(theta, batch)
        equal = jnp.full(samples, 1 / samples)
        f = problem.family.estimate(batch, equal)
        variance = problem.family.observed_variance(batch, equal, f)
        return jnp.mean(losses), jnp.var(losses) / samples, f, variance, batch

    @jax.jit
    def every(key: Any, step: Array, models: Array) -> tuple[Any, ...]:
        return jax.vmap(one, (None, 0, None, 0, 0))(key, jnp.arange(problem.count), step, models, clients)

    def observe(seed: int, step: int, models: np.ndarray) -> Seen:
        found = every(random.seed_key(seed), step, jnp.asarray(models, jnp.float32))
        *numbers, batch = jax.tree.map(np.asarray, found)
        loss, loss_variance, f, f_variance = (np.asarray(each, float) for each in numbers)
        return Seen(loss, loss_variance, f, f_variance, batch)

    return observe


def play(
    name: str,
    row: Known,
    observe: Observe,
    make: Callable[[np.ndarray, int], Search],
    *,
    rounds: int,
    seeds: Sequence[int],
) -> list[Track]:
    """One search per seed; a track for every way to choose what is returned. ``make(start, seed)`` begins a search."""
    problem, width = row.problem, row.upper - row.lower
    excess: dict[str, list[np.ndarray]] = {}
    regret, began = [], process_time()
    for seed in seeds:
        start = np.asarray(problem.initial(random.start_key(random.seed_key(seed))), float)
        search = make(np.clip((start - row.lower) / width, 0.0, 1.0), seed)
        deployed, returned = [], []
        for step in range(rounds):
            models = row.lower + search.models() * width
            search.see(observe(seed, step, models))
            deployed.append(deployed_risk(problem, models))
            returned.append(search.returned())
        regret.append(np.cumsum(np.array(deployed) - row.optimum_risk))
        for way in returned[-1]:
            models = np.stack([start, *(row.lower + each[way] * width for each in returned)])
            excess.setdefault(way, []).append(problem.risks(models) - row.optimum_risk)
    seconds = (process_time() - began) / len(seeds)
    return [
        Track(", ".join(filter(None, (name, way))), np.stack(each), np.stack(regret), seconds)
        for way, each in excess.items()
    ]


def deployed_risk(problem: Problem, models: np.ndarray) -> float:
    """sum_i alpha_i L_i(theta_i)."""
    return float(np.asarray(problem.weights) @ problem.own_risks(models))
