"""``profl``: the whole performative gradient, when not all data and clients can be trusted (paper, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optax

from profl import checks
from profl.methods.chain import Chain, chain
from profl.methods.pofl import jacobian_parts
from profl.parts.averaging import Averaging
from profl.parts.drift_correction import DriftCorrection
from profl.parts.gradient import PerformativeGradient
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.optimiser import Optimiser, OptimiserLike
from profl.parts.parameters import EstimatedParameters
from profl.parts.part import Part
from profl.parts.personal import ModelSplit, PersonalModel
from profl.parts.sample_size import AdaptiveSamples
from profl.parts.sharing import SharedJacobians
from profl.parts.trusted_samples import TrustedSamples
from profl.parts.units import NaturalUnits
from profl.server import clusters


@checks.explain_call
def profl(
    learning_rate: float | str = 0.01,
    window: int | None = None,
    *,
    filter: Any = "robust",
    aggregate: Any = "reweighted_mean",
    share: Any = None,
    samples: Any = None,
    jacobian: Any = "auto",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: OptimiserLike = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> Chain:
    """Performative robust optimal federated learning.

    Args:
      filter: which samples to trust: "robust", "paper", "none", a ``profl.parts.SampleFilter``, or a function
        ``(gradients, weights) -> weights``.
      aggregate: how the server combines what clients report; see ``profl.parts.Averaging``. By default a client that
        lies far from the others counts less, so that a fifth of hostile clients moves the result little; "mean" is for
        clients that are all trusted.
      share: how clients learn from each other's Jacobians: None; "shrink", each shrunk towards all as far as its errors
        suggest; a number of clusters that react alike, "auto", or ``profl.server.Clusters``.
      samples: a ``profl.parts.AdaptiveSamples``, or None for a fixed number.

    The others are those of ``profl.pofl``.

    >>> profl(filter="rubust")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown filter 'rubust'; did you mean 'robust'? There are: none, paper, robust
    """
    sharing, (estimate, exploration) = clusters.get(share), jacobian_parts(jacobian, window, explore)
    return chain(
        None if filter == "none" else TrustedSamples(filter),  # lines 7 and 11
        EstimatedParameters(),  # lines 8 and 12
        NaturalUnits(),  # not in the paper
        estimate,  # line 13
        exploration,  # not in the paper
        None if sharing is None else SharedJacobians(sharing),  # lines 18-20
        PerformativeGradient(second_term),  # line 14
        FoundLearningRate() if learning_rate == "auto" else None,  # not in the paper
        adaptive_samples(samples, window, learning_rate),  # line 15
        None if correction is None else DriftCorrection(correction),  # not in the paper
        Optimiser(learning_rate, optimiser),  # lines 9 and 14
        None if personal is None else PersonalModel(ModelSplit(personal)),  # not in the paper
        Averaging(aggregate),  # line 17
        name="profl",
    )


def adaptive_samples(samples: Any, window: int | None, learning_rate: float | str) -> Part | None:
    """The part that says how many samples to draw, with H and eta for the published bound; None for a fixed number."""
    if samples is not None and not (isinstance(samples, Part) and samples.sizes is not None):
        raise checks.InputError(f"samples must be profl.parts.AdaptiveSamples(...) or None, got {samples!r}")
    if isinstance(samples, AdaptiveSamples) and samples.rule == "paper":
        rate = samples.learning_rate if isinstance(learning_rate, str) else float(learning_rate)
        return replace(samples, window=samples.window if window is None else window, learning_rate=rate)
    return samples
