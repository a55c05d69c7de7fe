"""Exact risks, gradients and known points in double precision, compiled.

Everything follows from the decoupled risk DPR_i(deployed; theta) by differentiation (see ``profl.problem.reaction``).
The reaction is a static argument, so two problems that differ only in their numbers share one compiled program. For a
reaction that is known only through its samples, ``MonteCarloReaction`` estimates the decoupled risk from fixed draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.problem import solvers
from profl.problem.families import Family
from profl.problem.model_space import Bound
from profl.problem.reaction import Reaction, Unmeasured
from profl.typing import Array, Client, Loss, Theta

_CHUNK = 2**12  # clients summed up at once
_BLOCK = 2**21  # models x numbers of the clients alive at once: some megabytes
_MODELS = 64  # and models
STARTS = 64  # models at which a user's risk is evaluated for better starts than its own


@dataclass(frozen=True)
class MonteCarloReaction(Unmeasured):
    """``inner`` with a risk estimated from ``samples`` draws per client that never change.

    With the draws fixed the average is a deterministic function, differentiable in both models: where the family can
    shift samples, through the samples themselves (``sample`` must be smooth in theta); elsewhere through the likelihood
    ratio p(z; f(theta)) / p(z; f(theta)), whose value is one and whose derivative is the score (needs ``parameters``).
    """

    family: Family
    loss: Loss
    samples: int

    def __post_init__(self) -> None:
        if not self._smooth and self.inner.parameters is None:
            raise checks.InputError(
                f"{type(self.family).__name__} shifts no samples, so a numerical optimum needs f(theta): "
                "pass reaction=profl.worlds.SampledReaction(sample, parameters)"
            )

    @property
    def _smooth(self) -> bool:
        """Whether samples move smoothly with the model."""
        return self.family.shift is not None and not self.family.discrete

    def decoupled(self, deployed: Theta, theta: Theta, client: Client) -> Array:
        batch = self.inner.sample(random.seed_key(0), deployed, client, self.samples)
        losses = jax.vmap(self.loss, (None, 0))(theta, batch if self._smooth else jax.lax.stop_gradient(batch))
        if not self._smooth:
            assert self.inner.parameters is not None
            log_prob = jax.vmap(self.family.log_prob, (0, None))(
                jax.lax.stop_gradient(batch), self.inner.parameters(deployed, client)
            )
            losses = losses * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))
        return jnp.mean(losses)

    def variance(self, theta: Theta, client: Client) -> Array:
        """The variance of the estimated risk L_i(theta), a scalar."""
        batch = self.inner.sample(random.seed_key(0), theta, client, self.samples)
        return jnp.var(jax.vmap(self.loss, (None, 0))(theta, batch)) / self.samples

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        batch = self.inner.sample_in(state, random.seed_key(0), deployed, client, self.samples)
        return jnp.mean(jax.vmap(self.loss, (None, 0))(theta, batch))


World = tuple[Reaction, Client, Array]
"""A reaction, the stacked clients, and their weights."""


def client_risks(world: World, deployed: Theta, theta: Theta) -> Array:
    """DPR_i(deployed; theta) of every client."""
    reaction, clients, _ = world
    assert reaction.decoupled is not None
    return trees.map_chunks(partial(reaction.decoupled, deployed, theta), _CHUNK, clients)


def own_risks(world: World, thetas: Theta) -> Array:
    """L_i(theta_i) of every client, each at a model of its own."""
    reaction, clients, _ = world
    assert reaction.decoupled is not None
    return jax.vmap(reaction.decoupled)(thetas, thetas, clients)


def decoupled_risk(world: World, deployed: Theta, theta: Theta) -> Array:
    """DPR(deployed; theta), summed over chunks of clients, also when differentiated: a million do not fit in memory."""
    reaction, clients, weights = world
    count = weights.shape[0]
    whole = count - count % _CHUNK

    @jax.checkpoint
    def add(total: Array, group: tuple[Client, Array]) -> tuple[Array, None]:
        return total + group[1] @ client_risks((reaction, *group), deployed, theta), None

    groups = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, _CHUNK, *leaf.shape[1:]), (clients, weights))
    rest = jax.tree.map(lambda leaf: leaf[whole:], (clients, weights))
    total = jnp.zeros((), weights.dtype)
    if whole:
        total = jax.lax.scan(add, total, groups)[0]
    return total if whole == count else total + rest[1] @ client_risks((reaction, *rest), deployed, theta)


def risk(world: World, theta: Theta) -> Array:
    return decoupled_risk(world, theta, theta)


def stable_gradient(world: World, theta: Theta) -> Theta:
    """The gradient with the data held fixed: L1 alone."""
    return jax.grad(partial(decoupled_risk, world, theta))(theta)


def stable_jacobian(world: World, theta: Theta) -> Array:
    """The Jacobian (d, d) of ``stable_gradient`` of a flattened model, with the data's reaction in it."""
    flat, unravel = ravel_pytree(theta)
    return jax.jacfwd(lambda vector: trees.ravel(stable_gradient(world, unravel(vector))))(flat)


def jacobians(world: World, theta: Theta) -> Array:
    """df_i/dtheta of every client: (clients, p, size of theta)."""
    return jax.vmap(partial(exact_jacobian, world[0], theta))(world[1])


def accuracy(world: World, theta: Theta) -> Array:
    """Share of right decisions on the data theta itself brings in."""
    reaction, clients, weights = world
    assert reaction.accuracy is not None
    return weights @ jax.vmap(reaction.accuracy, (None, None, 0))(theta, theta, clients)


def risk_variances(world: World, theta: Theta) -> Array:
    """The variance of every client's risk, where it is estimated from draws."""
    reaction, clients, _ = world
    assert isinstance(reaction, MonteCarloReaction)
    return jax.vmap(reaction.variance, (None, 0))(theta, clients)


def each_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of a world and one model, for a stack of models."""
    return lambda world, thetas: jax.vmap(partial(function, world))(thetas)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "client_risks": client_risks,
    "own_risks": own_risks,
    "risks": each_model(risk),
    "gradient": lambda world, theta: jax.grad(partial(risk, world))(theta),
    "stable_gradient": stable_gradient,
    "stable_jacobian": stable_jacobian,
    "jacobian": jacobians,
    "risk_variances": risk_variances,
    "accuracy": accuracy,
    "accuracies": each_model(accuracy),
}


def evaluate(name: str, reaction: Reaction, clients: Client, weights: Any, *models: Theta) -> Any:
    """One of ``FUNCTIONS``, in double precision; numbers come back as float, arrays as numpy arrays."""
    with jax.enable_x64(True):
        result = _compiled(name, reaction, *trees.to_device((clients, weights, models), jnp.float64))
        return jax.tree.map(lambda leaf: leaf.item() if leaf.ndim == 0 else np.asarray(leaf), result)


def evaluate_each(name: str, reaction: Reaction, clients: Client, weights: Any, thetas: Theta) -> np.ndarray:
    """One of ``FUNCTIONS`` for a stack of models, a block at a time: one program for stacks of any length.

    A block is smaller where clients or models hold many numbers; the last one is filled up with the last model.
    """
    count = trees.rows(thetas)
    numbers = sum(leaf.size for leaf in jax.tree.leaves((clients, trees.take(thetas, 0))))
    block = max(1, min(_MODELS, _BLOCK // numbers))
    with jax.enable_x64(True):
        world, parts = trees.to_device((clients, weights), jnp.float64), []
        for first in range(0, count, block):
            models = trees.take(thetas, np.minimum(np.arange(first, first + block), count - 1))
            parts.append(_compiled(name, reaction, *world, (trees.to_device(models, jnp.float64),)))
        return np.concatenate([np.asarray(part) for part in parts])[:count]


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(name: str, reaction: Reaction, clients: Client, weights: Array, models: tuple[Theta, ...]) -> Any:
    return FUNCTIONS[name]((reaction, clients, weights), *models)


def known_points(
    reaction: Reaction,
    project: Callable[[Theta], Theta],
    clients: Client,
    weights: Any,
    starts: Theta,
    others: np.ndarray | None,
) -> tuple[Theta, Theta, float]:
    """(performative optimum, performatively stable point, the risk at the first), from a stack of starting models.

    ``others`` are models as vectors, one row each, or None, among which better starts are searched.
    """
    like = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), starts)
    vectors = _rows(starts)
    rows = vectors.shape[0] + 1 + (0 if others is None else solvers.DESCENTS)  # of all calls: one shape, one program
    with jax.enable_x64(True), np.errstate(all="ignore"):
        world = trees.to_device((clients, weights, like), jnp.float64)
        risk_field, field = (_field((reaction, project), of_risk, world, rows) for of_risk in (True, False))
        stable = solvers.stable_point(field, vectors)
        optimum, least = solvers.minimise(risk_field, np.concatenate([vectors, stable[None]]), others)
        return _like(like, optimum), _like(like, stable), float(least)


def _like(like: Theta, vector: np.ndarray) -> Theta:
    """A vector as a model shaped like ``like``, in double precision."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(vector, ends), leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def _rows(stacked: Theta) -> np.ndarray:
    """Stacked models as vectors, (k, d) in double precision."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(stacked)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _field(which: tuple[Reaction, Callable[[Theta], Theta]], of_risk: bool, world: Any, rows: int) -> solvers.Field:
    """The risk with its gradient, or the stable gradient alone, for the solvers; ``rows`` models a call."""

    def call(what: str, points: np.ndarray) -> Any:
        """The results for points (k, d), k any number."""
        padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % rows, axis=0)])
        blocks = [padded[i : i + rows] for i in range(0, len(padded), rows)]
        parts = [_solver_values(what, *which, of_risk, *world, block) for block in blocks]
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves])[: len(points)], *parts)

    return solvers.Field(
        at=lambda points: solvers.Point(*call("point", points)),
        jacobian=lambda points: call("jacobians", points)[0],
        residual_jacobian=lambda points: call("jacobians", points)[1],
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _solver_values(
    what: str,
    reaction: Reaction,
    project: Callable[[Theta], Theta],
    of_risk: bool | Array,
    clients: Client,
    weights: Array,
    like: Theta,
    points: Array,
) -> Any:
    """A ``solvers.Point`` of the projected rows, or the Jacobians of gradient and residual at the rows.

    The gradient is the risk's, or the stable one. Which of them is no part of the program, so that one serves both.
    """
    world, unravel = (reaction, clients, weights), ravel_pytree(like)[1]

    def onto(vector: Array) -> Array:
        return trees.ravel(project(unravel(vector)))

    def value_and_slope(vector: Array) -> tuple[Array, Array]:
        def risk_of(moved: Array) -> Array:
            """The data follow the model, or are those of ``vector``, whatever the model."""
            deployed = jax.lax.select(of_risk, moved, vector)
            return decoupled_risk(world, unravel(deployed), unravel(moved))

        return jax.value_and_grad(risk_of)(vector)

    def of_point(vector: Array) -> tuple[Array, ...]:
        vector = onto(vector)
        value, slope = value_and_slope(vector)
        return vector, value, slope, vector - onto(vector - slope)

    def slope_and_residual(vector: Array) -> tuple[Array, Array]:
        slope = value_and_slope(vector)[1]
        return slope, vector - onto(vector - slope)

    return jax.vmap(of_point if what == "point" else jax.jacfwd(slope_and_residual))(points)


def scattered_models(start: Theta, box: tuple[Bound, Bound] | None) -> np.ndarray:
    """STARTS models as vectors (k, d): uniform in ``box``; without one, around ``start``, some near and some far."""
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)]).astype(float)
    draws = np.random.default_rng(0)
    if box is not None:
        return draws.uniform(*box, (STARTS, flat.size))
    distance = (1 + np.abs(flat).max()) * 10 ** draws.uniform(-1.0, 1.5, (STARTS, 1))
    return flat + distance * draws.normal(size=(STARTS, flat.size))


def exact_jacobian(reaction: Reaction, theta: Theta, client: Client) -> Array:
    """df/dtheta at one client, by differentiating f(theta): shape (p, size of theta)."""
    parameters = reaction.parameters
    assert parameters is not None
    vector, unravel = ravel_pytree(theta)
    return jax.jacobian(lambda v: parameters(unravel(v), client))(vector)
