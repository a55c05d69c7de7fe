"""Methods that follow the whole performative gradient L1 + L2 and so find the optimum.

* ``pofl``: every client estimates its own df_i/dtheta (paper, Algorithm 1 without its robust parts).
* ``pg``: performative gradient descent by one centralised learner (Izzo et al. 2021), who sees one df/dtheta for all
  clients and is therefore biased when they differ.
"""

from __future__ import annotations

import optax

from profl import checks
from profl.algorithms.base import Algorithm, Optimiser
from profl.client.explore import Exploration


def pofl(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    jacobian: str = "kalman",
    explore: Exploration | str | None = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> Algorithm:
    """Performative optimal federated learning.

    Args:
      learning_rate, window, jacobian, second_term, optimiser: see ``Algorithm``.
      explore: an ``Exploration``; "auto" takes the default one with ``jacobian="kalman"`` and none otherwise.

    >>> pofl(window=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: window must be a whole number of at least 1, got 0
    """
    return Algorithm(
        "pofl", learning_rate, optimiser, second_term, jacobian, window, explore=auto_explore(explore, jacobian)
    )


def pg(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    jacobian: str = "kalman",
    explore: Exploration | str | None = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> Algorithm:
    """The performative gradient on everybody's data in one place."""
    return Algorithm(
        "pg", learning_rate, optimiser, second_term, jacobian, window, True, explore=auto_explore(explore, jacobian)
    )


def auto_explore(choice: Exploration | str | None, jacobian: str) -> Exploration | None:
    """ "auto" is the default exploration where the estimator uses it, else none."""
    if isinstance(choice, str):
        checks.one_of("explore", choice, ["auto"])
        return Exploration() if jacobian == "kalman" else None
    return choice
