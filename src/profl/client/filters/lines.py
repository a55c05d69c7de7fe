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

NEAR, EVEN = 3.0, 4.0
"""C: up to about so many sigma windows are even, beyond they grow in proportion to the distance."""

FIRST, WIDTH, BINS = 1.0, 0.4, 34
"""Bins begin at 1.5 sigma, where the bulk is thinning out, and go on for 26 half sigmas, to 180 sigma; the last one is
open."""

RISE = 2.2
TIMES = 2.2

MODE, HALF_MODE, PEAKED, EDGE = 0.4, 0.48, 0.5, 0.02
FEW = 10
GRAIN = 0.1
BESIDE = 0.5

HEAVIEST = 0.75
FROM = 4
EXCESS = 2.8
LARGE = 12.0

PLACES = FIRST + WIDTH * np.arange(BINS + 1)
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
    present_first = here < count
    ahead = ordered[:, jnp.minimum(here + half, n - 1)]
    start = jnp.where(here + half < count, ordered, -jnp.inf)
    width = ahead - start
    first = jnp.argmin(width, axis=1)[:, None]
    low, width = jnp.take_along_axis(ordered, first, 1)[:, 0], jnp.take_along_axis(width, first, 1)[:, 0]
    step = jnp.maximum((GRAIN * count).astype(int), 1)
    inside = (here >= first) & (here + step <= first + half)
    grain = jnp.max(jnp.where(inside, ordered[:, jnp.minimum(here + step, n - 1)] - ordered, 0.0), axis=1)
    same = (MODE * count).astype(int)
    ahead = ordered[:, jnp.minimum(here + same, n - 1)]
    narrow = jnp.where((here >= first) & (here + same <= first + half), ahead - ordered, jnp.inf)
    where = jnp.argmin(narrow, axis=1)[:, None]
    narrow = jnp.take_along_axis(narrow, where, 1)[:, 0]
    bottom = jnp.take_along_axis(ordered, where, 1)
    slack = PEAKED * width[:, None]
    below, above = (jnp.sum(far & present_first, axis=1) for far in (ordered < bottom - slack, ordered > bottom + narrow[:, None] + slack))
    repeated = (narrow < PEAKED * width) & (jnp.minimum(below, above) > EDGE * count)
    most = (HALF_MODE * count).astype(int)
    equal = (here >= first) & (here + most <= first + half) & (ordered[:, jnp.minimum(here + most, n - 1)] <= ordered)
    repeated = repeated | jnp.any(equal, axis=1)
    last = ordered[:, count - 1 - jnp.minimum(FEW, count // 4)]
    return Bulk(low + width / 2, jnp.where(repeated, 0.0, width / HALF_OF_NORMAL), grain, last)


class Group(NamedTuple):
    """What lies apart along (k,) lines on one side: how clearly (0: nothing), and the value to cut at."""

    score: Array
    cut: Array
    beside: Array  # the value to cut at where there is a group on the other side, which calls for less evidence


def group_above(lines: Array, present: Array, bulk: Bulk, at_most: Array, even: np.ndarray) -> Group:
    """The clearest group above the bulk of (k, n) lines that holds at most ``at_most`` of the samples."""
    places = even[:, None] * np.sinh(PLACES / even[:, None])
    tail = (1 / np.expm1(HEAVIEST * 2 * WIDTH / even))[:, None].astype(lines.dtype)
    edges = bulk.centre[:, None] + bulk.sigma[:, None] * places.astype(lines.dtype)
    grain = jnp.maximum(bulk.grain, 1e-3 * bulk.sigma)[:, None, None]
    grain = jnp.where(grain > 0, grain, 1.0)
    above = jnp.clip((lines[:, None, :] - edges[:, :, None]) / grain + 0.5, 0.0, 1.0)
    beyond = jnp.sum(jnp.where(present, above, 0.0), axis=2)  # (k, bins + 1)
    bins = jnp.concatenate([beyond[:, :-1] - beyond[:, 1:], beyond[:, -1:]], axis=1)
    stretch = bins[:, :-1] + bins[:, 1:]  # (k, bins)
    peak = jnp.max(jnp.where(LATER, stretch[:, None, :], 0.0), axis=2)
    rise = (peak - stretch) / jnp.sqrt(jnp.maximum(peak + stretch, 1.0))
    outside = beyond[:, 1:]
    after = outside - bins[:, 1:]
    excess = (after - tail * stretch) / jnp.sqrt(jnp.maximum(after + tail**2 * stretch, 1.0))
    possible = (outside <= at_most) & (bulk.sigma > 0)[:, None]
    far = np.arange(BINS) >= FROM

    needed = 1 + LARGE * (outside / jnp.sum(present)) ** 2

    def valley(part: float) -> tuple[Array, Array, Array]:
        hump = (rise > part * RISE * needed) & (peak > part * TIMES * stretch)
        heavy = (excess > part * EXCESS * needed) & far
        here = (hump | heavy) & possible
        least = jnp.min(jnp.where(here, stretch, jnp.inf), axis=1, keepdims=True)
        best = jnp.argmax(here & (stretch <= least + jnp.sqrt(least + 1)), axis=1)[:, None]
        score = jnp.maximum(rise, jnp.where(heavy, excess, 0.0))
        found = jnp.any(here, axis=1)
        cut = jnp.where(found, jnp.take_along_axis(edges, best + 1, 1)[:, 0], jnp.inf)
        return jnp.where(found, jnp.take_along_axis(score, best, 1)[:, 0], 0.0), cut, found

    score, cut, _ = valley(1.0)
    return Group(score, cut, valley(BESIDE)[1])
