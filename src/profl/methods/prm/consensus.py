"""What clients found of their reactions becomes what each may expect: a mean, and how much they differ.

Every coefficient (an entry of J, or of the curvature of f) is b_i at client i, with b_i ~ N(b, spread). A client knows
its b_i with variance v_i, given that prior. One turn of messages is one step of EM for b and of MacKay's rule for the
spread, under the aggregation rule of the method:

    b       <- b + mean(b_i - b)                             shrunk to zero where it is not seen through its error
    spread  <- mean((b_i - b)^2) / mean(1 - v_i / spread)    1 - v/spread: how much of b_i the client knows by itself

Clients gain speed from turn to turn (Nesterov): a single client sees few directions, all together see many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array

DAMPING = 0.1  # of the spread's rule: where nobody knows anything by himself it stays as it is
SEEN = 1e-4  # least mean of what is known by oneself: below it 1 - v / spread is rounding

NOTHING = 0.05  # of its error is left where a coefficient is taken for nothing


class Found(NamedTuple):
    """What one client found, (p, m - 1) each."""

    change: Array  # b_i - b
    variance: Array  # v_i
    prior: Array  # b
    spread: Array


class Common(NamedTuple):
    """What the server makes of it."""

    mean: Array  # b
    spread: Array
    error: Array  # variance of b


def consensus(found: Array, agreed: Callable[[Array], Array], concentration: Array) -> Common:
    """``found`` has one row (4, p, m - 1) per report; ``concentration`` is the sum of squared weights."""
    change, _, prior, spread = agreed(found)
    known = agreed(1 - jnp.minimum(found[:, 1] / jnp.where(found[:, 3] > 0, found[:, 3], 1.0), 1.0))
    mean = prior + change
    apart = agreed((found[:, 0] + found[:, 2] - mean) ** 2)
    error = spread * concentration / jnp.maximum(known, SEEN)
    tiny = jnp.finfo(mean.dtype).tiny
    whole = prior + change / jnp.maximum(known, SEEN)  # where the turns lead to
    unseen = jnp.minimum(error / jnp.maximum(whole**2, tiny), 1.0)
    seen = 1 - unseen**2
    error = error * jnp.maximum(seen, NOTHING)
    return Common(mean * seen, (apart + DAMPING * spread) / (known + DAMPING), error)
