"""What a filter remembers of a client's batches, so that it need not search each of them anew.

The last cut, if one line makes it: a valley between two limits on that line, and the samples in the valley and beyond
it. And the range of the figures (``suspicion``) of what was left of the batches that were searched: what the client's
sound data look like, Gaussian or not. Where no one line divides as the search did, nothing is usual: the next batch is
searched again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.parts.filters.points import projected, shares, weighed
from profl.parts.filters.projections import between
from profl.typing import Array

FIGURES = 5
"""Of a batch; see ``suspicion.figures``."""

FADES = 0.98
"""What is left of a range after every batch, in steps towards the last one: a world that changes is learnt anew."""

ROOM, ROOM_OF_SCALE = 1.25, 3.0
"""How far out of the range figures may be, as a factor, and the logarithm of the variance, in standard errors of one
Gaussian coordinate."""

ERRORS = 5.0
"""Standard errors by which the shares in the valley and beyond it may differ from the remembered ones."""


MOST, GAP = 0.75, 0.25
"""Of what a search cut off, the share that must lie beyond a gap on one line, and the gap's width beside that of half
of what was kept."""

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
    """The weights of the (d, n) points within the remembered cut, and whether it still lies in a valley."""
    return within(cut, projected(cut.direction, points), weights, jnp.any(cut.direction != 0))


def within(cut: Cut, line: Array, weights: Array, known: Array) -> tuple[Array, Array]:
    """The same of samples at these places on the cut's line, (n,), where a cut is ``known``.

    The centre is moved with the samples first: people react, and the valley goes with them.
    """
    share = shares(weights)
    along = line - cut.centre

    def inside(along: Array, limits: Array) -> Array:
        return jnp.where((along > -limits[0]) & (along < limits[1]), share, 0.0)

    along = along - weighed(along, shares(inside(along, cut.outer)))
    stays, one = inside(along, cut.outer), jnp.sum(share**2)  # one sample's share
    crowd, beyond = jnp.sum(stays) - jnp.sum(inside(along, cut.inner)), 1 - jnp.sum(stays)

    def error(share: Array) -> Array:
        return ERRORS * jnp.sqrt(one * (share + one))

    empty = crowd < cut.crowd + error(cut.crowd)
    same = jnp.abs(beyond - cut.beyond) < error(cut.beyond)
    return jnp.where(known & (stays == 0), 0.0, weights), ~known | (empty & same)


def along_a_line(points: Array, weights: Array, kept: Array) -> tuple[Cut, Array]:
    """A cut of the (d, n) points that leaves what was kept of them, in the middle of the gap on Fisher's line between
    that and the rest; and whether there is such a gap, with ``MOST`` of the rest beyond it.

    What a search by distance cut off with a group comes back so: if it was no junk, the better; if it was, the figures
    of what is left are not those of the kept ones, and the batch is searched.
    """
    gone = jnp.where(kept > 0, 0.0, weights)
    direction = between(points, kept, gone)
    line = projected(direction, points)
    centre = weighed(line, shares(kept))
    line = line - centre
    last = jnp.max(jnp.where(kept > 0, line, -NOT_YET))
    ahead = (gone > 0) & (line > last)
    first = jnp.min(jnp.where(ahead, line, NOT_YET))
    beyond = jnp.sum(jnp.where(ahead, gone, 0.0))
    inner, outer = (jnp.stack([jnp.asarray(NOT_YET), above]) for above in (last, (last + first) / 2))
    apart = (beyond > MOST * jnp.sum(gone)) & (first - last > GAP * last)
    return Cut(direction, centre, inner, outer, jnp.zeros(()), beyond / jnp.sum(weights)), apart


def usual(memory: Memory, told: Array, kept: Array) -> Array:
    """Whether figures of the samples that were kept are in the range of those that were found sound, or a Gaussian's.

    The logarithm of a variance has a variance of 2 / n.
    """
    room = ROOM_OF_SCALE * jnp.sqrt(2 * jnp.sum(shares(kept) ** 2))
    scale, low, high = told[-1], memory.low[-1] - room, memory.high[-1] + room
    within = (told >= memory.low / ROOM) & (told <= memory.high * ROOM)
    return jnp.all((within | (told < 1))[:-1]) & (scale >= low) & (scale <= high)


def learned(memory: Memory, cut: Cut, told: Array) -> Memory:
    """With one more batch that was searched, and the figures of what was left of it."""
    begun = memory.low <= memory.high
    low, high = (jnp.where(begun, told + FADES * (end - told), told) for end in (memory.low, memory.high))
    return Memory(cut, jnp.minimum(low, told), jnp.maximum(high, told))
