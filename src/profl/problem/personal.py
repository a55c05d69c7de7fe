"""A model in two parts, one for all and one for each client: theta = {"common": ..., "own": ...}, used as their sum.

Each method with ``personal="own"`` then finds a common model and what every client does differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks
from profl.problem.limits import max_change
from profl.problem.problem import Problem, check_problem
from profl.problem.reaction import WrappedReaction
from profl.typing import Key, Theta


def sum_parts(theta: dict[str, Theta]) -> Theta:
    """The deployed model, common + own.

    >>> sum_parts({"common": 1.0, "own": 0.5})
    1.5
    """
    return jax.tree.map(lambda common, own: common + own, theta["common"], theta["own"])


@dataclass(frozen=True)
class OfSum:
    """A function of the deployed model, as a function of the two parts."""

    function: Callable[..., Any]

    def __call__(self, theta: dict[str, Theta], *arguments: Any) -> Any:
        return self.function(sum_parts(theta), *arguments)


@dataclass(frozen=True)
class ProjectParts:
    """Projects the common model and the sum onto the model space."""

    project: Callable[[Theta], Theta]

    def __call__(self, theta: dict[str, Theta]) -> dict[str, Theta]:
        common = self.project(theta["common"])
        inside = self.project(jax.tree.map(jnp.add, common, theta["own"]))
        return {"common": common, "own": jax.tree.map(jnp.subtract, inside, common)}


class PersonalReaction(WrappedReaction):
    """People respond to the sum of the two parts."""

    def inner_model(self, theta: dict[str, Theta]) -> Theta:
        return sum_parts(theta)


@checks.explain_call
def personal(problem: Problem) -> Problem:
    """``problem`` with a model in two parts, {"common": theta, "own": theta}, of which the sum is deployed.

    Runs start where they did, with nothing of one's own. For methods with ``personal="own"``; its optimum is that of
    one model for all, which clients with parts of their own may beat.

    >>> import profl
    >>> case = personal(profl.cases.pricing(clients=2, goods=1))
    >>> case.name, sorted(case.initial(jax.random.key(0)))
    ('pricing, personal', ['common', 'own'])
    """
    check_problem(problem)
    if problem.push is not None:
        raise checks.InputError("personal is for a problem without a push, got one: its theta would have no parts")

    if max_change(problem.limits) is not None:
        raise checks.InputError("personal is for a problem without a MaxChange: what is deployed is a sum of two parts")

    if problem.functions.outcomes:
        raise checks.InputError("personal is for a problem without an OutcomeLimit: prm keeps those for a model of all")

    def initial(key: Key) -> dict[str, Theta]:
        theta = problem.initial(key)
        return {"common": theta, "own": jax.tree.map(jnp.zeros_like, theta)}

    return replace(
        problem,
        name=f"{problem.name}, personal",
        loss=OfSum(problem.loss),
        reaction=PersonalReaction(problem.reaction),
        initial=initial,
        project=ProjectParts(problem.project),
        signal=OfSum(problem.signal),
        limits=(),  # the linear ones are in the projection, of the sum
    )
