"""Is there a group apart from the bulk along a line? And where to cut it off.

    bulk      the shortest stretch that holds half of the samples: centre m, sigma = width / 1.349
    places    u = (x - m) / sigma, in windows of equal width of C asinh(u / C), so in proportion to u where it is large
    valley    a window (i) beyond which another one holds more samples, or (ii) beyond which there are more in all than
              beyond the same window of a tail of index 1.25, which hardly has a mean

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

from profl.parts.filters import histogram as tables
from profl.parts.filters.histogram import Table
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

RISE, RISE_ALONE, TIMES = 1.4, 2.4, 1.6
"""A window beyond must hold more by so many standard errors (the second where the samples are single numbers, and one
line is all there is), and so many times as many. With 1.55 10 % in a cloud at 5 sigma are at 1.4 (now 1.2); with 1.3
and 1.5 times clean lognormal data are at 1.1 (now 1.02), single numbers with 1.8 at 1.14."""

HEAVIEST, EXCESS, FROM = 1.25, 2.3, 4
"""The index of the heaviest tail, the standard errors by which there must be more, and the first bin it is asked at.
With 0.75 Cauchy junk passes for a tail (20 % of it at 5 sigma: 1.41, now 1.06); with 1.5 Pareto(3) data are at 1.18."""

LARGE_NEAR, LARGE = 4.0, 22.0
"""Evidence must be 1 + 22 share^2 times as strong for a group of a larger share: 1.2 times at 10 %, 5 at 45 %. With 12
45 % on a ray through the data are at 1.08 times the plain mean. 4 for distances, where a wrong cut moves it less."""

FEW = 0.045
"""And 1 + (0.045 / share)^2 times as strong for a small one: samples far out in a long tail cluster by chance."""

BESIDE = 0.25
"""Of the evidence is enough on the other side of a line that has a group: cut on one side, a pair moves the mean."""

SOME, PART = 10, 4
"""``last`` has ten samples beyond it, or a quarter where that is less."""

FARTHER = 1.2
"""Times the last place: what lies beyond is counted, and need not be placed."""

VETTED, LENIENT = 3.0, 0.7
"""Standard errors by which there must be more in a group than among the vetted samples beyond 0.7 of its distance:
along a line that was found in the batch they lie nearer."""

LEVELS = 40
"""Quantiles that the bulk is found among."""

RESOLVED, ZOOMS = 8, 3
"""Bins that a bulk spans in a table that tells its width; where it does not, the table is made anew around it."""

LEAST_GRAIN, GRAIN_IN_PROPORTION = 0.05, 0.1
"""Every sample is spread over so much of sigma, and of its distance, at least."""

PLACES = FIRST + WIDTH * np.arange(BINS + 1)


class Bulk(NamedTuple):
    """The shortest half of the samples along (k,) lines; sigma is zero where it has no width to measure by."""

    centre: Array
    sigma: Array
    grain: Array
    last: Array
    table: Table


class Known(NamedTuple):
    """Vetted samples: (d, m) points, or (k, m) lines through them, and (m,) weights; zero for those of other groups."""

    points: Array
    weights: Array


class Group(NamedTuple):
    """What lies apart above the bulk along (k,) lines: how clearly (0: nothing), and where to cut."""

    score: Array
    valley: Array
    """(k, 2): where it begins, and where to cut; infinite where there is none."""
    beside: Array
    """The same if there is a group on the other side."""


def bulk_of(lines: Array, present: Array, mean: Array, variance: Array) -> Bulk:
    """Of (k, n) lines, where ``present`` (n,) says which samples count, first looked at from their means."""
    tiny = jnp.finfo(jnp.float32).tiny ** 0.5

    def look(origin: Array, unit: Array) -> tuple[Bulk, Array]:
        return _bulk(tables.tabled(lines, present, origin, unit))

    def closer(state: tuple[Array, Bulk, Array]) -> tuple[Array, Bulk, Array]:
        turn, bulk, resolved = state
        origin, unit = bulk.centre, jnp.maximum(bulk.sigma, tiny)
        origin, unit = (jnp.where(resolved, *pair) for pair in ((bulk.table.origin, origin), (bulk.table.unit, unit)))
        return turn + 1, *look(origin, unit)

    deviation = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
    start = (jnp.zeros((), jnp.int32), *look(mean, deviation / tables.FINE))
    _, bulk, resolved = jax.lax.while_loop(lambda state: (state[0] < ZOOMS) & ~jnp.all(state[2]), closer, start)
    return bulk._replace(sigma=jnp.where(resolved, bulk.sigma, 0.0))


def _bulk(table: Table) -> tuple[Bulk, Array]:
    """The bulk, and whether the table resolves it."""
    count = table.total[:, None]
    levels = jnp.clip(count * (np.arange(LEVELS + 1, dtype=np.float32) / LEVELS), 0.5, count - 0.5)
    far = count - 0.5 - jnp.minimum(float(SOME), jnp.floor(count / PART))
    q = tables.quantiles(table, jnp.concatenate([levels, far], axis=1))
    q, last = q[:, :-1], q[:, -1]
    here = np.arange(LEVELS + 1)

    def span(share: float) -> Array:
        steps = round(share * LEVELS)
        return q[:, steps:] - q[:, :-steps]

    half = LEVELS // 2
    widths = span(0.5)
    first = jnp.argmin(widths, axis=1)
    low, width = (jnp.take_along_axis(values, first[:, None], 1)[:, 0] for values in (q, widths))
    centre = low + width / 2

    def inside(share: float) -> tuple[Array, Array]:
        """Spans of a share of the samples, and which of them lie in the bulk."""
        step = span(share)
        begin = here[: step.shape[1]]
        steps = round(share * LEVELS)
        return step, (first[:, None] <= begin) & (first[:, None] + half >= begin + steps)

    step, within = inside(GRAIN)
    grain = jnp.max(jnp.where(within, step, 0.0), axis=1)
    resolution = tables.bin_width(table, centre)
    resolved = width >= RESOLVED * resolution
    step, within = inside(ONE_VALUE)
    one_value = jnp.min(jnp.where(within, step, jnp.inf), axis=1) <= resolution
    step, within = inside(SAME)
    narrow = jnp.where(within, step, jnp.inf)
    at = jnp.argmin(narrow, axis=1)
    bottom, narrow = (jnp.take_along_axis(values, at[:, None], 1)[:, 0] for values in (q, narrow))
    slack = PEAKED * width
    sides = jnp.stack([bottom - slack, bottom + narrow + slack], axis=1)
    below = tables.at_values(table, sides, table.below)
    peak = (narrow < PEAKED * width) & (jnp.minimum(below[:, 0], table.total - below[:, 1]) > EDGE * table.total)
    sigma = jnp.where(resolved & (one_value | peak), 0.0, width / HALF_OF_NORMAL)
    return Bulk(centre, sigma, grain, last, table), resolved


def groups(
    bulk: Bulk, at_most: Array, even: np.ndarray, rise: float = RISE, vetted: Known | None = None
) -> tuple[Group, Group]:
    """The groups above and below the bulk of (k,) lines, of at most so many samples; ``even`` (k,) is each line's C.

    Where as many of the ``vetted`` samples lie, (k, m) along the same lines, is no group.
    """
    table, count = bulk.table, bulk.table.total[:, None]
    places = (even[:, None] * np.sinh(PLACES / even[:, None])).astype(np.float32)
    away = bulk.sigma[:, None] * places
    grain = jnp.maximum(jnp.maximum(bulk.grain[:, None], LEAST_GRAIN * bulk.sigma[:, None]), GRAIN_IN_PROPORTION * away)
    sums = tables.integral(table, bulk.centre, FARTHER * away[:, -1])
    own = None if vetted is None else _standing(vetted)

    def beyond(side: int) -> Array:
        """How many samples lie beyond each of (k, bins + 1) edges, every sample spread evenly over the grain."""
        edges = bulk.centre[:, None] + side * away
        ends = jnp.concatenate([edges - grain / 2, edges + grain / 2], axis=1)
        low, high = jnp.split(tables.at_values(table, ends, sums), 2, axis=1)
        return jnp.clip(-side * (high - low) / jnp.where(grain > 0, grain, 1.0), 0.0, count)

    def group(side: int) -> Group:
        found = beyond(side)
        possible = (found[:, 1:] <= at_most) & (bulk.sigma > 0)[:, None]
        if own is not None:
            assert vetted is not None
            there = (vetted.weights > 0).astype(np.float32)
            known = jnp.maximum(jnp.sum(there), 1)
            share = there @ (side * own[:, :, None] > LENIENT * places[:, None, 1:]) / known
            error = jnp.sqrt(share * (1 - share) * (1 / count + 1 / known) + 1 / count**2)
            possible &= found[:, 1:] / count > share + VETTED * error
        return _group(found, count, possible, away, even, rise)

    return group(1), group(-1)


def _standing(vetted: Known) -> Array:
    """(k, m) lines in sigmas from the centre of their own bulk."""
    lines, there = vetted.points, vetted.weights > 0
    share = there / jnp.maximum(jnp.sum(there), 1)
    mean = lines @ share
    variance = (lines - mean[:, None]) ** 2 @ share
    bulk = bulk_of(lines, there, mean, variance)
    sigma = jnp.where(bulk.sigma > 0, bulk.sigma, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)))
    return (lines - bulk.centre[:, None]) / sigma[:, None]


def _group(beyond: Array, count: Array, possible: Array, away: Array, even: np.ndarray, least: float) -> Group:
    """From the samples beyond each edge, (k, bins + 1), and the windows that a group may lie beyond, (k, bins)."""
    tail = (1 / np.expm1(HEAVIEST * 2 * WIDTH / even))[:, None].astype(np.float32)
    bins = jnp.concatenate([beyond[:, :-1] - beyond[:, 1:], beyond[:, -1:]], axis=1)
    window = bins[:, :-1] + bins[:, 1:]  # (k, bins)
    later = jax.lax.cummax(window, axis=1, reverse=True)
    peak = jnp.pad(later[:, 2:], ((0, 0), (0, 2)))
    rise = (peak - window) / jnp.sqrt(jnp.maximum(peak + window, 1.0))
    outside = beyond[:, 1:]  # of the middle of the window
    after = outside - bins[:, 1:]
    excess = (after - tail * window) / jnp.sqrt(jnp.maximum(after + tail**2 * window, 1.0))
    large = np.where(even < EVEN, LARGE_NEAR, LARGE)[:, None].astype(np.float32)
    share = jnp.maximum(outside, 1.0) / count
    needed = 1 + large * share**2 + (FEW / share) ** 2

    def valley(part: float) -> tuple[Array, Array]:
        hump = (rise > part * least * needed) & (peak > part * TIMES * window)
        heavy = (excess > part * EXCESS * needed) & (np.arange(BINS) >= FROM)
        here = (hump | heavy) & possible
        empty = jnp.min(jnp.where(here, window, jnp.inf), axis=1, keepdims=True)
        first = jnp.argmax(here & (window <= empty + jnp.sqrt(empty + 1)), axis=1, keepdims=True)
        score = jnp.maximum(rise, jnp.where(heavy, excess, 0.0))
        found = jnp.any(here, axis=1, keepdims=True)
        score = jnp.where(found, jnp.take_along_axis(score, first, 1), 0.0)[:, 0]
        return score, jnp.where(found, jnp.take_along_axis(away, first + np.arange(2), 1), jnp.inf)

    return Group(*valley(1.0), valley(BESIDE)[1])
