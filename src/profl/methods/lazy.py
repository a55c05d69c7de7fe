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
from profl.methods.descent import Descent, Optimiser, State
from profl.methods.method import Arrival, Report
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
    """What a client keeps: the descent's own state, the deployed model, its number, and the steps until the next."""

    own: State
    model: Theta
    k: Array
    left: Array


@dataclass(frozen=True)
class Lazy(Descent):
    """Made by ``profl.methods.lazy``; ``schedule`` is n(k), a name of ``SCHEDULES`` or a function of k."""

    schedule: Any = "k"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.schedule):
            checks.one_of("schedule", self.schedule, SCHEDULES)

    def steps(self, k: Array) -> Array:
        count = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        return jnp.asarray(count(k), jnp.int32)

    def init(self, problem: View, theta: Theta, batch: Batch) -> Held:  # type: ignore[override]
        one = jnp.int32(1)
        return Held(super().init(problem, theta, batch), theta, one, self.steps(one))

    def deploy(self, problem: View, state: Held, key: Key, theta: Theta) -> tuple[Theta, Held]:
        """The model that is deployed; the newest one where its turn has come."""
        due = state.left < 1
        k = state.k + due
        fresh = state.own._replace(optimiser=self.transformation.init(theta))
        own, model = trees.where(due, (fresh, theta), (state.own, state.model))
        return model, Held(own, model, k, jnp.where(due, self.steps(k), state.left))

    def step(  # type: ignore[override]
        self, problem: View, state: Held, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Held, dict[str, Array]]:
        here = arrival._replace(deployed=theta)  # the gradient at theta, on what the deployed model brought in
        theta, own, told = super().step(problem, state.own, theta, here, key)
        return theta, state._replace(own=own, left=state.left - 1), told

    def report(self, problem: View, state: Held, theta: Theta) -> Report:  # type: ignore[override]
        return super().report(problem, state.own, theta)


def lazy(
    learning_rate: float = 0.01, schedule: str | Callable[[Array], Array] = "k", *, optimiser: Optimiser = optax.sgd
) -> Lazy:
    """Retraining that holds the k-th deployed model for n(k) = ``schedule`` steps.

    >>> lazy(0.1, "k^2").settings()["schedule"]
    'k^2'
    >>> lazy(schedule="k2")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown schedule 'k2'; did you mean 'k^2'? There are: 1, sqrt k, k, k^2, k^3
    """
    return Lazy("lazy", learning_rate, optimiser, schedule=schedule)
