"""What clients know of their reactions becomes a common prior: a mean, and how much clients differ.

A coefficient (an entry of J, or of the curvature of f) is b_i at client i, with b_i ~ N(b, variance). A client knows
its b_i with variance v_i, given that prior. One turn of messages is one step of EM for b and of MacKay's rule for the
variance, under the aggregation rule of the method:

    b         <- b + mean(b_i - b)                                 shrunk to zero where it is below its error
    variance  <- mean((b_i - b)^2) / mean(1 - v_i / variance)      1 - v_i / variance: the share of b_i that comes from
                                                                   the client's own observations

Clients add Nesterov's momentum from turn to turn: a single client sees few directions, all together see many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from profl.methods.prm.messages import CommonReaction, ReactionCoefficients
from profl.methods.prm.settings import DAMPING, LEAST_ERROR, LEAST_KNOWN_SHARE
from profl.typing import Array


def consensus(reported: Array, aggregate: Callable[..., Any], concentration: Array) -> CommonReaction:
    """The common prior from stacked reports, (k, 4, p, m - 1): those of ``ReactionCoefficients``.

    ``aggregate`` combines the rows of each of its arguments, ``concentration`` is the sum of squared weights.
    """
    change, known, prior_mean, variance = ReactionCoefficients(*aggregate(*jnp.moveaxis(reported, 1, 0)))
    mean = prior_mean + change
    (squared_difference,) = aggregate((reported[:, 0] + reported[:, 2] - mean) ** 2)
    error = variance * concentration / jnp.maximum(known, LEAST_KNOWN_SHARE)
    tiny = jnp.finfo(mean.dtype).tiny
    limit = prior_mean + change / jnp.maximum(known, LEAST_KNOWN_SHARE)  # where the turns lead to
    unknown = jnp.minimum(error / jnp.maximum(limit**2, tiny), 1.0)
    confidence = 1 - unknown**2
    error = error * jnp.maximum(confidence, LEAST_ERROR)
    return CommonReaction(mean * confidence, (squared_difference + DAMPING * variance) / (known + DAMPING), error)
