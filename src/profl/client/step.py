"""One local step (paper, Algorithm 1, lines 6-16): from a batch that came in to the next model. It never samples.

f_hat  <- estimate(batch, w)               line 8/12
J      <- window of the last H deployments line 13
g      <- L1 + J^T u                       line 14
theta  <- Proj(theta - optimiser(g))       line 9/14
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from profl import trees
from profl.client.gradient import Terms, pull_back, terms
from profl.problem.problem import Rules
from profl.typing import Array, Batch, Theta


class Recipe(NamedTuple):
    """What a client does with a batch. Hashable, so that compiled code is found again."""

    optimiser: optax.GradientTransformation
    second: str = "none"  # how u is computed: "none", "score" or "pathwise"
    estimator: Any = None  # of the Jacobian; None where L2 is not used or J is told
    told: bool = False  # use the exact Jacobian
    inner_steps: int = 1  # gradient steps on the same batch (repeated risk minimisation)


class State(NamedTuple):
    """What a client's next step needs. Shapes never change."""

    optimiser: Any
    jacobian: Any


class Info(NamedTuple):
    """What a person wants to see of a step."""

    loss: Array
    first: Array  # |L1|
    second: Array  # |L2|


def init(rules: Rules, recipe: Recipe, theta: Theta, batch: Batch) -> State:
    """The state before the first step; only the shapes of ``batch`` matter."""
    n = jax.tree.leaves(batch)[0].shape[0]
    f = jax.eval_shape(rules.family.estimate, batch, jax.ShapeDtypeStruct((n,), jnp.float32))
    signal = jax.eval_shape(rules.signal, theta)
    jacobian = () if recipe.estimator is None else recipe.estimator.init(signal, f)
    return State(recipe.optimiser.init(theta), jacobian)


def step(
    rules: Rules,
    recipe: Recipe,
    state: State,
    theta: Theta,
    batch: Batch,
    weights: Array,
    told: Array | None = None,
) -> tuple[Theta, State, Info]:
    """The model after one step, the new state, and what happened. ``weights`` sum to one; ``told`` is the exact J."""
    f = rules.family.estimate(batch, weights)
    memory, jacobian = remember(rules, recipe, state.jacobian, theta, batch, weights, f)
    found = terms(rules, recipe.second, theta, batch, weights, f)
    gradient, second = combine(rules, recipe, theta, found, told if recipe.told else jacobian)
    theta, optimiser = descend(rules, recipe, state.optimiser, theta, gradient, batch, weights)
    return theta, State(optimiser, memory), Info(found.loss, trees.norm(found.first), second)


def remember(
    rules: Rules, recipe: Recipe, memory: Any, theta: Theta, batch: Batch, weights: Array, f: Array
) -> tuple[Any, Array | None]:
    """The estimator's memory with this deployment in it, and its Jacobian (None where none is estimated)."""
    if recipe.estimator is None:
        return memory, None
    variance = rules.family.variance(batch, weights, f)
    memory = recipe.estimator.update(memory, rules.signal(theta), f, variance)
    return memory, recipe.estimator.estimate(memory)


def combine(rules: Rules, recipe: Recipe, theta: Theta, found: Terms, jacobian: Array | None) -> tuple[Theta, Array]:
    """L1 + L2, and |L2|."""
    if recipe.second == "none" or jacobian is None:
        return found.first, jnp.zeros(())
    second = pull_back(rules, theta, jacobian, found.worth, recipe.told)
    return jax.tree.map(jnp.add, found.first, second), trees.norm(second)


def descend(
    rules: Rules, recipe: Recipe, optimiser: Any, theta: Theta, gradient: Theta, batch: Batch, weights: Array
) -> tuple[Theta, Any]:
    """One projected optimiser step; or ``inner_steps`` on the same batch, each with the gradient found there."""

    def move(carry: tuple[Theta, Any], slope: Theta) -> tuple[Theta, Any]:
        updates, new = recipe.optimiser.update(slope, carry[1], carry[0])
        return rules.project(optax.apply_updates(carry[0], updates)), new

    def again(_: int, carry: tuple[Theta, Any]) -> tuple[Theta, Any]:
        losses = jax.vmap(rules.loss, (None, 0))
        return move(carry, jax.grad(lambda t: weights @ losses(t, batch))(carry[0]))

    first = move((theta, optimiser), gradient)
    return first if recipe.inner_steps == 1 else jax.lax.fori_loop(1, recipe.inner_steps, again, first)
