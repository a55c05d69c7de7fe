"""The robust filter: find the bulk of a batch, then drop what is not part of it.

Figures beside the numbers here and in ``humps`` are errors of the filtered mean over those of the mean of the truly
clean samples (root mean square of 60 trials, d = 5, n = 500), on junk that is hard to tell: 20 % in a box of 5 sigma
(1.19 as it is), 10 % in a cloud at 4 sigma (3.0), 20 % in a cloud at 5 sigma (1.03); and on clean data that look like
junk, exponential ones (2.06, 93 % kept: the filter's worst). Junk at 10 sigma is at 1.00 whatever the numbers, as are
clean Gaussian, Laplace and Student (5) data unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from profl import checks
from profl.client.filters.humps import within_valleys
from profl.client.filters.points import mean_of, square_distance, top_direction
from profl.client.filters.suspicion import suspicious, where_needed
from profl.quantiles import quick_quantiles
from profl.typing import Array

HALF = 0.5
"""Of the weight: the part that is clean whatever the junk, so what the bulk is found in and the least that is kept."""

LOW, QUARTER, MEDIAN = 0.1, 0.25, 0.5
"""Levels at which distances are read off. With 45 % junk far out 10 and 25 % are the 18 and 45 % points of the clean
ones, still below their middle; lower levels would be noisier with few samples."""

LOW_TO_QUARTER, QUARTER_TO_MEAN = 0.607, 0.674
"""Sigmas of a normal between its 10 % and 25 % points, and from its 25 % point to its mean."""

APPROACH = 1.5
"""Sigmas: the stretch before the limit that tells the tail of clean data from junk. With half of it Student tails are
cut (99.2 % kept); with twice, exponential data are at 1.34 and the box at 1.23."""

TAIL_RATIO, TAIL_ERRORS = 0.35, 1.5
"""Beyond the limit a smooth tail holds about a third of what lies in the stretch before it; more than that, by 1.5
standard errors, is junk. A ratio of 0.15: exponential 2.19, box 1.19. 3 standard errors: exponential 1.85, box 1.23."""

FAR_TAIL = 3.0
"""Times ``reach``: where the limit lies if the samples thin out steadily, as clean data do that are not Gaussian. With
1.5 or 6 nothing changes by more than 0.01: what lies so far out and thins out is rare."""

AGREE = 1e-20
"""A median distance below this is none: more than half of the samples have the same value in that coordinate."""


@dataclass(frozen=True)
class RobustFilter:
    """Find the bulk, then drop what is not part of it. Needs no knowledge of the fraction or the kind of junk.

    1. Centre: cut the samples in two at their mean, across the top direction, and start from the side that holds more;
       then average the nearer half of all samples, again and again. That half is clean even when 45 % are junk.
       Coordinates are measured in standard deviations of the half (at first, in median deviations).
    2. Distances r from there. The lower quantiles of r^(2/3), which is close to Gaussian for clean data of any
       effective dimension (Wilson and Hilferty), give its mean m and deviation s without looking at the half that may
       be junk; drop r^(2/3) > m + ``reach`` s. Twice, because at first m and s are blurred by the junk itself. But if
       the samples thin out steadily there (the stretch of 1.5 s before holds about three times as many as lie beyond),
       it is the tail of clean data that are not Gaussian, and only what lies past 3 ``reach`` goes.
    3. Before and after that: a group that lies nearer shows as a hump along the top direction: drop what is past the
       valley before it (``profl.client.filters.humps``).

    Never keeps less than half of the weight. All this reads the samples some thirty times; a batch in which nothing
    calls for it (``suspicious``) is left as it is.

    Args:
      reach: how far the bulk goes, in deviations s. Lower finds more of the junk and takes skewed data for it (3.5: box
        1.13, exponential 3.05), higher the other way round (5.5: 1.36 and 1.48).
      passes: how often step 2 is done. Once: cloud at 4 sigma 3.16; three times: 2.97.
      least: fewer samples than this are left alone: among so few, nothing tells the bulk from the rest.
    """

    reach: float = 4.5
    passes: int = 2
    least: int = 12
    first_order = True  # see ``profl.client.filtering``

    def __post_init__(self) -> None:
        checks.positive("reach", self.reach)
        checks.positive_int("passes", self.passes)
        checks.positive_int("least", self.least)

    def __call__(self, gradients: Array, weights: Array) -> Array:
        if gradients.shape[0] < self.least:
            return weights
        return where_needed(self, suspicious)(gradients.T[None], weights[None])[0]

    def cut(self, points: Array, weights: Array) -> Array:
        """The weights of the bulk of the (d, n) points, suspicious or not."""
        points = _standardised(jnp.where(weights > 0, points, 0.0), weights)
        inner = _nearer_half(points, weights, _larger_side(points, weights))
        inner = _nearer_half(points, weights, mean_of(points, inner))
        points = _rescaled(points, inner)
        points = _rescaled(points, _nearer_half(points, weights, jnp.zeros(points.shape[0], points.dtype)))
        kept, centre = _drop_humps(points, weights, weights), jnp.zeros(points.shape[0], points.dtype)
        for turn in range(self.passes):
            if turn:
                centre = mean_of(points, _nearer_half(points, kept, centre))
            kept = self._drop_far(square_distance(points, centre), kept, weights)
        kept = _drop_humps(points - centre[:, None], kept, weights)
        return jnp.where(jnp.sum(weights > 0) >= self.least, kept, weights)

    def _drop_far(self, distance: Array, kept: Array, weights: Array) -> Array:
        low, quarter, half = jnp.cbrt(quick_quantiles(distance, kept, (LOW, QUARTER, MEDIAN)))  # of r^(2/3)
        deviation = (quarter - low) / LOW_TO_QUARTER

        def limit(reach: float) -> Array:
            return jnp.maximum(quarter + (QUARTER_TO_MEAN + reach) * deviation, half) ** 3

        far = limit(self.reach)
        outside = jnp.sum((distance > far) & (kept > 0))
        before = jnp.sum((distance > limit(self.reach - APPROACH)) & (kept > 0)) - outside
        junk = outside > TAIL_RATIO * before + TAIL_ERRORS * jnp.sqrt(before + 1.0)
        keep = distance <= jnp.where(junk, far, limit(FAR_TAIL * self.reach))
        return _at_least_half(jnp.where(keep, kept, 0.0), kept, weights)


def _drop_humps(points: Array, kept: Array, weights: Array) -> Array:
    return _at_least_half(within_valleys(points, kept), kept, weights)


def _at_least_half(new: Array, old: Array, weights: Array) -> Array:
    """``new`` unless that would keep less than half of the weight there was at first."""
    return jnp.where(jnp.sum(new) >= HALF * jnp.sum(weights), new, old)


def _nearer_half(points: Array, weights: Array, centre: Array) -> Array:
    """The weights of the half that lies nearer to the centre alone."""
    distance = square_distance(points, centre)
    return jnp.where(distance <= quick_quantiles(distance, weights, (HALF,))[0], weights, 0.0)


def _rescaled(points: Array, inner: Array) -> Array:
    """Coordinates around the mean of the inner samples, in their standard deviations."""
    moved = points - mean_of(points, inner)[:, None]
    sd = jnp.sqrt(mean_of(moved**2, inner))
    return moved / jnp.where(sd > 0, sd, 1.0)[:, None]


def _standardised(points: Array, weights: Array) -> Array:
    """Coordinates in units of their median distance from their median; of their mean one where more than half agree."""
    moved = points - quick_quantiles(points, weights, (MEDIAN,))
    away = jnp.abs(moved)
    scale = quick_quantiles(away, weights, (MEDIAN,))
    mean = (away @ weights)[:, None]
    return moved / jnp.where(scale > AGREE, scale, jnp.where(mean > 0, mean, 1.0))


def _larger_side(points: Array, weights: Array) -> Array:
    """The mean of the samples on that side of the mean, along the top direction, that holds more of them."""
    centred = points - mean_of(points, weights)[:, None]
    ahead = top_direction(centred, weights) @ centred > 0
    side = ahead == (jnp.sum(jnp.where(ahead, weights, 0.0)) > HALF * jnp.sum(weights))
    return mean_of(points, jnp.where(side, weights, 0.0))
