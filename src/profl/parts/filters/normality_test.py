"""Does anything in a batch call for a search? This reads the samples once, where a search reads them some thirty times,
and most batches of most runs are clean or known.

Four figures, each a chi-square against a bound: skewness, kurtosis and flatness of the coordinates, their correlations,
the kurtosis of the distance from the mean, and the farthest sample. A group on one side shows as correlation (or, in
one coordinate, as skewness or too little kurtosis), a wider cloud as kurtosis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from profl import trees
from profl.parts.filters.gap_test import Known
from profl.parts.filters.memory import Memory
from profl.parts.filters.points import SMALL, projected, shares, weighed
from profl.typing import Array

CALM = 5.0
"""Standard deviations of a normal that each of the four may reach: of 20,000 clean batches with d = 5 and n = 500
ten were suspicious, with n = 60 fifty; junk of 5 % and more at five deviations was seen every time. The moments' tails
are heavier than a chi-square's, or it would be one in a million."""

FEW_COORDINATES = 8
"""Up to so many, correlations come from products with shifted coordinates instead of a matrix product. For 1000
batches of 500, shifted / as a matrix product, milliseconds on two cores: d = 3 4.4 / 7.8, d = 5 26 / 31, d = 8 52 / 40,
d = 12 97 / 60. So on a CPU the product overtakes between 5 and 8."""

FEWEST_AT_ONCE = 8
"""Batches searched together at least: more would mostly be searched for nothing."""

PART_AT_ONCE, PART_ON_ACCELERATOR = 256, 8
"""Where there are many batches, one in so many is searched at once: more than are suspicious of clean ones with n = 60,
one in 400, so that one turn mostly does, and searching takes little memory beside the batches themselves. Where most
need it, as in a first step, an accelerator takes larger parts: it waits for the host at every turn. A search takes some
fifteen times the memory of its batch, so these take twice that of all batches."""


class Coordinate(NamedTuple):
    """One coordinate of the samples, (n,), or several, (d, n), around its mean, and what its moments are."""

    moved: Array
    variance: Array
    scale: Array  # one over the standard deviation; 1 for a constant
    oddness: Array  # of its shape: a chi-square of three degrees over the number of samples


def coordinate(values: Array, share: Array) -> Coordinate:
    """Of one coordinate (n,). For a normal: kurtosis 3, mean distance sqrt(2 / pi); variances 6 / n of the skewness,
    24 / n of the kurtosis and (1 - 3 / pi) / n of the mean distance. Kurtosis alone takes three groups, 20 % and 24 %
    of them far out, for one."""
    moved = values - weighed(values, share)
    square = moved**2
    variance = weighed(square, share)
    scale = jax.lax.rsqrt(jnp.where(variance > 0, variance, 1.0))
    skewness, kurtosis = weighed(square * moved, share) * scale**3, weighed(square**2, share) * scale**4 - 3
    flatness = weighed(jnp.abs(moved), share) * scale - math.sqrt(2 / math.pi)
    return Coordinate(moved, variance, scale, skewness**2 / 6 + kurtosis**2 / 24 + flatness**2 / (1 - 3 / math.pi))


def figures(points: Array, weights: Array) -> Array:
    """Of the (d, n) points: their shape, correlations, thickness and farthest sample (over their bounds), and scale.

    Of independent Gaussian coordinates each of the four is below one; with more than ``SMALL`` of them correlations are
    not looked at, and count as there. The scale is the logarithm of the total variance.
    """
    share = shares(weights)
    each = jax.vmap(coordinate, in_axes=(0, None))(points, share)
    together = _correlation(each.moved, share, each.scale) if points.shape[0] <= SMALL else None
    distance = projected(each.scale**2, each.moved**2)
    sums = jnp.sum(each.oddness), jnp.sum(each.variance)
    return jnp.stack(compared(points.shape[0], *sums, together, distance, share))


def compared(
    d: int, oddness: Array, variance: Array, together: Array | None, distance: Array, share: Array
) -> tuple[Array, ...]:
    """The figures of d coordinates: sums over them, squared correlations, and the samples' squared distances.

    For a normal E r^4 = d (d + 2), with a variance of 8 d (d + 2) / n of its mean around what the variances explain.
    """
    count = 1 / jnp.sum(share**2)
    thickness = count * (weighed(distance**2, share) - d * (d + 2)) ** 2 / (8 * d * (d + 2)) / _chi_square(1)
    return (
        count * oddness / _chi_square(3 * d),
        jnp.array(2.0) if together is None else count * together / _chi_square(d * (d - 1) / 2),
        thickness,
        jnp.max(jnp.where(share > 0, distance, 0.0)) / _chi_square(d),
        jnp.log(variance + jnp.finfo(variance.dtype).tiny),
    )


def gaussian(told: Array) -> Array:
    """Whether the points with these figures are independent Gaussian coordinates, as far as moments tell.

    Clean data that are skewed, correlated or of heavy tails are not: this only decides whether to look closer.
    """
    return jnp.all(told[:-1] < 1)


def _correlation(moved: Array, share: Array, scale: Array) -> Array:
    """The sum over pairs of coordinates of their squared correlation."""
    d = moved.shape[0]
    if d > FEW_COORDINATES:
        return (jnp.sum((((moved * share) @ moved.T) * scale[:, None] * scale) ** 2) - d) / 2
    total = jnp.zeros((), moved.dtype)
    for shift in range(1, d // 2 + 1):  # each coordinate with the one so many further round: each pair comes up once
        partner = jnp.roll(moved, shift, axis=0)
        found = jnp.sum((weighed(moved * partner, share) * scale * jnp.roll(scale, shift)) ** 2)
        total = total + (found / 2 if 2 * shift == d else found)  # half way round, each pair comes up twice
    return total


def _chi_square(freedom: float) -> float:
    """What a chi-square exceeds as rarely as a normal exceeds ``CALM`` (Wilson and Hilferty)."""
    if freedom == 0:
        return 1.0
    part = 2 / (9 * freedom)
    return freedom * (1 - part + CALM * math.sqrt(part)) ** 3


Found = tuple[Array, Memory]


class Searcher(Protocol):
    """A filter that reads a whole batch, (d, n) points and (n,) weights, many times, and learns from it."""

    def search(self, points: Array, weights: Array, memory: Memory, vetted: Known | None) -> Found: ...


@lru_cache
def where_needed(filter_: Searcher) -> Callable[..., Found]:
    """``filter_.search`` in those of B batches that are ``needed``; for the others, what is ``known``.

    Under vmap all batches make one B, and those to search are gathered some at a time: left to itself, vmap would
    search all of them when one needs it.
    """

    search = jax.jit(filter_.search)  # traced once, though vmap has ``several`` traced again at every level

    @custom_vmap
    def several(batches: Any, known: Found, needed: Array) -> Found:
        def search_some(most: int, state: tuple[Found, Array]) -> tuple[Found, Array]:
            found, left = state
            chosen = jnp.argsort(~left)[:most]
            old, own = (jax.tree.map(lambda leaf: leaf[chosen], tree) for tree in (found, batches))
            new = trees.where(left[chosen], jax.vmap(search)(*own), old)
            return jax.tree.map(lambda leaf, rows: leaf.at[chosen].set(rows), found, new), left.at[chosen].set(False)

        state, few = (known, needed), min(needed.size, max(FEWEST_AT_ONCE, needed.size // PART_AT_ONCE))
        many = needed.size // PART_ON_ACCELERATOR
        if jax.default_backend() != "cpu" and many > few:
            state = jax.lax.while_loop(lambda state: jnp.sum(state[1]) > many // 2, partial(search_some, many), state)
        return jax.lax.while_loop(lambda state: jnp.any(state[1]), partial(search_some, few), state)[0]

    several.def_vmap(trees.stacked_vmap_rule(several))
    return several
