"""Methods that follow L1 alone and so stop at the performatively stable point.

* ``pfl``: performative federated learning, FedAvg on what comes in (Jin et al. 2024).
* ``rgd``, ``rrm``: its centralised ancestors (Perdomo et al. 2020): one gradient step per deployment, or a full
  minimisation on the data of each deployment.
"""

from __future__ import annotations

from typing import Any

import optax

from profl import checks
from profl.methods.chain import Chain, chain
from profl.parts.averaging import Averaging
from profl.parts.drift_correction import DriftCorrection
from profl.parts.gradient import PlainGradient
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.optimiser import Optimiser, OptimiserLike
from profl.parts.personal import ModelSplit, PersonalModel
from profl.parts.retraining import Retraining


@checks.explain_call
def pfl(
    learning_rate: float | str = 0.01,
    *,
    aggregate: Any = "mean",
    optimiser: OptimiserLike = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> Chain:
    """Plain federated retraining: ends at the stable point; near it where clients differ and drift is not corrected.

    ``personal`` names parts of theta that stay at the client, or is True for all (``profl.parts.personal``).

    >>> pfl(learning_rate=0.1).settings()["learning_rate"]
    0.1
    """
    return chain(
        PlainGradient(),
        FoundLearningRate(descends=False) if learning_rate == "auto" else None,
        None if correction is None else DriftCorrection(correction),
        Optimiser(learning_rate, optimiser),
        None if personal is None else PersonalModel(ModelSplit(personal)),
        Averaging(aggregate),
        name="pfl",
    )


@checks.explain_call
def rgd(learning_rate: float | str = 0.01, *, optimiser: OptimiserLike = optax.sgd) -> Chain:
    """Repeated gradient descent on everybody's data in one place."""
    rate = FoundLearningRate(descends=False) if learning_rate == "auto" else None
    return chain(PlainGradient(), rate, Optimiser(learning_rate, optimiser), name="rgd", pooled=True)


@checks.explain_call
def rrm(
    learning_rate: float = 0.05,
    *,
    inner_steps: int = 100,
    optimiser: OptimiserLike = optax.sgd,
    window: int = 1,
    until: float | None = None,
) -> Chain:
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
        minimiser = Optimiser(learning_rate, optimiser, inner_steps)
    else:
        minimiser = Retraining(learning_rate, optimiser, inner_steps, window, until)
    return chain(PlainGradient(), minimiser, name="rrm", pooled=True)
