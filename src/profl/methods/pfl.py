"""Methods that follow L1 alone and so stop at the performatively stable point.

* ``pfl``: performative federated learning, FedAvg on what comes in (Jin et al. 2024).
* ``rgd``, ``rrm``: its centralised ancestors (Perdomo et al. 2020): one gradient step per deployment, or a full
  minimisation on the data of each deployment.
"""

from __future__ import annotations

from typing import Any

import optax

from profl.methods.descent import Descent, Optimiser
from profl.methods.retraining import Retraining
from profl.parts.personal import kept


def pfl(
    learning_rate: float | str = 0.01,
    *,
    optimiser: Optimiser = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> Descent:
    """Plain federated retraining: ends at the stable point; near it where clients differ and drift is not corrected.

    ``personal`` names parts of theta that stay at the client, or is True for all (``profl.parts.personal``).

    >>> pfl(learning_rate=0.1).settings()["learning_rate"]
    0.1
    """
    return kept(Descent("pfl", learning_rate, optimiser, correction=correction), personal)


def rgd(learning_rate: float | str = 0.01, *, optimiser: Optimiser = optax.sgd) -> Descent:
    """Repeated gradient descent on everybody's data in one place."""
    return Descent("rgd", learning_rate, optimiser, pooled=True)


def rrm(
    learning_rate: float = 0.05,
    *,
    inner_steps: int = 100,
    optimiser: Optimiser = optax.sgd,
    window: int = 1,
    until: float | None = None,
) -> Descent:
    """Repeated risk minimisation: ``inner_steps`` gradient steps on the data of each deployment.

    Args:
      window: on the data of so many of the last deployments together (Khorsandi et al. 2025).
      until: instead of ``inner_steps`` and ``optimiser``, gradient descent until a step improves the loss by no more
        than this (Perdomo et al. 2020, as their notebook does it).

    >>> rrm(window=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: window must be a whole number of at least 1, got 0
    """
    if window == 1 and until is None:
        return Descent("rrm", learning_rate, optimiser, inner_steps, pooled=True)
    return Retraining("rrm", learning_rate, optimiser, inner_steps, pooled=True, window=window, until=until)
