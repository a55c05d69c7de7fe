"""``profl``: the whole performative gradient, when not all data and clients can be trusted (Algorithm 1).

PoFL's parts plus a filter against junk samples, and, where asked for, a robust aggregation rule against hostile
clients, Jacobians shared among clients that react alike, and a sample size that follows the noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optax

from profl.methods.descent import Optimiser
from profl.methods.performative import PerformativeDescent
from profl.methods.pofl import performative
from profl.parts.personal import kept
from profl.parts.sample_size import AdaptiveSamples


def profl(
    learning_rate: float | str = 0.01,
    window: int = 20,
    *,
    filter: Any = "robust",
    aggregate: Any = "mean",
    share: Any = None,
    samples: Any = None,
    jacobian: Any = "tracking",
    explore: Any = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
    correction: str | None = None,
    personal: Any = None,
) -> PerformativeDescent:
    """Performative robust optimal federated learning.

    Args:
      filter: which samples to trust: "robust", "paper", "none", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines models; see ``Method``.
      share: how clients learn from each other's Jacobians: None; "shrink", each drawn towards all as far as its errors
        say; a number of clusters that react alike, "auto", or ``Clusters``.
      samples: an ``AdaptiveSamples``, or None for a fixed number; ``window`` is the H of its published bound.

    The others are those of ``profl.pofl``.

    >>> profl(filter="rubust")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown filter 'rubust'; did you mean 'robust'? There are: none, paper, robust
    """
    if isinstance(samples, AdaptiveSamples):
        samples = replace(samples, window=window)
    method = performative(
        "profl",
        learning_rate,
        window,
        jacobian,
        explore,
        share,
        filter=filter,
        aggregate=aggregate,
        samples=samples,
        second_term=second_term,
        optimiser=optimiser,
        correction=correction,
    )
    return kept(method, personal)
