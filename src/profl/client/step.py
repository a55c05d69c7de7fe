"""One local step (paper, Algorithm 1, lines 6-16): from a batch that came in to the next model. It never samples.

w      <- filter(gradients, w)             line 7/11
f_hat  <- estimate(batch, w)               line 8/12
J      <- window of the last H deployments line 13
g      <- L1 + J^T u                       line 14
theta  <- Proj(theta - optimiser(g))       line 9/14
n      <- what the noise of g asks for     line 15

What is deployed may be theta plus a small perturbation (``deploy``); the batch's terms are then those at what was
deployed, and the step goes on from theta.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from profl import trees
from profl.client.explore import Exploration
from profl.client.filtering import filter_weights
from profl.client.filters import Filter
from profl.client.gradient import Terms, pull_back, terms
from profl.client.sample_size import AdaptiveSamples, paper_size, variance_size
from profl.problem.problem import Rules
from profl.typing import Array, Batch, Key, Theta

Poison = Callable[[Array], Array]
"""What a hostile client makes of f_hat."""


class Recipe(NamedTuple):
    """What a client does with a batch. Hashable, so that compiled code is found again."""

    optimiser: optax.GradientTransformation
    second: str = "none"  # how u is computed: "none", "score" or "pathwise"
    estimator: Any = None  # of the Jacobian; None where L2 is not used or J is told
    told: bool = False  # use the exact Jacobian
    explore: Exploration | None = None  # how what is deployed differs from theta
    inner_steps: int = 1  # gradient steps on the same batch (repeated risk minimisation)
    filter: Filter | None = None  # which samples to believe; None keeps all
    share: bool = False  # L2 uses the Jacobian that the server sent back, once there is one
    size: AdaptiveSamples | None = None  # how many samples to draw next; None: always the same
    window: int = 1  # H and eta, for the published bound of the sample size
    learning_rate: float = 0.01


class Shared(NamedTuple):
    """The Jacobian that the server sent to a client."""

    jacobian: Array  # (p, s)
    ready: Array  # () bool: whether there is one yet
    group: Array  # () int32: the cluster it comes from, -1 for none


class State(NamedTuple):
    """What a client's next step needs. Shapes never change."""

    optimiser: Any
    jacobian: Any
    shared: Any = ()  # Shared, where the recipe shares
    explored: Any = ()  # the last perturbation, where the recipe explores
    samples: Any = ()  # () int32: how many samples to draw next, where the recipe adapts it


class Info(NamedTuple):
    """What a person wants to see of a step."""

    loss: Array
    first: Array  # |L1|
    second: Array  # |L2|
    kept: Array  # share of the batch's weight that passed the filter
    jacobian_error: Array  # estimated mean squared error of an entry of J, NaN where none is estimated


def init(rules: Rules, recipe: Recipe, theta: Theta, batch: Batch, samples: int | Array = 0) -> State:
    """The state before the first step; only the shapes of ``batch`` matter."""
    n = jax.tree.leaves(batch)[0].shape[0]
    f = jax.eval_shape(rules.family.estimate, batch, jax.ShapeDtypeStruct((n,), jnp.float32))
    signal = jax.eval_shape(rules.signal, theta)
    jacobian = () if recipe.estimator is None else recipe.estimator.init(signal, f)
    nothing = Shared(jnp.zeros((f.shape[0], signal.shape[0]), f.dtype), jnp.asarray(False), jnp.int32(-1))
    return State(
        recipe.optimiser.init(theta),
        jacobian,
        nothing if recipe.share else (),
        () if recipe.explore is None else recipe.explore.init(theta),
        () if recipe.size is None else recipe.size.clip(jnp.asarray(samples, float)),
    )


def deploy(rules: Rules, recipe: Recipe, state: State, key: Key, theta: Theta) -> tuple[Theta, State]:
    """What is deployed in place of ``theta``, and the state that remembers it. ``key`` is that of the step's data."""
    if recipe.explore is None:
        return theta, state
    jacobian, error = recipe.estimator.estimate(state.jacobian), recipe.estimator.error(state.jacobian)
    deployed, explored = recipe.explore.explore(rules, key, state.explored, theta, jacobian, error)
    return deployed, state._replace(explored=explored)


def step(
    rules: Rules,
    recipe: Recipe,
    state: State,
    theta: Theta,
    batch: Batch,
    weights: Array,
    told: Array | None = None,
    deployed: Theta | None = None,
    poison: Poison | None = None,
    resize: Array | bool = True,
) -> tuple[Theta, State, Info]:
    """The model after one step, the new state, and what happened.

    ``weights`` sum to one; ``told`` is the exact J; ``deployed`` is what brought the batch in, where that was not
    theta; ``resize`` says whether to look at the sample size (once a round).
    """
    deployed = theta if deployed is None else deployed
    weights, kept = filter_weights(rules, recipe.filter, deployed, batch, weights)
    f = estimate(rules, batch, weights, poison)
    memory, jacobian = remember(rules, recipe, state, theta, deployed, batch, weights, f)
    found = terms(rules, recipe.second, deployed, batch, weights, f)
    jacobian = told if recipe.told else jacobian
    gradient, second = combine(rules, recipe, deployed, found, jacobian)
    samples = state.samples
    if recipe.size is not None:
        want = partial(next_size, rules, recipe, deployed, batch, weights, f, jacobian, gradient)
        samples = jax.lax.cond(resize, want, lambda: state.samples)
    theta, optimiser = descend(rules, recipe, state.optimiser, theta, gradient, batch, weights)
    state = State(optimiser, memory, state.shared, state.explored, samples)
    error = jnp.full((), jnp.nan) if recipe.estimator is None else jnp.mean(recipe.estimator.error(memory))
    return theta, state, Info(found.loss, trees.norm(found.first), second, kept, error)


def estimate(rules: Rules, batch: Batch, weights: Array, poison: Poison | None = None) -> Array:
    """f_hat; a hostile client may take it for something else."""
    f = rules.family.estimate(batch, weights)
    return f if poison is None else poison(f)


def remember(
    rules: Rules, recipe: Recipe, state: State, theta: Theta, deployed: Theta, batch: Batch, weights: Array, f: Array
) -> tuple[Any, Array | None]:
    """The estimator's memory with this deployment in it, and the Jacobian to use (None where none is estimated)."""
    if recipe.estimator is None:
        return state.jacobian, None
    variance = rules.family.variance(batch, weights, f)
    memory = recipe.estimator.update(state.jacobian, rules.signal(deployed), f, variance, rules.signal(theta))
    own = recipe.estimator.estimate(memory)
    return memory, jnp.where(state.shared.ready, state.shared.jacobian, own) if recipe.share else own


def next_size(
    rules: Rules,
    recipe: Recipe,
    theta: Theta,
    batch: Batch,
    weights: Array,
    f: Array,
    jacobian: Array | None,
    gradient: Theta,
) -> Array:
    """How many samples to draw next."""
    size = recipe.size
    assert size is not None
    if size.rule == "variance":
        return variance_size(size, rules, recipe.second, theta, batch, weights, f, jacobian, recipe.told)
    losses = jnp.where(weights > 0, jax.vmap(rules.loss, (None, 0))(theta, batch), 0.0)
    one = jnp.mean(rules.family.variance(batch, weights, f)) / jnp.sum(weights**2)  # of a single sample
    slope = jnp.zeros((1, 1)) if jacobian is None else jacobian
    return paper_size(size, recipe.window, recipe.learning_rate, losses, gradient, slope, one)


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
