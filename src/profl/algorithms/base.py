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
from profl.client import filters
from profl.client.explore import Exploration
from profl.client.jacobian import ESTIMATORS
from profl.client.sample_size import AdaptiveSamples
from profl.client.step import Recipe
from profl.problem.problem import Problem
from profl.server import rules
from profl.server.clusters import Clusters

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
      jacobian: "kalman", "least_squares", "paper" or "exact".
      window: H, how many earlier deployments the Jacobian is estimated from; "kalman" finds its own memory.
      explore: perturb what is deployed, so that the Jacobian stays visible; None for no perturbation.
      pooled: one centralised learner on everybody's data instead of a federation.
      inner_steps: gradient steps on one batch.
      filter: which samples to believe: "none", "robust", "paper", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines models: "mean", "median", "trimmed_mean", "geometric_median", "krum",
        "multi_krum", "centred_clipping", each also with "nnm+" before it, or a rule of one's own.
      share: Jacobians shared among clients that react alike: None, a number of clusters, "auto", or ``Clusters``.
      samples: an ``AdaptiveSamples``, or None for a fixed number.
      secure_aggregation: the server is to see nothing but the sum of the reports. In simulation this only checks that
        the method can do with that.
    """

    name: str
    learning_rate: float = 0.01
    optimiser: Optimiser = optax.sgd
    second_term: str = "none"
    jacobian: str = "kalman"
    window: int = 20
    pooled: bool = False
    inner_steps: int = 1
    explore: Exploration | None = None
    filter: Any = "none"
    aggregate: Any = "mean"
    share: Any = None
    samples: AdaptiveSamples | None = None
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        checks.one_of("second_term", self.second_term, SECOND_TERMS)
        checks.one_of("jacobian", self.jacobian, JACOBIANS)
        checks.positive_int("window", self.window)
        checks.positive_int("inner_steps", self.inner_steps)
        if self.explore is not None and (self.jacobian == "exact" or self.second_term == "none"):
            raise checks.InputError("explore is for a Jacobian that is estimated: this method estimates none")
        filters.check(filters.get(self.filter))
        rules.get(self.aggregate)
        if self.share is not None and (self.second_term == "none" or self.jacobian == "exact"):
            raise checks.InputError(
                "share needs a method that estimates Jacobians: second_term and jacobian say it does not"
            )
        if self.samples is not None and not isinstance(self.samples, AdaptiveSamples):
            raise checks.InputError(f"samples must be profl.AdaptiveSamples(...) or None, got {self.samples!r}")
        self.clusters(None)
        self._check_secure()
        if not callable(self.optimiser) and not hasattr(self.optimiser, "update"):
            raise checks.InputError(
                f"optimiser must be an optax factory (optax.sgd, ...) or transformation, got {self.optimiser!r}"
            )

    def clusters(self, clients: int | None) -> Clusters | None:
        """How Jacobians are shared; refuses more clusters than clients."""
        if self.share is None:
            return None
        found = self.share if isinstance(self.share, Clusters) else Clusters(self.share)
        if clients is not None:
            found.check(clients)
        return found

    def _check_secure(self) -> None:
        if not self.secure_aggregation:
            return
        if self.share is not None:
            raise checks.InputError(
                "share cannot be combined with secure_aggregation: clustering compares Jacobians of single clients, "
                "and under secure aggregation the server sees nothing but their sum; drop one of the two"
            )
        if not isinstance(rules.get(self.aggregate), rules.WeightedMean):
            raise checks.InputError(
                f"aggregate={self.aggregate!r} cannot be combined with secure_aggregation: a robust rule compares the "
                "models of single clients, and the server sees nothing but their sum; use 'mean'"
            )

    def recipe(self, problem: Problem) -> Recipe:
        """The parts this algorithm uses on ``problem``; refuses what the problem cannot give."""
        base = Recipe(
            _optimiser(self.optimiser, self.learning_rate),
            inner_steps=self.inner_steps,
            filter=None if self.filter == "none" else filters.get(self.filter),
            share=self.share is not None,
            size=self.samples,
            window=self.window if self.samples else 1,
            learning_rate=self.learning_rate if self.samples else 0.0,
        )
        if self.second_term == "none":
            return base
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
                    f"{' pooled over clients' if self.pooled else ''} does not: use 'kalman'"
                )
            return base._replace(second=second, told=True)
        return base._replace(second=second, estimator=ESTIMATORS[self.jacobian](self.window), explore=self.explore)


@lru_cache(maxsize=256)
def _optimiser(optimiser: Any, learning_rate: float) -> optax.GradientTransformation:
    """Made once per setting: optax transformations compare by identity, and a new one would mean compiling again."""
    return optimiser if hasattr(optimiser, "update") else optimiser(learning_rate)
