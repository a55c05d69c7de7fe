"""The same problem in other units: theta' = factor * theta + offset, with everything that goes with it.

Loss, reaction, model space, start and known points are those of the problem inside, at theta = (theta' - offset) /
factor. Nothing about it becomes easier or harder; a method that asks for other settings now was not free of units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, trees
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Loss, Theta


@dataclass(frozen=True)
class Units:
    """One factor and one offset for all parameters, or one for each (in the order of ``trees.ravel``)."""

    factor: float | tuple[float, ...] = 1.0
    offset: float | tuple[float, ...] = 0.0

    def outside(self, theta: Theta) -> Theta:
        """theta' of a model of the problem inside."""
        flat, unravel = ravel_pytree(theta)
        return unravel(flat * jnp.asarray(self.factor, flat.dtype) + jnp.asarray(self.offset, flat.dtype))

    def inside(self, theta: Theta) -> Theta:
        """theta of a model told in these units."""
        flat, unravel = ravel_pytree(theta)
        return unravel((flat - jnp.asarray(self.offset, flat.dtype)) / jnp.asarray(self.factor, flat.dtype))


@dataclass(frozen=True)
class MovedLoss:
    loss: Loss
    units: Units

    def __call__(self, theta: Theta, z: Batch) -> Array:
        return self.loss(self.units.inside(theta), z)


@dataclass(frozen=True)
class MovedSpace:
    project: Callable[[Theta], Theta]
    units: Units

    def __call__(self, theta: Theta) -> Theta:
        return self.units.outside(self.project(self.units.inside(theta)))


@dataclass(frozen=True)
class MovedSignal:
    signal: Callable[[Theta], Array]
    units: Units

    def __call__(self, theta: Theta) -> Array:
        return self.signal(self.units.inside(theta))


@dataclass(frozen=True)
class MovedReaction(Reaction):
    """``member`` told of its models in other units; what it knows exactly stays known."""

    member: Reaction
    units: Units

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.member.sample(key, self.units.inside(theta), client, n)

    def weights(self, client: Client, n: int, count: Array) -> Array:
        return self.member.weights(client, n, count)

    @property
    def parameters(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._moved(self.member.parameters)

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._moved(self.member.decoupled)

    @property
    def accuracy(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._moved(self.member.accuracy)

    def _moved(self, function: Callable[..., Array] | None) -> Callable[..., Array] | None:
        """A function of some models and a client."""
        if function is None:
            return None
        return lambda *models: function(*map(self.units.inside, models[:-1]), models[-1])


def shifted(problem: Problem, by: float | Sequence[float] = 100.0) -> Problem:
    """``problem`` told in theta' = theta + by.

    >>> import profl
    >>> case = profl.cases.housing(clients=2, heterogeneity=0)
    >>> round(float(shifted(case, 100.0).optimum[0]), 4)
    99.1626
    """
    return _moved(problem, Units(offset=_numbers(by)), f"{problem.name}, shifted")


def rescaled(problem: Problem, factors: float | Sequence[float]) -> Problem:
    """``problem`` told in theta' = factors * theta.

    >>> import profl
    >>> case = profl.cases.housing(clients=2, heterogeneity=0)
    >>> round(float(rescaled(case, [1000.0]).optimum[0]), 1)
    -837.4
    """
    factor = _numbers(factors)
    for number in factor if isinstance(factor, tuple) else (factor,):
        checks.positive("every factor", number)
    return _moved(problem, Units(factor=factor), f"{problem.name}, other units")


def _moved(problem: Problem, units: Units, name: str) -> Problem:
    # what a signal by itself is stays theta, in the units it is told in; one of the problem's own stays what it was
    own = problem.signal is not trees.ravel
    return replace(
        problem,
        name=name,
        loss=MovedLoss(problem.loss, units),
        reaction=MovedReaction(problem.reaction, units),
        initial=jax.jit(lambda key: units.outside(problem.initial(key))),
        project=MovedSpace(problem.project, units),
        signal=MovedSignal(problem.signal, units) if own else problem.signal,
    )


def _numbers(values: Any) -> float | tuple[float, ...]:
    if isinstance(values, (int, float)):
        return float(values)
    return tuple(float(value) for value in values)
