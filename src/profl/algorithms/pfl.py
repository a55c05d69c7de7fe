"""Methods that follow L1 alone and so stop at the performatively stable point.

* ``pfl``: performative federated learning, FedAvg on what comes in (Jin et al. 2024).
* ``rgd``, ``rrm``: its centralised ancestors (Perdomo et al. 2020): one gradient step per deployment, or a full
  minimisation on the data of each deployment.
"""

from __future__ import annotations

import optax

from profl.algorithms.descent import Descent, Optimiser


def pfl(
    learning_rate: float | str = 0.01, *, optimiser: Optimiser = optax.sgd, correction: str | None = None
) -> Descent:
    """Plain federated retraining: ends at the stable point; near it where clients differ and drift is not corrected.

    >>> pfl(learning_rate=0.1).settings()["learning_rate"]
    0.1
    """
    return Descent("pfl", learning_rate, optimiser, correction=correction)


def rgd(learning_rate: float | str = 0.01, *, optimiser: Optimiser = optax.sgd) -> Descent:
    """Repeated gradient descent on everybody's data in one place."""
    return Descent("rgd", learning_rate, optimiser, pooled=True)


def rrm(learning_rate: float = 0.05, *, inner_steps: int = 100, optimiser: Optimiser = optax.sgd) -> Descent:
    """Repeated risk minimisation: ``inner_steps`` gradient steps on the data of each deployment."""
    return Descent("rrm", learning_rate, optimiser, inner_steps, pooled=True)
