"""Groups of junk that lie near: they show as a hump along the top direction, behind a valley.

Cut at the valley, on both sides alike, so that cutting does not shift the mean. Smooth tails do not rise and stay.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from profl.client.filters.points import top_direction
from profl.quantiles import quick_quantiles
from profl.typing import Array

CENTRAL, CENTRAL_SIGMAS = 0.25, 0.319
"""A quarter of a normal lies within 0.319 sigma of its mean: sigma is read off there, where 45 % junk changes least."""

WIDTH = 0.5
"""Of a bin, in sigmas; a stretch is two of them. With half of it the cloud at 4 sigma is at 1.65, but Laplace data are
cut (98.3 % kept); with twice, the cloud at 5 sigma is at 4.3."""

FIRST, BINS = 1.5, 16
"""Bins go from 1.5 to 10.5 sigma. Nearer, a valley would lie in the bulk itself (from 1.0: no change); from 2.5 on, the
cloud at 5 sigma is at 4.6. Farther out distance alone tells: with 8 bins nothing changes."""

MORE_THAN_NORMAL = 4.0
"""Standard errors by which there must be more samples beyond a valley than a normal tail has. With 2 or 8 nothing
changes by more than 0.04: ``RISE`` decides."""

RISE = 1.2
"""Standard errors by which a stretch beyond must hold more samples than the valley. With 0.6 the cloud at 4 sigma is at
2.1, but Laplace data are cut (99.6 % kept); with 2.4 it is at 3.7."""

EDGES = FIRST + WIDTH * np.arange(BINS + 2)
NORMAL_TAIL = np.array([0.5 * math.erfc((edge + WIDTH / 2) / math.sqrt(2)) for edge in EDGES[:BINS]])


def within_valleys(points: Array, kept: Array) -> Array:
    """The weights of those of the (d, n) points, centred on the bulk, that lie this side of a valley."""
    line = top_direction(points, kept) @ points
    unit = quick_quantiles(jnp.abs(line), kept, (CENTRAL,))[0] / CENTRAL_SIGMAS
    place = line / jnp.maximum(unit, jnp.finfo(line.dtype).tiny)
    cut = jnp.minimum(_valley(place, kept), _valley(-place, kept))
    return jnp.where(jnp.abs(place) < cut, kept, 0.0)


def _valley(place: Array, kept: Array) -> Array:
    """Where to cut above the bulk: the valley before a hump, or infinity where there is none.

    A valley is the emptiest stretch of one sigma that has, beyond it, (i) more samples than a normal tail, by
    ``MORE_THAN_NORMAL``, and (ii) a stretch of one sigma with more samples than itself, by ``RISE``.
    """
    edges = EDGES.astype(place.dtype)
    inside = (place[:, None] >= edges) & (place[:, None] < edges + WIDTH) & (kept[:, None] > 0)
    counts = jnp.sum(inside, axis=0).astype(place.dtype)
    stretch = counts[:-1] + counts[1:]  # (bins + 1,): one sigma from each edge on
    beyond = jnp.sum(counts) - jnp.cumsum(counts)[:BINS]
    expected = NORMAL_TAIL.astype(place.dtype) * jnp.sum(kept > 0)
    peak = jnp.max(jnp.where(np.arange(BINS + 1)[None, :] > np.arange(BINS)[:, None] + 1, stretch, 0.0), axis=1)
    here = stretch[:BINS]
    too_many = beyond - expected > MORE_THAN_NORMAL * jnp.sqrt(expected + 1)
    hump = too_many & (peak - here > RISE * jnp.sqrt(peak + here))
    best = jnp.argmin(jnp.where(hump, here, jnp.inf))
    return jnp.where(jnp.any(hump), FIRST + WIDTH * (best + 1), jnp.inf)
