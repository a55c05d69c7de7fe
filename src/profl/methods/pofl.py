"""Methods that find the optimum by the performative gradient (``profl.methods.performative``).

* ``pofl``: every client estimates its own df_i/dtheta (paper, Algorithm 1 without its robust parts).
* ``pg``: performative gradient descent by one centralised learner (Izzo et al. 2021), who sees one df/dtheta for all
  clients and is therefore biased when they differ.
"""

from __future__ import annotations

from typing import Any

import optax

from profl import checks
from profl.methods.descent import Optimiser
from profl.methods.performative import PerformativeDescent
from profl.parts.exploration import Exploration
from profl.parts.jacobian import estimators as jacobians
from profl.parts.personal import kept
from profl.server import clusters


def pofl(
    learning_rate: float | str = 0.01,
    window: int = 20,
    *,
    jacobian: Any = "tracking",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> PerformativeDescent:
    """Performative optimal federated learning.

    Args:
      learning_rate, second_term, optimiser, correction: see ``PerformativeDescent``.
      jacobian: "tracking", "kalman" (the same for a world without memory and drift), "least_squares", "paper", "exact",
        or an estimator of one's own.
      window: H, how many earlier deployments "least_squares" and "paper" use; the others find their own.
      explore: an ``Exploration`` or None; "auto" takes the default one where the estimator asks for it.
      personal: names of parts of theta that stay at the client, or True for all (``profl.parts.personal``).

    >>> pofl(window=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: window must be a whole number of at least 1, got 0
    """
    parts = {"second_term": second_term, "optimiser": optimiser, "correction": correction}
    return kept(performative("pofl", learning_rate, window, jacobian, explore, **parts), personal)


def pg(
    learning_rate: float | str = 0.01,
    window: int = 20,
    *,
    jacobian: Any = "tracking",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> PerformativeDescent:
    """The performative gradient on everybody's data in one place."""
    parts = {"second_term": second_term, "optimiser": optimiser, "pooled": True}
    return performative("pg", learning_rate, window, jacobian, explore, **parts)


def performative(
    name: str, learning_rate: float | str, window: int, jacobian: Any, explore: Any, share: Any = None, **parts: Any
) -> PerformativeDescent:
    """The method with its parts, of which names are short for objects."""
    estimator = jacobians.get(jacobian, checks.positive_int("window", window))
    if isinstance(explore, str):
        checks.one_of("explore", explore, ["auto"])
        explore = Exploration() if getattr(estimator, "explores", False) else None
    return PerformativeDescent(
        name, learning_rate, jacobian=estimator, explore=explore, share=clusters.get(share), **parts
    )
