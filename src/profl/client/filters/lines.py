"""Is there a group apart from the bulk along a line? And where to cut it off.

    bulk      the shortest stretch that holds half of the samples: centre m, sigma = width / 1.349
    places    u = (x - m) / sigma, in windows of equal width of C asinh(u / C), so in proportion to u where it is large
    valley    a window (i) beyond which another one holds more samples, or (ii) beyond which there are more in all than
              beyond the same window of a tail of index 0.75, which has no mean

Half of the samples are never junk, so no repeated value that a minority shares is taken for the bulk. Data without junk
thin out towards either side, whatever their shape, also in windows that grow in proportion: for that a tail need only
be lighter than 1 / x. Lattices and counts thin out once every sample is spread over the bulk's ``grain``. Where half of
the samples have one value there is no width to measure by: such a line (zeros, rare events) is no reason to cut.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array

HALF_OF_NORMAL = 1.349
"""The shortest half of a normal is so many deviations wide."""

GRAIN = 0.1
"""Of the samples: the widest stretch of the bulk that holds so many is its grain. Counts have a step between values
there, also where a fifth of junk fills it (with the widest gap instead, Poisson(1) with junk is at 3.6)."""

SAME, PEAKED, EDGE = 0.4, 0.5, 0.02
"""A peak inside the bulk: 0.4 of the samples in less than half of its width, and samples on either side. Its width is
then the peak's, not the data's (45 % on a ray through the data: 1.14 times the plain mean)."""

ONE_VALUE = 0.48
"""Of the samples, with one value in the bulk: no width to measure by."""

NEAR, EVEN = 3.0, 4.0
"""C for distances and for lines. With 8 for lines clean lognormal tails are cut, with 3 clouds at 5 sigma stay."""

FIRST, WIDTH, BINS = 1.0, 0.4, 34
"""Bins begin at 1 sigma, where the bulk is thinning out, and end at 190 (NEAR) or 80 (EVEN); the last one is open. A
window is two bins."""

RISE, TIMES = 1.8, 2.0
"""A window beyond must hold more by so many standard errors, and so many times as many."""

HEAVIEST, EXCESS, FROM = 0.75, 2.8, 4
"""The index of the heaviest tail, the standard errors by which there must be more, and the first bin it is asked at."""

LARGE_NEAR, LARGE = 4.0, 12.0
"""Evidence must be 1 + 12 share^2 times as strong for a group of a larger share: 1.1 times at 10 %, 3.4 at 45 %. With 4
for distances, where a wrong cut moves the mean less."""

FEW = 0.03
"""And 1 + (0.03 / share)^2 times as strong for a small one: samples far out in a long tail cluster by chance."""

BESIDE = 0.5
"""Of the evidence is enough on the other side of a line that has a group: cut on one side, a pair moves the mean."""

SOME, PART = 10, 4
"""``last`` has ten samples beyond it, or a quarter where that is less."""

PLACES = FIRST + WIDTH * np.arange(BINS + 1)
LATER = np.arange(BINS)[None, :] > np.arange(BINS)[:, None] + 1


class Bulk(NamedTuple):
    """The shortest half of the samples along (k,) lines; sigma is zero where it has no width to measure by."""

    centre: Array
    sigma: Array
    grain: Array
    last: Array


class Group(NamedTuple):
    """What lies apart above the bulk along (k,) lines: how clearly (0: nothing), and where to cut."""

    score: Array
    cut: Array
    beside: Array
    """Where to cut if there is a group on the other side."""


def joined(first: Bulk, second: Bulk) -> Bulk:
    return Bulk(*(jnp.concatenate(pair) for pair in zip(first, second, strict=True)))


def bulk_of(lines: Array, present: Array) -> Bulk:
    """Of (k, n) lines, where ``present`` (n,) says which samples count."""
    n = lines.shape[1]
    count, here = jnp.sum(present), jnp.arange(n)
    ordered = jnp.sort(jnp.where(present, lines, jnp.inf), axis=1)
    half = count // 2

    def span(samples: Array) -> Array:
        """From every sample to the one so many farther up."""
        return ordered[:, jnp.minimum(here + samples, n - 1)] - jnp.where(here + samples < count, ordered, -jnp.inf)

    width = span(half)
    first = jnp.argmin(width, axis=1, keepdims=True)
    low, width = (jnp.take_along_axis(values, first, 1)[:, 0] for values in (ordered, width))

    def inside(share: float) -> tuple[Array, Array]:
        """Spans of a share of the samples, and which of them lie in the bulk."""
        samples = jnp.maximum((share * count).astype(int), 1)
        return span(samples), (here >= first) & (here + samples <= first + half)

    step, within = inside(GRAIN)
    grain = jnp.max(jnp.where(within, step, 0.0), axis=1)
    step, within = inside(ONE_VALUE)
    one_value = jnp.any((step <= 0) & within, axis=1)
    step, within = inside(SAME)
    at = jnp.argmin(jnp.where(within, step, jnp.inf), axis=1, keepdims=True)
    bottom, narrow = (jnp.take_along_axis(values, at, 1) for values in (ordered, step))
    slack, real = PEAKED * width[:, None], here < count
    below = jnp.sum((ordered < bottom - slack) & real, axis=1)
    above = jnp.sum((ordered > bottom + narrow + slack) & real, axis=1)
    peak = (narrow[:, 0] < PEAKED * width) & (jnp.minimum(below, above) > EDGE * count)
    last = ordered[:, count - 1 - jnp.minimum(SOME, count // PART)]
    return Bulk(low + width / 2, jnp.where(one_value | peak, 0.0, width / HALF_OF_NORMAL), grain, last)


def group_above(lines: Array, present: Array, bulk: Bulk, at_most: Array, even: np.ndarray) -> Group:
    """The group above the bulk of (k, n) lines, of at most so many samples; ``even`` (k,) is each line's C."""
    places = (even[:, None] * np.sinh(PLACES / even[:, None])).astype(lines.dtype)
    tail = (1 / np.expm1(HEAVIEST * 2 * WIDTH / even))[:, None].astype(lines.dtype)
    edges = bulk.centre[:, None] + bulk.sigma[:, None] * places
    beyond = _beyond(lines, present, edges, bulk)
    bins = jnp.concatenate([beyond[:, :-1] - beyond[:, 1:], beyond[:, -1:]], axis=1)
    window = bins[:, :-1] + bins[:, 1:]  # (k, bins)
    peak = jnp.max(jnp.where(LATER, window[:, None, :], 0.0), axis=2)
    rise = (peak - window) / jnp.sqrt(jnp.maximum(peak + window, 1.0))
    outside = beyond[:, 1:]  # of the middle of the window
    after = outside - bins[:, 1:]
    excess = (after - tail * window) / jnp.sqrt(jnp.maximum(after + tail**2 * window, 1.0))
    possible = (outside <= at_most) & (bulk.sigma > 0)[:, None]
    large = np.where(even < EVEN, LARGE_NEAR, LARGE)[:, None].astype(lines.dtype)
    share = jnp.maximum(outside, 1.0) / jnp.sum(present)
    needed = 1 + large * share**2 + (FEW / share) ** 2

    def valley(part: float) -> tuple[Array, Array]:
        hump = (rise > part * RISE * needed) & (peak > part * TIMES * window)
        heavy = (excess > part * EXCESS * needed) & (np.arange(BINS) >= FROM)
        here = (hump | heavy) & possible
        least = jnp.min(jnp.where(here, window, jnp.inf), axis=1, keepdims=True)
        first = jnp.argmax(here & (window <= least + jnp.sqrt(least + 1)), axis=1, keepdims=True)
        score = jnp.maximum(rise, jnp.where(heavy, excess, 0.0))
        score, cut = (jnp.take_along_axis(values, first, 1)[:, 0] for values in (score, edges[:, 1:]))
        found = jnp.any(here, axis=1)
        return jnp.where(found, score, 0.0), jnp.where(found, cut, jnp.inf)

    return Group(*valley(1.0), valley(BESIDE)[1])


def _beyond(lines: Array, present: Array, edges: Array, bulk: Bulk) -> Array:
    """How many samples lie beyond each of (k, bins + 1) edges, every sample spread evenly over the grain."""
    grain = jnp.maximum(bulk.grain, jnp.finfo(lines.dtype).eps * jnp.abs(bulk.centre))
    scale = 1 / jnp.where(grain > 0, grain, 1.0)[:, None]
    weight = present.astype(lines.dtype)

    def one(edge: Array) -> Array:
        return jnp.clip((lines - edge[:, None]) * scale + 0.5, 0.0, 1.0) @ weight

    return jax.vmap(one, in_axes=1, out_axes=1)(edges)
