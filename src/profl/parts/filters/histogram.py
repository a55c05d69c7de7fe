"""How the samples lie along lines, in a table: read once, and asked as often as one likes.

Bins of a place u = (x - origin) / unit are those of the bits of 1 + |u|: 32 to every doubling, of equal width within
it, so fine near the origin and in proportion farther out. No sample is sorted: XLA takes 130 ns a sample for that on a
CPU, 3 for this.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from profl import trees
from profl.typing import Array

FRACTION, DOUBLINGS = 5, 8
SIDE = DOUBLINGS << FRACTION
BINS = 2 * SIDE
"""Bins on one side of the origin, and in all: 32 to a doubling reach to 255 units."""

FINE = 8
"""Bins are so many times finer where a table begins: the deviation may be junk's, and a bulk four times narrower."""

SHIFT, ONE = 23 - FRACTION, 127 << 23  # single precision: bits of the fraction that a bin spans, and the bits of 1.0
BLOCK = 32  # bins that are summed together first

_OUTER = np.exp2(np.arange(SIDE + 1) // 2**FRACTION) * (1 + np.arange(SIDE + 1) % 2**FRACTION / 2**FRACTION) - 1
EDGES = np.concatenate([-_OUTER[::-1], _OUTER[1:]]).astype(np.float32)
WIDTHS = np.diff(EDGES)


class Table(NamedTuple):
    """(k,) lines: origins, units, and the samples below every edge (k, BINS + 1)."""

    origin: Array
    unit: Array
    below: Array

    @property
    def total(self) -> Array:
        return self.below[:, -1]


def tabled(lines: Array, present: Array, origin: Array, unit: Array) -> Table:
    """The table of (k, n) lines, of the samples (n,) that are present."""
    u = (lines - origin[:, None]) * (1 / unit)[:, None]
    counts = _counts(jnp.clip(place(u).astype(jnp.int32), 0, BINS - 1), jnp.broadcast_to(present, lines.shape))
    return Table(origin, unit, _running(counts))


def place(u: Array) -> Array:
    """Where u lies among the edges: 3.5 is the middle of the fourth bin."""
    bits = jax.lax.bitcast_convert_type(jnp.abs(u).astype(jnp.float32) + 1, jnp.int32) - ONE
    return SIDE + jnp.sign(u) * (bits.astype(jnp.float32) / (1 << SHIFT))


def quantiles(table: Table, counts: Array) -> Array:
    """The values (k, q) below which there are so many samples (k, q), evenly spread within a bin."""
    low = jnp.zeros(counts.shape, jnp.int32)
    for step in (1 << power for power in reversed(range(BINS.bit_length() - 1))):  # the last edge with fewer below it
        ahead = low + step
        low = jnp.where(_take(table.below, ahead) < counts, ahead, low)
    first, last = _take(table.below, low), _take(table.below, low + 1)
    part = jnp.clip((counts - first) / jnp.maximum(last - first, 1e-6), 0.0, 1.0)
    edges = jnp.asarray(EDGES)
    u = edges[low] + part * jnp.asarray(WIDTHS)[low]
    return table.origin[:, None] + table.unit[:, None] * u


def bin_width(table: Table, values: Array) -> Array:
    """The width of the bin that each of (k,) values lies in."""
    at = jnp.clip(place((values - table.origin) / table.unit).astype(jnp.int32), 0, BINS - 1)
    return jnp.asarray(WIDTHS)[at] * table.unit


def integral(table: Table, centre: Array, reach: Array) -> Array:
    """At every edge (k, BINS + 1), the integral up to it of the samples below, less all of them above the centre.

    So it is a sum of distances from the centre, and single precision does for differences. Only within ``reach`` (k,).
    """
    middle = table.origin[:, None] + table.unit[:, None] * ((EDGES[:-1] + EDGES[1:]) / 2)
    away = middle - centre[:, None]
    mean = (table.below[:, :-1] + table.below[:, 1:]) / 2 - jnp.where(away > 0, table.total[:, None], 0.0)
    return _running(jnp.where(jnp.abs(away) < reach[:, None], mean, 0.0) * WIDTHS * table.unit[:, None])


def at_values(table: Table, values: Array, sums: Array) -> Array:
    """Sums at (k, q) values from those at the edges (k, BINS + 1)."""
    p = jnp.clip(place((values - table.origin[:, None]) / table.unit[:, None]), 0.0, BINS - 1e-3)
    low = p.astype(jnp.int32)
    start, end = _take(sums, low), _take(sums, low + 1)
    return start + (p - low) * (end - start)


def _take(rows: Array, at: Array) -> Array:
    return jnp.take_along_axis(rows, at, axis=1, mode="promise_in_bounds")


def _running(counts: Array) -> Array:
    """Of (k, BINS) numbers, the sum before each and of all. In two steps: XLA's own cumsum takes four times as long."""
    blocks = counts.reshape(*counts.shape[:-1], BINS // BLOCK, BLOCK)
    inside = blocks @ np.triu(np.ones((BLOCK, BLOCK), np.float32))
    before = inside[..., -1] @ np.triu(np.ones((BINS // BLOCK, BINS // BLOCK), np.float32), 1)
    sums = (inside + before[..., None]).reshape(counts.shape)
    return jnp.concatenate([jnp.zeros((*counts.shape[:-1], 1), sums.dtype), sums], axis=-1)


@custom_vmap
def _counts(bins: Array, present: Array) -> Array:
    """How many of the present samples (k, n) are in each bin: (k, BINS)."""
    k = bins.shape[0]
    places = bins + BINS * jnp.arange(k, dtype=bins.dtype)[:, None]
    start = jnp.zeros(k * BINS, jnp.float32)
    counts = start.at[places.reshape(-1)].add(present.astype(jnp.float32).reshape(-1), mode="promise_in_bounds")
    return counts.reshape(k, BINS)


@_counts.def_vmap
def _(size: int, batched: list[bool], bins: Array, present: Array) -> tuple[Array, bool]:
    """All batches are more lines: XLA takes half the time for one scatter that it takes for a batch of them."""
    counts = _counts(*trees.merge_stacks(size, tuple(batched), (bins, present)))
    return counts.reshape(size, -1, BINS), True
