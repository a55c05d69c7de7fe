"""Is there a group apart from the bulk along a line? And where to cut it off.

    bulk      the shortest stretch that holds half of the samples: centre m, sigma = width / 1.349
    places    u = (x - m) / sigma, in windows of equal width of C asinh(u / C): even near the bulk, in proportion farther
    valley    a stretch beyond which another one of the same width holds more: by ``RISE`` standard errors and
              ``TIMES`` as many

Half of the samples are never junk, so no repeated value that a minority shares is taken for the bulk. Data without junk
thin out towards either side, whatever their shape, also in windows that grow in proportion: for that a tail need only
be lighter than 1 / x, which has no mean. Lattices and counts thin out once every sample is spread over the widest
``grain`` between neighbours in the bulk. Where half of the samples have one value there is no width to measure by: such
a line (zeros, rare events) is no reason to cut anything.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from profl.typing import Array

HALF_OF_NORMAL = 1.349
"""The shortest half of a normal is so many deviations wide."""

EVEN = 3.0
"""C: up to about so many sigma windows are even, beyond they grow in proportion to the distance."""

FIRST, WIDTH, BINS = 1.5, 0.5, 26
"""Bins begin at 1.5 sigma, where the bulk is thinning out, and go on for 26 half sigmas, to 180 sigma; the last one is
open."""

RISE = 2.5
TIMES = 2.5

MODE = 0.4
FEW = 10

HEAVIEST = 0.75
FROM = 2
FAR_TAIL = 1 / math.expm1(HEAVIEST * 2 * WIDTH / EVEN)
EXCESS = 3.0

PLACES = FIRST + WIDTH * np.arange(BINS + 1)
EDGES = EVEN * np.sinh(PLACES / EVEN)
LATER = np.arange(BINS)[None, :] > np.arange(BINS)[:, None] + 1


class Bulk(NamedTuple):
    """The shortest half of the samples along (k,) lines."""

    centre: Array
    sigma: Array
    grain: Array
    last: Array  # beyond it lie ``FEW`` samples, or a quarter of them


def bulk_of(lines: Array, present: Array) -> Bulk:
    """Of (k, n) lines, where ``present`` (n,) says which samples count."""
    n = lines.shape[1]
    count = jnp.sum(present)
    ordered = jnp.sort(jnp.where(present, lines, jnp.inf), axis=1)
    half = count // 2
    here = jnp.arange(n)
    ahead = ordered[:, jnp.minimum(here + half, n - 1)]
    start = jnp.where(here + half < count, ordered, -jnp.inf)
    width = ahead - start
    first = jnp.argmin(width, axis=1)[:, None]
    low, width = jnp.take_along_axis(ordered, first, 1)[:, 0], jnp.take_along_axis(width, first, 1)[:, 0]
    gap = ordered[:, 1:] - ordered[:, :-1]
    inside = (here[1:] > first) & (here[1:] <= first + half)
    grain = jnp.max(jnp.where(inside, gap, 0.0), axis=1)
    same = (MODE * count).astype(int)
    repeated = ordered[:, jnp.minimum(here + same, n - 1)] <= ordered
    repeated = jnp.any(repeated & (here >= first) & (here + same <= first + half), axis=1)
    last = ordered[:, count - 1 - jnp.minimum(FEW, count // 4)]
    return Bulk(low + width / 2, jnp.where(repeated, 0.0, width / HALF_OF_NORMAL), grain, last)


class Group(NamedTuple):
    """What lies apart along (k,) lines on one side: how clearly (0: nothing), and the value to cut at."""

    score: Array
    cut: Array


def group_above(lines: Array, present: Array, bulk: Bulk, at_most: float) -> Group:
    """The clearest group above the bulk of (k, n) lines that holds at most a share ``at_most`` of the samples."""
    edges = bulk.centre[:, None] + bulk.sigma[:, None] * EDGES.astype(lines.dtype)
    grain = jnp.maximum(bulk.grain, 1e-3 * bulk.sigma)[:, None, None]
    grain = jnp.where(grain > 0, grain, 1.0)
    above = jnp.clip((lines[:, None, :] - edges[:, :, None]) / grain + 0.5, 0.0, 1.0)
    beyond = jnp.sum(jnp.where(present, above, 0.0), axis=2)  # (k, bins + 1)
    bins = jnp.concatenate([beyond[:, :-1] - beyond[:, 1:], beyond[:, -1:]], axis=1)
    stretch = bins[:, :-1] + bins[:, 1:]  # (k, bins)
    peak = jnp.max(jnp.where(LATER, stretch[:, None, :], 0.0), axis=2)
    rise = (peak - stretch) / jnp.sqrt(jnp.maximum(peak + stretch, 1.0))
    outside = beyond[:, 1:]
    few = outside <= at_most
    after = outside - bins[:, 1:]
    excess = (after - FAR_TAIL * stretch) / jnp.sqrt(jnp.maximum(after + FAR_TAIL**2 * stretch, 1.0))
    heavy = (excess > EXCESS) & (np.arange(BINS) >= FROM)
    hump = (rise > RISE) & (peak > TIMES * stretch)
    rise = jnp.maximum(rise, jnp.where(heavy, excess, 0.0))
    valley = (heavy | hump) & few & (bulk.sigma > 0)[:, None]
    best = jnp.argmin(jnp.where(valley, stretch, jnp.inf), axis=1)[:, None]
    found = jnp.any(valley, axis=1)
    score = jnp.where(found, jnp.take_along_axis(rise, best, 1)[:, 0], 0.0)
    cut = jnp.take_along_axis(edges, best + 1, 1)[:, 0]
    return Group(score, jnp.where(found, cut, jnp.inf))


