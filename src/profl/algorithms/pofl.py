"""Methods that follow the whole performative gradient L1 + L2 and so find the optimum.

* ``pofl``: every client estimates its own df_i/dtheta (paper, Algorithm 1 without its robust parts).
* ``pg``: performative gradient descent by one centralised learner (Izzo et al. 2021), who sees one df/dtheta for all
  clients and is therefore biased when they differ.
"""

from __future__ import annotations

import optax

from profl.algorithms.base import Algorithm, Optimiser


def pofl(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    jacobian: str = "least_squares",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> Algorithm:
    """Performative optimal federated learning.

    >>> pofl(window=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: window must be a whole number of at least 1, got 0
    """
    return Algorithm("pofl", learning_rate, optimiser, second_term, jacobian, window)


def pg(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    jacobian: str = "least_squares",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> Algorithm:
    """The performative gradient on everybody's data in one place."""
    return Algorithm("pg", learning_rate, optimiser, second_term, jacobian, window, pooled=True)
