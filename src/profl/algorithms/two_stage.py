"""``two_stage``: explore, fit the reaction, minimise the fitted risk (Miller, Perdomo and Zrnic 2021, Algorithm 1).

    1  deploy theta + spread N(0, I), K times;   f(theta) = a + J theta  by least squares, at every client
    2  minimise  sum_i alpha_i mean_j l(z_j moved by f(theta) - f(theta_j); theta)     over the newest batches z_j

A family without ``shift`` weighs the samples by p(z; f(theta)) / p(z; f(theta_j)) instead. Step 2 deploys nothing:
in every exchange the clients report value, gradient and curvature at the server's theta, and the server takes a damped
Newton step inside the model space (a coordinate at its edge rests), or goes back and takes a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.algorithms.descent import shape_of_f
from profl.algorithms.method import Arrival, Method, Report
from profl.problem.problem import View
from profl.server import rules
from profl.typing import Array, Batch, Key, Theta

RIDGE = 1e-6  # of the mean square of a regressor: fewer deployments than unknowns give the smallest slope, not an error
DAMPING, FACTOR = 0.1, 10.0  # of the largest curvature, at first; less of it after a good step, more after a bad one


class Fit(NamedTuple):
    sums: Array  # of (1, s, f_hat) (1, s)^T over the deployments so far
    newest: Any  # samples, weights, (1, s) and f_hat of the batches that are kept
    made: Array  # deployments so far


class Search(NamedTuple):
    best: Any  # theta, risk, gradient and curvature there
    damping: Array
    turn: Array  # of the round


@dataclass(frozen=True)
class TwoStage(Method):
    """Made by ``profl.two_stage``: K = ``deployments``, and how many of the newest batches to ``keep`` for step 2."""

    deployments: int = 20
    spread: float = 1.0
    keep: int = 1
    exchanges: int = 10
    aggregate: Any = "mean"
    name = "two_stage"

    def __post_init__(self) -> None:
        for name in ("deployments", "spread", "keep", "exchanges"):
            (checks.positive if name == "spread" else checks.positive_int)(name, getattr(self, name))
        rules.get(self.aggregate)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Fit:
        s, p = jax.eval_shape(problem.signal, theta).size + 1, shape_of_f(problem, batch).size
        like = (batch, *(jnp.zeros(size) for size in (trees.rows(batch), s, p)))
        newest = jax.tree.map(lambda leaf: jnp.zeros((self.keep, *leaf.shape), leaf.dtype), like)
        return Fit(jnp.zeros((s + p, s)), newest, jnp.int32(0))

    def deploy(self, problem: View, state: Fit, key: Key, theta: Theta) -> tuple[Theta, Fit]:
        flat, unravel = ravel_pytree(theta)
        away = self.spread * jax.random.normal(random.explore_key(key), flat.shape, flat.dtype)
        return problem.project(unravel(flat + jnp.where(state.made < self.deployments, away, 0.0))), state

    def step(self, problem: View, state: Fit, theta: Theta, arrival: Arrival, key: Key) -> tuple[Theta, Fit, Any]:
        slots = state.newest[1].shape[1]  # a live client may send more rows than it was asked for
        row, f = regressor(problem, arrival.deployed), problem.family.estimate(arrival.batch, arrival.weights)
        batch, weights = jax.tree.map(lambda leaf: leaf[:slots], (arrival.batch, arrival.weights))
        new = (batch, weights / jnp.sum(weights), row, f)
        newest = jax.tree.map(lambda old, leaf: old.at[state.made % self.keep].set(leaf), state.newest, new)
        loss = arrival.weights @ jax.vmap(problem.loss, (None, 0))(arrival.deployed, arrival.batch)
        sums = state.sums + jnp.outer(jnp.concatenate([row, f]), row)
        return theta, Fit(sums, newest, state.made + 1), {"loss": loss}

    def report(self, problem: View, state: Fit, theta: Theta) -> Report:
        flat, unravel = ravel_pytree(theta)

        def risk(vector: Array) -> Array:
            return fitted_risk(problem, state, unravel(vector))

        value, slope = jax.value_and_grad(risk)(flat)
        fit = {"risk": value, "gradient": slope, "curvature": jax.hessian(risk)(flat)}
        return {"theta": theta, "ready": (state.made >= self.deployments).astype(flat.dtype), **fit}

    def open(self, problem: View, theta: Theta) -> Search:
        flat = trees.ravel(theta)
        return Search((flat, flat[0], flat, jnp.outer(flat, flat)), jnp.asarray(DAMPING, flat.dtype), jnp.int32(0))

    def combine(
        self, problem: View, server: Search, theta: Theta, reports: Report, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Search, Any]:
        flat, unravel = ravel_pytree(theta)
        usable, fits = accepted & (reports["ready"] > 0.5), [reports[n] for n in ("risk", "gradient", "curvature")]
        one = ravel_pytree(trees.take(fits, 0))
        fit = rules.get(self.aggregate)(jax.vmap(trees.ravel)(fits), weights, usable, jnp.zeros_like(one[0]))
        here, first = (flat, *one[1](fit)), server.turn == 0
        better = first | (here[1] <= server.best[1])
        best = trees.where(better, here, server.best)
        damping = jnp.where(better, server.damping / FACTOR, server.damping * FACTOR)
        damping = jnp.where(first, DAMPING, damping)
        done = server.turn == self.exchanges
        after = jnp.where(done, best[0], newton(problem, unravel, best, damping))
        after = jnp.where(jnp.any(usable), after, flat)
        return unravel(after), Search(best, damping, jnp.where(done, 0, server.turn + 1)), ()


def regressor(problem: View, theta: Theta) -> Array:
    return jnp.concatenate([jnp.ones(1), problem.signal(theta)])


def fitted_risk(problem: View, state: Fit, theta: Theta) -> Array:
    """Mean loss of theta on the batches that are kept, moved or weighed to where the fitted line has them at theta."""
    batches, weights, rows, f = state.newest
    size, family = state.sums.shape[1], problem.family
    gram = state.sums[:size] + RIDGE * jnp.trace(state.sums[:size]) / size * jnp.eye(size)
    line = jnp.linalg.solve(gram, state.sums[size:].T)
    known = jnp.minimum(state.made, weights.shape[0])
    kept = (jnp.arange(weights.shape[0]) < known)[:, None]
    off = jnp.sum(jnp.where(kept, f - rows @ line, 0.0), 0) / known  # the batches' own mean stays on the line
    there, here = rows @ line + off, regressor(problem, theta) @ line

    def one(z: Batch, was: Array) -> Array:
        if family.shift is not None:
            return problem.loss(theta, family.moved(z, here - was))
        return problem.loss(theta, z) * jnp.exp(family.log_prob(z, here) - family.log_prob(z, was))

    losses = jax.vmap(jax.vmap(one, (0, None)))(batches, there)
    return jnp.sum(jnp.where(kept, weights * losses, 0.0)) / known


def newton(problem: View, unravel: Any, best: Any, damping: Array) -> Array:
    """The next theta to try from the ``best`` so far."""
    theta, _, gradient, curvature = best
    tiny = 1e-3 * jnp.max(jnp.abs(theta)) / (jnp.max(jnp.abs(gradient)) + jnp.finfo(theta.dtype).tiny)
    free = trees.ravel(problem.project(unravel(theta - tiny * gradient))) != theta
    values, axes = jnp.linalg.eigh(jnp.where(free[:, None] & free, curvature, jnp.diag(jnp.diagonal(curvature))))
    values = jnp.abs(values) + damping * jnp.max(jnp.abs(values)) + jnp.finfo(theta.dtype).tiny
    return trees.ravel(problem.project(unravel(theta - axes @ ((axes.T @ jnp.where(free, gradient, 0.0)) / values))))


def two_stage(
    deployments: int = 20, spread: float = 1.0, *, keep: int = 1, exchanges: int = 10, aggregate: Any = "mean"
) -> TwoStage:
    """The plug-in method: ends after ``deployments`` of its own and one round of ``exchanges``."""
    return TwoStage(deployments, spread, keep, exchanges, aggregate)
