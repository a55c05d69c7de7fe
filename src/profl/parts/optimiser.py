"""One projected optimiser step along the gradient (paper, Algorithm 1, lines 9 and 14)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from profl import checks
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.part import Part, Step
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

OptimiserLike: TypeAlias = Callable[..., Any] | optax.GradientTransformation
"""An optax factory such as ``optax.sgd``, or a ready transformation, which then carries its own learning rate."""


@dataclass(frozen=True)
class Optimiser(Part):
    """theta <- Proj(theta - optimiser(gradient)); paper, Algorithm 1, lines 9 and 14.

    Args:
      learning_rate: eta, handed to ``optimiser``; or "auto" for the one that ``FoundLearningRate`` chooses: it then
        multiplies the updates of ``optimiser`` at a learning rate of one.
      optimiser: an optax factory such as ``optax.sgd``, or a ready transformation with its own learning rate.
      inner_steps: gradient steps on one batch.
    """

    learning_rate: float | str = 0.01
    optimiser: OptimiserLike = optax.sgd
    inner_steps: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str):
            checks.one_of("learning_rate", self.learning_rate, ["auto"])
        else:
            checks.positive("learning_rate", self.learning_rate)
        checks.positive_int("inner_steps", self.inner_steps)
        check_optimiser(self.optimiser)

    def check_chain(self, parts: Sequence[Part], pooled: bool) -> None:
        if isinstance(self.learning_rate, str) and not any(isinstance(part, FoundLearningRate) for part in parts):
            raise checks.InputError("learning_rate='auto' needs a part FoundLearningRate() before the optimiser")

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("gradient",)

    def numbers(self) -> dict[str, float]:
        rate = self.learning_rate
        if isinstance(rate, str) or not takes_traced_rate(self.optimiser):
            return {}
        return {"learning_rate": rate if isinstance(rate, jax.Array) else float(rate)}

    @property
    def transformation(self) -> optax.GradientTransformation:
        return transformation(self.optimiser, 1.0 if isinstance(self.learning_rate, str) else self.learning_rate)

    def init(self, view: View, theta: Theta, batch: Batch) -> Any:
        return self.transformation.init(theta)

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        if step.gradient is None:
            raise checks.InputError("no part before the optimiser computes a gradient: add PlainGradient() or another")
        descent = Descent(view, self.transformation, step.batch, step.weights, step.update_scale)
        with stage("update") as watch:
            theta, state = watch(descent.steps(step.theta, state, step.gradient, self.inner_steps))
        return step._replace(theta=theta), state


def transformation(optimiser: Any, learning_rate: float | Array) -> optax.GradientTransformation:
    """The optimiser at a learning rate, which may be traced; a ready one as it is."""
    if isinstance(optimiser, optax.GradientTransformation) or isinstance(learning_rate, jax.Array):
        return optimiser if isinstance(optimiser, optax.GradientTransformation) else optimiser(learning_rate)
    return _made(optimiser, float(learning_rate))


@lru_cache(maxsize=256)
def _made(optimiser: Any, learning_rate: float) -> optax.GradientTransformation:
    """Made once per setting: optax transformations compare by identity, and a new one would mean compiling again."""
    return optimiser(learning_rate)


@lru_cache(maxsize=256)
def takes_traced_rate(optimiser: Any) -> bool:
    """Whether an optimiser is made by a factory that does not look at the learning rate's value."""

    def steps(rate: Array, theta: Array) -> Any:
        made = optimiser(rate)
        return made.update(theta, made.init(theta), theta)

    if isinstance(optimiser, optax.GradientTransformation):
        return False
    try:
        jax.eval_shape(steps, 1.0, jax.ShapeDtypeStruct((1,), jnp.result_type(float)))
    except Exception:
        return False
    return True


def check_optimiser(optimiser: Any) -> None:
    """Refuse what is neither an optax factory nor a transformation."""
    made: Any = optimiser
    if callable(optimiser) and not isinstance(optimiser, optax.GradientTransformation):
        with contextlib.suppress(Exception):  # what cannot be called with a learning rate stays what it is
            made = optimiser(1.0)
    if not isinstance(made, optax.GradientTransformation):
        raise checks.InputError(
            f"optimiser must be an optax factory (optax.sgd, ...) or transformation, got {checks.shown(optimiser)}"
        )


@dataclass(frozen=True, eq=False)
class Descent:
    """Projected optimiser steps on one batch; updates are multiplied by ``scale`` where there is one."""

    view: View
    optimiser: optax.GradientTransformation
    batch: Batch
    weights: Array
    scale: Theta | None = None

    def step(self, theta: Theta, state: Any, gradient: Theta) -> tuple[Theta, Any]:
        """The model after one step along ``gradient``, and the optimiser's state."""
        updates, new = self.optimiser.update(gradient, state, theta)
        updates = updates if self.scale is None else jax.tree.map(jnp.multiply, updates, self.scale)
        return self.view.project(optax.apply_updates(theta, updates)), new

    def steps(self, theta: Theta, state: Any, gradient: Theta, count: int = 1) -> tuple[Theta, Any]:
        """``count`` steps, the first along ``gradient``, each later one along L1 at the model so far."""

        def again(_: int, carry: tuple[Theta, Any]) -> tuple[Theta, Any]:
            losses = jax.vmap(self.view.loss, (None, 0))
            return self.step(*carry, jax.grad(lambda t: self.weights @ losses(t, self.batch))(carry[0]))

        first = self.step(theta, state, gradient)
        return first if count == 1 else jax.lax.fori_loop(1, count, again, first)
