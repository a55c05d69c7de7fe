"""The last part of a step: the model moves along its gradient and stays in the model space."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import optax

from profl.checks import InputError
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta

Optimiser: TypeAlias = Callable[..., Any] | optax.GradientTransformation
"""An optax factory such as ``optax.sgd``, or a ready transformation, which then carries its own learning rate."""


@lru_cache(maxsize=256)
def transformation(optimiser: Any, learning_rate: float) -> optax.GradientTransformation:
    """Made once per setting: optax transformations compare by identity, and a new one would mean compiling again."""
    return optimiser if hasattr(optimiser, "update") else optimiser(learning_rate)


def check_optimiser(optimiser: Any) -> None:
    if not callable(optimiser) and not hasattr(optimiser, "update"):
        raise InputError(f"optimiser must be an optax factory (optax.sgd, ...) or transformation, got {optimiser!r}")


def descend(
    problem: View,
    optimiser: optax.GradientTransformation,
    state: Any,
    theta: Theta,
    gradient: Theta,
    batch: Batch,
    weights: Array,
    inner_steps: int = 1,
) -> tuple[Theta, Any]:
    """One projected optimiser step; or ``inner_steps`` on the same batch, each with the gradient L1 found there."""

    def move(carry: tuple[Theta, Any], slope: Theta) -> tuple[Theta, Any]:
        updates, new = optimiser.update(slope, carry[1], carry[0])
        return problem.project(optax.apply_updates(carry[0], updates)), new

    def again(_: int, carry: tuple[Theta, Any]) -> tuple[Theta, Any]:
        losses = jax.vmap(problem.loss, (None, 0))
        return move(carry, jax.grad(lambda t: weights @ losses(t, batch))(carry[0]))

    first = move((theta, state), gradient)
    return first if inner_steps == 1 else jax.lax.fori_loop(1, inner_steps, again, first)
