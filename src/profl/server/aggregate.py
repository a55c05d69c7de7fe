"""What the server makes of the reports of a round (paper, Algorithm 1, lines 18-21); ``gate`` says which it may use."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, trees
from profl.problem.problem import View
from profl.server.rules import Rule, WeightedMean, remembers
from profl.typing import Array, Theta


def combine_models(rule: Rule, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
    """The accepted models under an aggregation rule; ``centre`` is the model they started from."""
    if isinstance(rule, WeightedMean):
        return weighted_mean(models, weights, accepted)
    flat, unravel = ravel_pytree(centre)
    return unravel(rule(jax.vmap(trees.ravel)(models), weights, accepted, flat))


def open_memory(rule: Rule, problem: View, theta: Theta) -> Any:
    """What the rule keeps of the clients before the first round; () where it keeps nothing."""
    return rule.open(problem.client_count, trees.ravel(theta).size) if remembers(rule) else ()  # type: ignore[attr-defined]


def weigh(
    rule: Rule, memory: Any, problem: View, models: Theta, weights: Array, accepted: Array, centre: Theta
) -> tuple[Array, Any]:
    """What is left of the weights once the rule has compared the clients with what it remembers of them."""
    if not remembers(rule):
        return weights, memory
    like = jax.eval_shape(lambda: open_memory(rule, problem, centre))
    if str(jax.tree.structure(memory)) != str(jax.tree.structure(like)):
        raise checks.InputError(
            f"{type(rule).__name__} remembers clients, and the method keeps something else at the server: let it hand "
            "super().combine what super().open made, and keep what that returns"
        )
    flat, sent = jax.vmap(trees.ravel)(models), trees.ravel(centre)
    return rule.weigh(memory, flat, weights, accepted, sent, problem.client_ids)  # type: ignore[attr-defined]


def weighted_mean(models: Theta, weights: Array, accepted: Array) -> Theta:
    """sum_i w_i theta_i over the accepted reports, w renormalised over them; NaN where nobody is left.

    >>> models = jnp.array([[1.0], [3.0], [jnp.nan]])
    >>> weighted_mean(models, jnp.array([0.25, 0.25, 0.5]), jnp.array([True, True, False]))
    Array([2.], dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    share = share / jnp.sum(share)

    def average(leaf: Array) -> Array:
        safe = jnp.where(accepted.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0.0)
        return jnp.tensordot(share.astype(leaf.dtype), safe, axes=1)

    return jax.tree.map(average, models)
