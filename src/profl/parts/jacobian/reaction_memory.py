"""What people may be answering to: the model of today, or an average of those that they are used to.

    seen <- memory seen + (1 - memory) signal,     settling time 1 / (1 - memory) = 1, 2, 4, ..., 32 deployments

Each is kept, and the evidence says which is meant: a smooth function of the logarithm of the settling time, read
between the grid's points on a parabola through the best and its neighbours. The first, no memory, is believed until
another has foretold clearly better, so that a world without one is seen as before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array

DOUBLINGS = 6
"""Settling times of 1, 2, 4, ..., 32 deployments."""

DOUBT = 6.0
"""Nats by which another world must have foretold better than the plain one to be believed as much."""

HELD = 0.7
"""Of a settling time is what is explored held: half of the way is gone by then, and a walk of the level not yet far."""

FLATTEST = 0.05
"""The least curvature of the evidence: where nothing is known of a memory, its settling time is so to 4 doublings."""


class Peak(NamedTuple):
    """The most likely memory."""

    gain: Array  # nats by which it foretold better than none
    doublings: Array  # log2 of its settling time
    width: Array  # standard error of that
    rows: Array  # (3,): grid points beside it,
    parts: Array  # (3,): and what each of them counts for


def follow(seen: Array, signal: Array, first: Array) -> Array:
    """What people are used to, (memories, s), after one more deployment."""
    memory = jnp.where(first, 0.0, jnp.asarray(1 - 0.5 ** np.arange(seen.shape[0]), signal.dtype))[:, None]
    return memory * seen + (1 - memory) * signal


def peak(evidence: Array) -> Peak:
    """Between the grid's points; ``evidence`` (memories,) is measured from that of no memory."""
    middle = jnp.clip(jnp.argmax(evidence), 1, evidence.shape[0] - 2)
    low, here, high = (evidence[middle + side] for side in (-1, 0, 1))
    bend = 2 * here - low - high
    away = jnp.where(bend > 0, (high - low) / (2 * jnp.where(bend > 0, bend, 1.0)), jnp.sign(high - low))
    away = jnp.clip(away, -1.0, 1.0)
    parts = jnp.stack([away * (away - 1) / 2, 1 - away**2, away * (away + 1) / 2])
    rows = middle + jnp.arange(-1, 2)
    return Peak(parts @ evidence[rows], middle + away, jax.lax.rsqrt(jnp.maximum(bend, FLATTEST)), rows, parts)


def hold(found: Peak, doubt: float) -> Array:
    """For how many deployments to hold what is explored: until people have gone half of the way."""
    return jnp.where(found.gain > doubt, held(found.doublings), 1)


def held(doublings: Array) -> Array:
    """The same, where it is certain that there is a memory."""
    return jnp.clip(jnp.round(HELD * 2**doublings), 1, 2**DOUBLINGS).astype(jnp.int32)


def meant(found: Peak, seen: Array, doubt: float) -> Array:
    """What people answer to, (s,), of what they may be used to, (memories, s)."""
    share = jax.nn.sigmoid(found.gain - doubt)
    return (1 - share) * seen[0] + share * found.parts @ seen[found.rows]
