"""The risk of a model as a function of theta and of every client's f: what a rival knows of the loss, as ``prm`` does.

    L(theta, f) = sum_i alpha_i mean_k l(theta, z_ik moved from f_i to f)

with the samples of a deployment, shifted to f. Where the family cannot shift them they come from KEPT deployments of
all so far, weighted by p(z; f) over the mean density of these: at a price that nobody pays no batch shows who would
have paid less. Where the loss is a line in z (revenue), the federation's mean f says all; where it is so curved that
samples add a constant (a square), every client's mean does; neither then takes samples.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from benchmarks.rivals.federation import Seen
from profl.problem.families import Family
from profl.problem.problem import Problem
from profl.typing import Array, Batch

TRIED, ROUNDING = 8, 1e-4
"""Random models and shifts at which a loss is looked at, and the share of its range that is rounding."""
ROWS = 64
"""Models evaluated at once."""
KEPT = 8
"""Deployments that the model to return is judged on: the newest, where samples can be shifted."""


class MovedRisk:
    """L(theta, f) with its gradients. ``see`` hands it every deployment; ``f`` and its variance come back."""

    def __init__(self, problem: Problem, lower: np.ndarray, upper: np.ndarray, samples: int) -> None:
        self.problem, self.samples = problem, samples
        self.loss = _Loss(problem)
        self.pooled, self.means = False, False
        self.box = lower, upper
        self.batches: list[Batch] = []
        self.pools: dict[bool, Any] = {}
        self.weights = np.asarray(problem.weights, float)

    def see(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        """f of what the risk is a function of, (groups, p), and its sampling variance."""
        if not self.batches:
            self.pooled, self.means = _shape_of(self.problem, seen, *self.box)
        self.batches.append(seen.batch)
        self.pools = {}
        if self.pooled:
            return self.weights[None] @ seen.f, self.weights[None] ** 2 @ seen.f_variance
        return seen.f, seen.f_variance

    def pool(self, whole: bool) -> Any:
        """(samples, f of each batch, weights): some samples, or where ``whole`` all of KEPT deployments."""
        if whole not in self.pools:
            parts = self._batches(whole)
            if self.means:
                parts = [self.batches[-1].mean(1, keepdims=True)]
            if self.pooled:
                parts = [np.tensordot(self.weights, parts[0], 1)[None]]
            batches = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *parts)
            with jax.enable_x64(True):
                batches, weights = _double((batches, np.ones(1) if self.pooled else self.weights))
                self.pools[whole] = batches, _estimates(self.loss.family, batches), weights
        return self.pools[whole]

    def _batches(self, whole: bool) -> list[Batch]:
        """Batches with samples; while there are fewer they come again, so that there is one program."""
        if self.problem.family.moves:
            parts, most = list(islice(cycle(reversed(self.batches)), KEPT if whole else 1)), self.samples
        else:
            spread = np.linspace(0, len(self.batches) - 1, KEPT).round().astype(int)
            parts, most = [self.batches[i] for i in spread], self.samples // 4
        return parts if whole else [jax.tree.map(lambda leaf: leaf[:, :most], part) for part in parts]

    def __call__(
        self, theta: np.ndarray, f: np.ndarray, whole: bool = False, slopes: bool = True
    ) -> tuple[np.ndarray, ...]:
        """L (rows,) of models (rows, d) with f (rows, groups, p), and its gradients in both, in double precision.

        Without ``slopes`` the risk alone.
        """
        rows = len(theta)
        most = 4 ** int(np.ceil(np.log2(rows) / 2))  # few lengths, few programs
        fill = partial(np.pad, mode="edge")
        theta, f = fill(theta, ((0, most - rows), (0, 0))), fill(f, ((0, most - rows), (0, 0), (0, 0)))
        with jax.enable_x64(True):
            found = _values(self.loss, slopes, *self.pool(whole), jnp.asarray(theta), jnp.asarray(f))
            return tuple(np.asarray(each)[:rows] for each in found)


class _Loss:
    """The parts of a problem that a moved risk is made of; equal ones share a program."""

    def __init__(self, problem: Problem) -> None:
        self.parts = problem.loss, problem.family
        self.loss, self.family = self.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loss) and self.parts == other.parts

    def moved(self, theta: Array, f: Array, batches: Batch, was: Array) -> Array:
        """The mean loss of one client's batches, which came in at ``was``, (batches, p), moved to f."""
        if self.family.moves:

            def shifted(z: Batch, of: Array) -> Array:
                return self.family.moved_loss(partial(self.loss, theta), z, f - of, of)

            return jnp.mean(jax.vmap(jax.vmap(shifted, (0, None)))(batches, was))

        def weighted(z: Batch) -> Array:
            came = logsumexp(jax.vmap(partial(self.family.log_prob, z))(was)) - jnp.log(was.shape[0])
            return self.loss(theta, z) * jnp.exp(self.family.log_prob(z, f) - came)

        return jnp.mean(jax.vmap(jax.vmap(weighted))(batches))


@partial(jax.jit, static_argnums=0)
def _estimates(family: Family, batches: Batch) -> Array:
    """f of every batch, (groups, batches, p)."""
    count = jax.tree.leaves(batches)[0].shape[2]
    return jax.vmap(jax.vmap(lambda batch: family.estimate(batch, jnp.full(count, 1 / count))))(batches)


@partial(jax.jit, static_argnums=(0, 1))
def _values(
    loss: _Loss, slopes: bool, batches: Batch, estimates: Array, weights: Array, theta: Array, f: Array
) -> tuple[Array, ...]:
    def risk(theta: Array, f: Array) -> Array:
        return weights @ jax.vmap(partial(loss.moved, theta))(f, batches, estimates)

    if not slopes:
        return (jax.lax.map(lambda row: risk(*row), (theta, f), batch_size=ROWS),)
    value, both = jax.lax.map(lambda row: jax.value_and_grad(risk, (0, 1))(*row), (theta, f), batch_size=ROWS)
    return value, *both


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64 if leaf.dtype.kind == "f" else leaf.dtype), tree)


def _shape_of(problem: Problem, seen: Seen, lower: np.ndarray, upper: np.ndarray) -> tuple[bool, bool]:
    """Whether the loss is a line in z, and whether samples add a constant to the loss of their mean."""
    batch = seen.batch
    if not (isinstance(batch, np.ndarray) and problem.family.location_only):
        return False, False
    rng, weights = np.random.default_rng(0), np.asarray(problem.weights, float)
    thetas = rng.uniform(lower, upper, (TRIED, lower.size))
    spread = batch.std((0, 1)) + np.abs(batch).mean((0, 1))
    moved = batch[None] + spread * rng.normal(size=(TRIED, batch.shape[0], 1, batch.shape[2]))
    with jax.enable_x64(True):
        losses = jax.jit(jax.vmap(jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))))
        samples = weights @ np.asarray(losses(thetas, moved)).mean(2).T
        means = moved.mean(2, keepdims=True)
        each = weights @ np.asarray(losses(thetas, means)).mean(2).T
        pooled = np.asarray(losses(thetas, np.tensordot(means, weights, (1, 0))[:, None])).ravel()
    noise = ROUNDING * np.ptp(samples)
    constant = bool(np.ptp(samples - each) < noise)
    return bool(constant and np.ptp(each - pooled) < noise), constant
