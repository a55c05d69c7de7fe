"""``profl``: the whole performative gradient, when not all data and clients can be trusted (Algorithm 1).

PoFL's parts plus a filter against junk samples, and, where asked for, a robust aggregation rule against hostile
clients, Jacobians shared among clients that react alike, and a sample size that follows the noise.
"""

from __future__ import annotations

from typing import Any

import optax

from profl.algorithms.base import Algorithm, Optimiser
from profl.algorithms.pofl import auto_explore
from profl.client.explore import Exploration
from profl.client.sample_size import AdaptiveSamples


def profl(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    filter: Any = "robust",
    aggregate: Any = "mean",
    share: Any = None,
    samples: AdaptiveSamples | None = None,
    secure_aggregation: bool = False,
    jacobian: str = "kalman",
    explore: Exploration | str | None = "auto",
    second_term: str = "auto",
    optimiser: Optimiser = optax.sgd,
) -> Algorithm:
    """Performative robust optimal federated learning.

    >>> profl(filter="rubust")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown filter 'rubust'; did you mean 'robust'? There are: none, paper, robust
    """
    return Algorithm(
        "profl",
        learning_rate,
        optimiser,
        second_term,
        jacobian,
        window,
        explore=auto_explore(explore, jacobian),
        filter=filter,
        aggregate=aggregate,
        share=share,
        samples=samples,
        secure_aggregation=secure_aggregation,
    )
