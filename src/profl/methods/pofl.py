"""Methods that find the optimum by the performative gradient L1 + L2.

* ``pofl``: every client estimates its own df_i/dtheta (paper, Algorithm 1 without its robust parts).
* ``pg``: performative gradient descent by one centralised learner (Izzo et al. 2021), who sees one df/dtheta for all
  clients and is therefore biased when they differ.
"""

from __future__ import annotations

from typing import Any

import optax

from profl import checks
from profl.methods.chain import Chain, chain
from profl.parts.averaging import Averaging
from profl.parts.drift_correction import DriftCorrection
from profl.parts.exploration import Exploration
from profl.parts.gradient import PerformativeGradient
from profl.parts.jacobian import estimators
from profl.parts.jacobian.estimated import EstimatedJacobian, ExactJacobian
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.optimiser import Optimiser, OptimiserLike
from profl.parts.parameters import EstimatedParameters
from profl.parts.part import Part
from profl.parts.personal import ModelSplit, PersonalModel
from profl.parts.units import NaturalUnits


@checks.explain_call
def pofl(
    learning_rate: float | str = 0.01,
    window: int | None = None,
    *,
    aggregate: Any = "mean",
    jacobian: Any = "auto",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: OptimiserLike = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> Chain:
    """Performative optimal federated learning.

    Args:
      learning_rate: eta, or "auto" for one that is chosen during the run.
      jacobian: "kalman", one filter; "tracking", twelve of them, for people who react slowly and data that drift;
        "least_squares", "paper", "exact", or a ``profl.parts.JacobianEstimator``. "auto" is "kalman" in simulation,
        where the summary says what that leaves out, and "tracking" where people are real (``profl.LiveProblem``).
      window: H, how many earlier deployments "least_squares" and "paper" use, 20 by default; the others need none.
      explore: a ``profl.parts.Exploration`` or None; "auto" takes the default one where the estimator asks for it.
      aggregate: how the server combines models; see ``profl.parts.Averaging``. The mean trusts every client.
      second_term: how L2 is computed; see ``profl.parts.PerformativeGradient``.
      optimiser: an optax factory such as ``optax.sgd``, or a ready transformation with its own learning rate.
      correction: "scaffold" for control variates against local drift; None for none.
      personal: names of parts of theta that stay at the client, or True for all (``profl.parts.personal``).

    >>> pofl(jacobian="paper", window=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: window must be a whole number of at least 1, got 0
    """
    return chain(
        EstimatedParameters(),
        NaturalUnits(),
        *jacobian_parts(jacobian, window, explore),
        PerformativeGradient(second_term),
        FoundLearningRate() if learning_rate == "auto" else None,
        None if correction is None else DriftCorrection(correction),
        Optimiser(learning_rate, optimiser),
        None if personal is None else PersonalModel(ModelSplit(personal)),
        Averaging(aggregate),
        name="pofl",
    )


@checks.explain_call
def pg(
    learning_rate: float | str = 0.01,
    window: int | None = None,
    *,
    jacobian: Any = "auto",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: OptimiserLike = optax.sgd,
) -> Chain:
    """The performative gradient on everybody's data in one place."""
    return chain(
        EstimatedParameters(),
        NaturalUnits(),
        *jacobian_parts(jacobian, window, explore),
        PerformativeGradient(second_term),
        FoundLearningRate() if learning_rate == "auto" else None,
        Optimiser(learning_rate, optimiser),
        name="pg",
        pooled=True,
    )


def jacobian_parts(jacobian: Any, window: int | None, explore: Any) -> list[Part | None]:
    """The Jacobian's part, and the exploration that goes with it; names are short for objects."""
    if window is not None:
        checks.positive_int("window", window)
    if isinstance(explore, str):
        checks.one_of("explore", explore, ["auto"])
    elif explore is not None and not isinstance(explore, Part):
        raise checks.InputError(f"explore must be a profl.parts.Exploration(...) or None, got {explore!r}")
    if jacobian == "exact":
        return [ExactJacobian(), None if isinstance(explore, str) else explore]
    estimator = estimators.get(jacobian, window)
    if isinstance(explore, str):
        explore = Exploration() if estimator is None or estimator.explores else None
    return [EstimatedJacobian(estimator), explore]
