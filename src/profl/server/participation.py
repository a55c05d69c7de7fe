"""Who takes part in a round, what each one's model weighs in the average, and who is hostile in a simulated attack.

* "uniform": m clients without replacement; weights alpha_i renormalised over those who answer.
* "weighted": m draws with replacement, client i with probability alpha_i; every draw weighs the same, so the average is
  unbiased for sum_i alpha_i theta_i. A client drawn twice works once and counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Array, Key

SCHEMES = ("uniform", "weighted")


def slots(fraction: float, clients: int) -> int:
    """How many clients a round asks: at least one.

    >>> slots(0.3, 10), slots(0.01, 10)
    (3, 1)
    """
    return max(1, math.floor(fraction * clients + 0.5))


def choose(key: Key, scheme: str, count: int, weights: Array) -> tuple[Array, Array]:
    """(client indices, weights in the average), both of shape (count,)."""
    clients = weights.shape[0]
    if scheme == "weighted":
        chosen = jax.random.choice(key, clients, (count,), replace=True, p=weights)
        return chosen, jnp.full(count, 1.0 / count)
    if count == clients:
        return jnp.arange(clients), weights
    chosen = jnp.sort(jax.random.permutation(key, clients)[:count])
    total = jnp.sum(weights[chosen])
    return chosen, weights[chosen] / jnp.where(total > 0, total, 1.0)  # all may have weight 0


def first_occurrence(chosen: Array) -> Array:
    """True where a client appears for the first time, so that one drawn twice is counted once."""
    same = chosen[:, None] == chosen[None, :]
    return jnp.argmax(same, axis=1) == jnp.arange(chosen.shape[0])


def hostile_clients(spec: Any, clients: int) -> np.ndarray:
    """Which clients are hostile: a share of them, spread evenly over their numbers, or a list of numbers. (k,) bool.

    >>> hostile_clients(0.2, 10).nonzero()[0].tolist(), hostile_clients([3], 4).tolist()
    ([2, 7], [False, False, False, True])
    """
    mask = np.zeros(clients, bool)
    if isinstance(spec, (int, float)) and not isinstance(spec, bool):
        if not 0 <= checks.real("hostile", spec) < 1:
            raise checks.InputError(f"hostile must be a share in [0, 1) or a list of client numbers, got {spec!r}")
        count = int(np.floor(spec * clients + 0.5))
        mask[(np.arange(count) * clients + clients // 2) // max(count, 1)] = True
        return mask
    if not isinstance(spec, Iterable) or isinstance(spec, str):
        raise checks.InputError(
            f"hostile must be a share in [0, 1) or a list of client numbers, got {checks.shown(spec)}"
        )
    numbers = [checks.positive_int("every hostile client", number, least=0) for number in spec]
    if any(number >= clients for number in numbers):
        raise checks.InputError(f"hostile clients must be numbered 0 to {clients - 1}, got {max(numbers)}")
    mask[numbers] = True
    return mask
