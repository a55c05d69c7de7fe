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
"""Of a bin, in sigmas. A stretch is two of them: one sigma, as wide as the narrowest group that noise lets one see."""

FIRST, BINS = 1.5, 16
"""Bins go from 1.5 to 10.5 sigma. Nearer, a valley would lie in the bulk itself; farther, distance alone tells."""

MORE_THAN_NORMAL = 4.0
"""Standard errors by which there must be more samples beyond a valley than a normal tail has."""

RISE = 1.2
"""Standard errors by which a stretch beyond must hold more samples than the valley. Low, because the valley before a
near group is shallow; what keeps tails that are merely long is ``MORE_THAN_NORMAL`` together with it."""

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
