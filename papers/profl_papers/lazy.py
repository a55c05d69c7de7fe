"""``lazy``: gradient steps on the data of one deployed model, and only now and then a new deployment.

    deploy the k-th model for n(k) steps; a step is  theta <- Proj(theta - eta_j grad l(theta; z)),  z from D(deployed)

(Mendler-Duenner, Perdomo, Zrnic and Hardt 2020). n(k) = 1 is greedy deployment, ``profl.pfl``. It ends at the stable
point, as all that follow L1 alone. The optimiser starts anew with each deployment, so that a schedule of learning
rates, ``optimiser=optax.sgd(schedule)``, counts the steps on one deployment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from profl import checks, trees
from profl.methods.chain import Chain, chain
from profl.parts.gradient import terms
from profl.parts.optimiser import Optimiser, OptimiserLike
from profl.parts.part import Step
from profl.problem.problem import View
from profl.typing import Array, Batch, Key, Theta

SCHEDULES: dict[str, Callable[[Array], Array]] = {
    "1": jnp.ones_like,
    "sqrt k": lambda k: jnp.ceil(jnp.sqrt(k)).astype(k.dtype),
    "k": lambda k: k,
    "k^2": lambda k: k**2,
    "k^3": lambda k: k**3,
}
"""n(k): for how many steps the k-th model, k = 1, 2, ..., is deployed."""


class Held(NamedTuple):
    """The optimiser's state, the deployed model, its number, and the steps until the next."""

    optimiser: Any
    model: Theta
    k: Array
    left: Array


@dataclass(frozen=True)
class LazySteps(Optimiser):
    """Gradient steps on what one deployed model brings in; ``schedule`` is n(k), a name or a function of k."""

    schedule: Any = "k"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.schedule):
            checks.one_of("schedule", self.schedule, SCHEDULES)

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("samples",)

    def steps(self, k: Array) -> Array:
        count = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        return jnp.asarray(count(k), jnp.int32)

    def init(self, view: View, theta: Theta, batch: Batch) -> Held:
        one = jnp.int32(1)
        return Held(super().init(view, theta, batch), theta, one, self.steps(one))

    def deploy(self, view: View, state: Held, key: Key, theta: Theta) -> tuple[Theta, Held]:
        """The model that is deployed; the newest one where its turn has come."""
        due = state.left < 1
        k = state.k + due
        fresh = self.transformation.init(theta), theta
        optimiser, model = trees.where(due, fresh, (state.optimiser, state.model))
        return model, Held(optimiser, model, k, jnp.where(due, self.steps(k), state.left))

    def update(self, view: View, state: Held, step: Step, key: Key) -> tuple[Step, Held]:
        """One step along the gradient at theta, on what the deployed model brought in."""
        loss, gradient, _ = terms(view, "none", step.theta, step.batch, step.weights, jnp.zeros((0,)))
        here = step._replace(loss=loss, gradient=gradient)
        new, optimiser = super().update(view, state.optimiser, here, key)
        return new, state._replace(optimiser=optimiser, left=state.left - 1)


def lazy(
    learning_rate: float = 0.01, schedule: str | Callable[[Array], Array] = "k", *, optimiser: OptimiserLike = optax.sgd
) -> Chain:
    """Retraining that holds the k-th deployed model for n(k) = ``schedule`` steps.

    >>> lazy(0.1, "k^2").settings()["schedule"]
    'k^2'
    >>> lazy(schedule="k2")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown schedule 'k2'; did you mean 'k^2'? There are: 1, sqrt k, k, k^2, k^3
    """
    return chain(LazySteps(learning_rate, optimiser, schedule=schedule), name="lazy")
