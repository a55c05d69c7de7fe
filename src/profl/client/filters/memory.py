"""What a filter remembers of a client's batches, so that it need not search each of them anew.

The last cut, if one line made it: a valley between two limits on that line, and the samples in the valley and beyond
it. And the range of the figures (``suspicion``) of what was left of the batches that were searched: what the client's
sound data look like, Gaussian or not. Where more than one line was needed, or distances, nothing is usual: the next
batch is searched again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.client.filters.points import mean_of, projected
from profl.typing import Array

FIGURES = 5
"""Of a batch; see ``suspicion.figures``."""

FADES = 0.98
"""What is left of a range after every batch, in steps towards the last one: a world that changes is learnt anew."""

ROOM, ROOM_OF_SCALE = 1.25, 0.1
"""How far out of the range figures may be, as a factor, and the logarithm of the variance."""

ERRORS = 5.0
"""Standard errors by which the shares in the valley and beyond it may differ from the remembered ones."""


NOT_YET = 1e30
"""The ends of a range that nothing is in."""


class Cut(NamedTuple):
    """Samples stay where -outer[0] < direction x - centre < outer[1]; no direction: all of them."""

    direction: Array  # (d,)
    centre: Array
    inner: Array  # (2,): the valleys lie between these distances, below and above the centre,
    outer: Array  # (2,): and these
    crowd: Array  # share of the samples in the valleys
    beyond: Array  # and beyond them


class Memory(NamedTuple):
    cut: Cut
    low: Array  # (FIGURES,): the range of the figures that are usual
    high: Array


def nothing(size: int) -> Memory:
    """Of points of so many numbers, before there is any."""
    zero, two = jnp.zeros(()), jnp.zeros(2)
    empty = Cut(jnp.zeros(size), zero, two, two, zero, zero)
    return Memory(empty, jnp.full(FIGURES, NOT_YET), jnp.full(FIGURES, -NOT_YET))


def recalled(cut: Cut, points: Array, weights: Array) -> tuple[Array, Array]:
    """The weights of the (d, n) points within the remembered cut, and whether it still lies in a valley.

    The centre is moved with the samples first: people react, and the valley goes with them.
    """
    known = jnp.any(cut.direction != 0)
    along = projected(cut.direction, points) - cut.centre
    weights = weights / jnp.sum(weights)

    def within(along: Array, limits: Array) -> Array:
        return jnp.where((along > -limits[0]) & (along < limits[1]), weights, 0.0)

    along = along - mean_of(along[None], within(along, cut.outer))
    kept = within(along, cut.outer)
    stays, one = jnp.sum(kept), jnp.sum(weights**2)  # one sample's share
    crowd, beyond = stays - jnp.sum(within(along, cut.inner)), 1 - stays

    def error(share: Array) -> Array:
        return ERRORS * jnp.sqrt(one * (share + one))

    empty = crowd < cut.crowd + error(cut.crowd)
    same = jnp.abs(beyond - cut.beyond) < error(cut.beyond)
    return jnp.where(known, kept, weights), ~known | (empty & same)


def usual(memory: Memory, told: Array) -> Array:
    """Whether figures are in the range of those that were found sound, or a Gaussian's."""
    scale, low, high = told[-1], memory.low[-1] - ROOM_OF_SCALE, memory.high[-1] + ROOM_OF_SCALE
    within = (told >= memory.low / ROOM) & (told <= memory.high * ROOM)
    return jnp.all((within | (told < 1))[:-1]) & (scale >= low) & (scale <= high)


def learned(memory: Memory, cut: Cut, told: Array) -> Memory:
    """With one more batch that was searched, and the figures of what was left of it."""
    begun = memory.low <= memory.high
    low, high = (jnp.where(begun, told + FADES * (end - told), told) for end in (memory.low, memory.high))
    return Memory(cut, jnp.minimum(low, told), jnp.maximum(high, told))
