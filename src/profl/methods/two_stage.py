"""``two_stage``: explore, fit the reaction, minimise the fitted risk (Miller, Perdomo and Zrnic 2021, Algorithm 1).

    1  deploy theta + radius N(0, I), K times;   f(theta) = a + J theta  by least squares, at every client
    2  minimise  sum_i alpha_i mean_j l(z_j moved by f(theta) - f(theta_j); theta)     over the newest batches z_j

Step 2 deploys nothing: clients report gradient and curvature, the server takes Newton steps of at most ``radius``.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.methods.method import Arrival, Method
from profl.parts.part import shape_of_f
from profl.problem.problem import View
from profl.server import entries, rules
from profl.server.entries import Report, Values
from profl.typing import Array, Batch, Key, Theta

LEAST_EIGENVALUE = 1e-6  # of the curvature, so that a Newton step is finite where the risk is flat


class Fit(NamedTuple):
    """The state of a client: its regression so far, and its newest batches."""

    sums: Array  # of (1, s, f_hat) (1, s)^T over the deployments so far
    newest: Any  # samples, weights, (1, s) and f_hat of the batches that are kept
    deployments: Array  # so far


@checks.explain_call
@dataclass(frozen=True)
class TwoStage(Method):
    """K = ``deployments``; how many of the newest batches to ``keep`` for step 2; how many ``exchanges`` it has."""

    deployments: int = 20
    radius: float = 1.0
    keep: int = 1
    exchanges: int = 10
    aggregate: Any = "mean"
    name = "two_stage"
    needs = ("samples", "family")

    def __post_init__(self) -> None:
        checks.positive("radius", self.radius)
        for name in ("deployments", "keep", "exchanges"):
            checks.positive_int(name, getattr(self, name))
        rules.get(self.aggregate)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Fit:
        s, p = jax.eval_shape(problem.signal, theta).size + 1, shape_of_f(problem, batch).size
        row = (batch, *(jnp.zeros(size) for size in (trees.rows(batch), s, p)))
        newest = jax.tree.map(lambda leaf: jnp.zeros((self.keep, *leaf.shape), leaf.dtype), row)
        return Fit(jnp.zeros((s + p, s)), newest, jnp.int32(0))

    def deploy(self, problem: View, state: Fit, key: Key, theta: Theta) -> tuple[Theta, Fit]:
        flat, unravel = ravel_pytree(theta)
        perturbation = self.radius * jax.random.normal(random.explore_key(key), flat.shape, flat.dtype)
        return problem.project(
            unravel(flat + jnp.where(state.deployments < self.deployments, perturbation, 0.0))
        ), state

    def step(self, problem: View, state: Fit, theta: Theta, arrival: Arrival, key: Key) -> tuple[Theta, Fit, Any]:
        batch, weights, deployed, _ = arrival
        row, f = jnp.append(1.0, problem.signal(deployed)), problem.family.estimate(batch, weights)
        sums, loss = state.sums + jnp.outer(jnp.append(row, f), row), jax.vmap(problem.loss, (None, 0))(deployed, batch)
        room = state.newest[1].shape[1]  # a live client may send more rows than it was asked for
        new = (*jax.tree.map(lambda leaf: leaf[:room], (batch, weights / jnp.sum(weights[:room]))), row, f)
        newest = jax.tree.map(lambda old, leaf: old.at[state.deployments % self.keep].set(leaf), state.newest, new)
        return theta, Fit(sums, newest, state.deployments + 1), {"loss": weights @ loss}

    def report(self, problem: View, state: Fit, theta: Theta) -> Report:
        flat, unravel = ravel_pytree(theta)
        slope = jax.grad(lambda vector: fitted_risk(problem, state, unravel(vector)))
        fit = jnp.column_stack([slope(flat), jax.jacfwd(slope)(flat)])
        ready = (state.deployments >= self.deployments).astype(flat.dtype)
        return {"theta": entries.model(theta), "fit": entries.statistic(fit), "ready": entries.count(ready)}

    def combine(
        self, problem: View, server: Any, theta: Theta, reports: Values, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Any, Any]:
        (flat, unravel), usable = ravel_pytree(theta), accepted & (reports["ready"] > 0.5)
        fits = reports["fit"].reshape(len(weights), -1)
        fit = rules.get(self.aggregate)(fits, weights, usable, jnp.zeros(fits.shape[1])).reshape(flat.size, -1)
        movable = trees.ravel(problem.project(unravel(flat - self.radius * jnp.sign(fit[:, 0])))) != flat
        curvature = fit[:, 1:]
        decoupled = jnp.diag(jnp.diagonal(curvature))
        values, axes = jnp.linalg.eigh(jnp.where(movable[:, None] & movable, curvature, decoupled))
        step = axes @ (axes.T @ jnp.where(movable, fit[:, 0], 0.0) / jnp.maximum(jnp.abs(values), LEAST_EIGENVALUE))
        step = step * jnp.minimum(1.0, self.radius / (jnp.linalg.norm(step) + LEAST_EIGENVALUE))
        return problem.project(unravel(flat - jnp.where(jnp.any(usable), step, 0.0))), server, ()


def fitted_risk(problem: View, state: Fit, theta: Theta) -> Array:
    """The mean loss of theta, (), on the stored batches, shifted (or weighted by density) to the fitted f(theta)."""
    (batches, weights, rows, f), family, size = state.newest, problem.family, state.sums.shape[1]
    line, filled = jnp.linalg.lstsq(state.sums[:size], state.sums[size:].T)[0], jnp.sum(weights, 1, keepdims=True)
    off = jnp.sum(filled * (f - rows @ line), 0) / jnp.sum(filled)  # the mean of the stored batches lies on the line
    here = jnp.append(1.0, problem.signal(theta)) @ line

    def loss(z: Batch, was: Array) -> Array:
        if family.moves:
            return family.moved_loss(partial(problem.loss, theta), z, here - was, was)
        return problem.loss(theta, z) * jnp.exp(family.log_prob(z, here) - family.log_prob(z, was))

    return jnp.sum(weights * jax.vmap(jax.vmap(loss, (0, None)))(batches, rows @ line + off)) / jnp.sum(filled)
