"""An algorithm is a recipe over named parts: what a client does with a batch, and whether clients are pooled.

It is a frozen dataclass of plain values, so two equal ones share their compiled code, and a test table can list them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import optax

from profl import checks
from profl.client.jacobian import ESTIMATORS
from profl.client.step import Recipe
from profl.problem.problem import Problem

JACOBIANS = (*ESTIMATORS, "exact")
SECOND_TERMS = ("auto", "pathwise", "score", "none")

Optimiser: TypeAlias = Callable[..., Any] | optax.GradientTransformation


@dataclass(frozen=True)
class Algorithm:
    """A named recipe; make one with ``profl.pfl``, ``profl.pofl``, ``profl.pg``, ``profl.rgd`` or ``profl.rrm``.

    Args:
      name: shown in tables and plots.
      learning_rate: eta, handed to ``optimiser``.
      optimiser: an optax factory such as ``optax.sgd`` or ``optax.adam``, or a ready optax transformation (which then
        carries its own learning rate).
      second_term: how L2 is computed: "auto" (pathwise where the family is a location shift, else the score),
        "pathwise", "score", or "none".
      jacobian: "least_squares", "paper" or "exact".
      window: H, how many earlier deployments the Jacobian is estimated from.
      pooled: one centralised learner on everybody's data instead of a federation.
      inner_steps: gradient steps on one batch.
    """

    name: str
    learning_rate: float = 0.01
    optimiser: Optimiser = optax.sgd
    second_term: str = "none"
    jacobian: str = "least_squares"
    window: int = 20
    pooled: bool = False
    inner_steps: int = 1

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        checks.one_of("second_term", self.second_term, SECOND_TERMS)
        checks.one_of("jacobian", self.jacobian, JACOBIANS)
        checks.positive_int("window", self.window)
        checks.positive_int("inner_steps", self.inner_steps)
        if not callable(self.optimiser) and not hasattr(self.optimiser, "update"):
            raise checks.InputError(
                f"optimiser must be an optax factory (optax.sgd, ...) or transformation, got {self.optimiser!r}"
            )

    def recipe(self, problem: Problem) -> Recipe:
        """The parts this algorithm uses on ``problem``; refuses what the problem cannot give."""
        optimiser = _optimiser(self.optimiser, self.learning_rate)
        if self.second_term == "none":
            return Recipe(optimiser, inner_steps=self.inner_steps)
        shifts = problem.family.shift is not None
        if self.second_term == "pathwise" and not shifts:
            raise checks.InputError(
                "second_term='pathwise' needs a family with shift(z, delta); "
                f"{type(problem.family).__name__} has none: use 'score' or 'auto'"
            )
        second = self.second_term if self.second_term != "auto" else ("pathwise" if shifts else "score")
        if self.jacobian == "exact":
            if problem.reaction.parameters is None:
                raise checks.InputError(
                    f"jacobian='exact' needs a problem that states f(theta) of one client; {problem.name!r}"
                    f"{' pooled over clients' if self.pooled else ''} does not: use 'least_squares'"
                )
            return Recipe(optimiser, second, told=True, inner_steps=self.inner_steps)
        return Recipe(optimiser, second, ESTIMATORS[self.jacobian](self.window), inner_steps=self.inner_steps)


@lru_cache(maxsize=256)
def _optimiser(optimiser: Any, learning_rate: float) -> optax.GradientTransformation:
    """Made once per setting: optax transformations compare by identity, and a new one would mean compiling again."""
    return optimiser if hasattr(optimiser, "update") else optimiser(learning_rate)
