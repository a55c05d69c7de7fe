"""Filters: which samples of a batch to believe, judged by their gradients (paper, Algorithm 2, "Robust Gradient").

A filter is any jit-able function ``(gradients (n, d), weights (n,)) -> weights (n,)`` that lowers weights, or sets them
to zero; the client step renormalises what is left and feeds it to f_hat, L1 and L2 alike. No filter needs an n x n
matrix, nor a d x d one where d is large; quantiles come from bisection, because a sort costs more than the whole step.
Inside, samples lie innermost in memory: points are (d, n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from profl import checks
from profl.typing import Array

Filter = Callable[[Array, Array], Array]


def keep_all(gradients: Array, weights: Array) -> Array:
    """No filter."""
    return weights


@dataclass(frozen=True)
class PaperFilter:
    """Algorithm 2 as written: project on the top singular direction, cut at the first sparse segment of the scores.

        tau_j = ((g_j - mean) . v)^2;  B segments of [0, max tau];  phi = lower end of the first with < J1 |S| members
        keep tau_j < phi; again, until the mean moves by less than J2 or at most half are left

    The first sparse segment is the very first one when the mean lies between clean and junk samples; then phi = 0 and
    nothing would be kept. That is refused: the set before that cut is returned, and ``failed`` says so. With d = 5,
    n = 500 and 40 % of samples 10 sigma away it happens every time.
    """

    segments: int = 20  # B
    sparse: float = 0.05  # J1
    settled: float = 0.05  # J2
    passes: int = 10

    def __post_init__(self) -> None:
        checks.positive_int("segments (B)", self.segments, least=2)
        checks.positive_int("passes", self.passes)
        for name in ("sparse", "settled"):
            value = checks.real(name, getattr(self, name))
            if not 0 < value < 1:
                raise checks.InputError(
                    f"{name} ({'J1' if name == 'sparse' else 'J2'}) must lie in (0, 1), got {value}"
                )

    def __call__(self, gradients: Array, weights: Array) -> Array:
        return self.run(gradients, weights)[0]

    def run(self, gradients: Array, weights: Array) -> tuple[Array, Array]:
        """(weights, failed): failed is true where the literal rule would have kept nothing."""
        total = jnp.sum(weights > 0)
        points = gradients.T

        def body(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            kept, _, failed, count = carry
            present = kept > 0
            mean = _mean(points, kept)
            centred = points - mean[:, None]
            scores = jnp.where(present, (top_direction(centred, kept) @ centred) ** 2, 0.0)
            width = jnp.max(scores) / self.segments
            segment = jnp.clip(
                jnp.floor(scores / jnp.maximum(width, jnp.finfo(scores.dtype).tiny)), 0, self.segments - 1
            )
            inside = jnp.where(present[:, None], segment[:, None] == jnp.arange(self.segments), False).sum(0)
            is_sparse = inside < self.sparse * jnp.sum(present)
            phi = jnp.where(jnp.any(is_sparse), jnp.argmax(is_sparse) * width, jnp.inf)
            new = jnp.where(scores < phi, kept, 0.0)
            empty = jnp.sum(new) <= 0
            new = jnp.where(empty, kept, new)
            moved = jnp.linalg.norm(mean - _mean(points, new)) / jnp.maximum(jnp.linalg.norm(mean), 1e-30)
            done = empty | (moved < self.settled) | (jnp.sum(new > 0) <= total / 2)
            return new, done, failed | empty, count + 1

        start = (weights, jnp.asarray(False), jnp.asarray(False), jnp.zeros((), jnp.int32))
        kept, _, failed, _ = jax.lax.while_loop(lambda c: ~c[1] & (c[3] < self.passes), body, start)
        return kept, failed


@dataclass(frozen=True)
class RobustFilter:
    """Find the bulk, then drop what is not part of it. Needs no knowledge of the fraction or the kind of junk.

    1. Centre: cut the samples in two at their mean, across the top direction, and start from the side that holds more;
       then average the nearer half of all samples, again and again. That half is clean even when 45 % are junk.
       Coordinates are measured in standard deviations of the half (at first, in median deviations).
    2. Distances r from there. The lower quantiles of r^(2/3), which is close to Gaussian for clean data of any
       effective dimension (Wilson and Hilferty), give its mean m and deviation s without looking at the half that may
       be junk; drop r^(2/3) > m + ``reach`` s. Twice, because the first look is blurred by the junk itself. But if the
       samples thin out steadily there (the stretch of 1.5 s before holds about three times as many as lie beyond), it
       is the tail of clean data that are not Gaussian, and only what lies past 3 ``reach`` goes.
    3. Before and after that: a group that lies nearer shows as a hump along the top direction: drop what is past the
       valley before it, on both sides alike (so that cutting does not shift the mean), if there are clearly more
       samples than a normal tail has and their density rises again. Smooth tails do not rise and stay.

    Never keeps less than half of the weight, and leaves fewer than ``least`` samples alone: among so few, nothing tells
    the bulk from the rest.

    All this reads the samples some thirty times. A batch in which nothing calls for it (``suspicious``) is left as it
    is after one look.
    """

    reach: float = 4.5
    passes: int = 2
    least: int = 12
    first_order = True  # see ``profl.client.believe``

    def __post_init__(self) -> None:
        checks.positive("reach", self.reach)
        checks.positive_int("passes", self.passes)
        checks.positive_int("least", self.least)

    def __call__(self, gradients: Array, weights: Array) -> Array:
        if gradients.shape[0] < self.least:
            return weights
        return where_needed(self, suspicious)(gradients.T[None], weights[None])[0]

    def cut(self, points: Array, weights: Array) -> Array:
        """The weights of the bulk of the (d, n) points, whatever a first look says."""
        points = _standardised(jnp.where(weights > 0, points, 0.0), weights)
        inner = _core(points, weights, _larger_side(points, weights))
        inner = _core(points, weights, _mean(points, inner))
        points = _rescaled(points, inner)
        points = _rescaled(points, _core(points, weights, jnp.zeros(points.shape[0], points.dtype)))
        kept, centre = _drop_humps(points, weights, weights), jnp.zeros(points.shape[0], points.dtype)
        for turn in range(self.passes):
            if turn:
                centre = _mean(points, _core(points, kept, centre))
            kept = self._drop_far(_square_distance(points, centre), kept, weights)
        kept = _drop_humps(points - centre[:, None], kept, weights)
        return jnp.where(jnp.sum(weights > 0) >= self.least, kept, weights)

    def _drop_far(self, distance: Array, kept: Array, weights: Array) -> Array:
        low, quarter, half = jnp.cbrt(quantiles(distance, kept, (0.1, 0.25, 0.5)))  # of r^(2/3)
        deviation = (quarter - low) / 0.607  # between the 10 % and 25 % points of a standard normal

        def limit(reach: float) -> Array:
            return jnp.maximum(quarter + (0.674 + reach) * deviation, half) ** 3

        far = limit(self.reach)
        outside = jnp.sum((distance > far) & (kept > 0))
        before = jnp.sum((distance > limit(self.reach - 1.5)) & (kept > 0)) - outside
        junk = outside > 0.35 * before + 1.5 * jnp.sqrt(before + 1.0)
        keep = distance <= jnp.where(junk, far, limit(3 * self.reach))
        return _at_least_half(jnp.where(keep, kept, 0.0), kept, weights)


@lru_cache
def where_needed(filter_: RobustFilter, needed: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """``filter_.cut`` of those among (B, d, n) points and (B, n) weights that ``needed`` says yes to.

    Under vmap all batches make one B, and those to cut are gathered a few at a time: left to itself, vmap would cut all
    of them when one needs it.
    """

    @custom_vmap
    def several(points: Array, weights: Array) -> Array:
        batches = weights.shape[0]
        few = min(batches, max(8, batches // 256))

        def cut_few(state: tuple[Array, Array]) -> tuple[Array, Array]:
            weights, left = state
            chosen = jnp.argsort(~left)[:few]
            cut = jnp.where(left[chosen, None], jax.vmap(filter_.cut)(points[chosen], weights[chosen]), weights[chosen])
            return weights.at[chosen].set(cut), left.at[chosen].set(False)

        left = jax.vmap(needed)(points, weights)
        return jax.lax.while_loop(lambda state: jnp.any(state[1]), cut_few, (weights, left))[0]

    @several.def_vmap
    def _(size: int, batched: list[bool], points: Array, weights: Array) -> tuple[Array, bool]:
        spread = [
            leaf if own else jnp.broadcast_to(leaf, (size, *leaf.shape))
            for leaf, own in zip((points, weights), batched, strict=True)
        ]
        kept = several(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in spread))
        return kept.reshape(size, -1, kept.shape[-1]), True

    return several


def suspicious(points: Array, weights: Array) -> Array:
    """Whether the (d, n) points are anything but independent Gaussian coordinates, as far as moments tell.

    Four looks, each as a chi-square against a bound: skewness and kurtosis of the coordinates, their correlations, the
    kurtosis of the distance from the mean, and the farthest sample. Of 20,000 clean batches with d = 5 and n = 500 ten
    were suspicious, with n = 60 fifty.

    A group on one side shows as correlation (or, in one coordinate, as skewness or too little kurtosis), a wider cloud
    as kurtosis. Clean data that are skewed, correlated or of heavy tails are suspicious too: the look only decides
    whether to look further. Points of more than 64 coordinates always are.
    """
    d = points.shape[0]
    if d > 64:
        return jnp.asarray(True)
    share = weights / jnp.maximum(jnp.sum(weights), jnp.finfo(points.dtype).tiny)
    count = 1 / jnp.sum(share**2)
    moved = points - (points @ share)[:, None]
    square = moved**2
    variance = square @ share
    scale = jax.lax.rsqrt(jnp.where(variance > 0, variance, 1.0))
    skewness, kurtosis = ((square * moved) @ share) * scale**3, ((square**2) @ share) * scale**4 - 3
    shape = count * (jnp.sum(skewness**2) / 6 + jnp.sum(kurtosis**2) / 24)  # 2 d degrees of freedom
    together = count * _correlation(moved, share, scale)  # d (d - 1) / 2 of them
    distance = scale**2 @ square
    thickness = count * ((distance**2) @ share - d * (d + 2)) ** 2 / (8 * d * (d + 2))  # one
    farthest = jnp.max(jnp.where(weights > 0, distance, 0.0))
    calm = (
        (shape < _chi_square(2 * d))
        & (together < _chi_square(d * (d - 1) / 2))
        & (thickness < _chi_square(1))
        & (farthest < _chi_square(d))
    )
    return ~calm


def _correlation(moved: Array, share: Array, scale: Array) -> Array:
    """The sum over pairs of coordinates of their squared correlation.

    Few coordinates are multiplied with themselves shifted round, so that each pair comes up once: batched products of
    such small matrices are slow everywhere.
    """
    d = moved.shape[0]
    if d > 8:
        return (jnp.sum((((moved * share) @ moved.T) * scale[:, None] * scale) ** 2) - d) / 2
    total = jnp.zeros((), moved.dtype)
    for shift in range(1, d // 2 + 1):
        partner = jnp.roll(moved, shift, axis=0)
        found = jnp.sum((((moved * partner) @ share) * scale * jnp.roll(scale, shift)) ** 2)
        total = total + (found / 2 if 2 * shift == d else found)  # half way round, each pair comes up twice
    return total


def _chi_square(freedom: float, reach: float = 5.0) -> float:
    """What a chi-square exceeds as rarely as a normal exceeds ``reach`` (Wilson and Hilferty)."""
    if freedom == 0:
        return 1.0
    part = 2 / (9 * freedom)
    return freedom * (1 - part + reach * math.sqrt(part)) ** 3


def _core(points: Array, weights: Array, centre: Array) -> Array:
    """The weights of the nearer half alone."""
    distance = _square_distance(points, centre)
    return jnp.where(distance <= quantiles(distance, weights, (0.5,))[0], weights, 0.0)


def _rescaled(points: Array, inner: Array) -> Array:
    """Coordinates around the mean of the inner samples, in their standard deviations."""
    moved = points - _mean(points, inner)[:, None]
    spread = jnp.sqrt(_mean(moved**2, inner))
    return moved / jnp.where(spread > 0, spread, 1.0)[:, None]


def _drop_humps(points: Array, kept: Array, weights: Array) -> Array:
    line = top_direction(points, kept) @ points
    unit = quantiles(jnp.abs(line), kept, (0.25,))[0] / 0.319  # 25 % of a normal lie within 0.319 sigma
    place = line / jnp.maximum(unit, jnp.finfo(line.dtype).tiny)
    cut = jnp.minimum(_valley(place, kept), _valley(-place, kept))
    return _at_least_half(jnp.where(jnp.abs(place) < cut, kept, 0.0), kept, weights)


_WIDTH, _FIRST, _BINS = 0.5, 1.5, 16
_EDGES = _FIRST + _WIDTH * np.arange(_BINS + 2)
_NORMAL_TAIL = np.array([0.5 * math.erfc((edge + _WIDTH / 2) / math.sqrt(2)) for edge in _EDGES[:_BINS]])


def _valley(place: Array, kept: Array) -> Array:
    """Where to cut above the bulk: the valley before a hump, or infinity where there is none.

    A valley is the emptiest stretch of one sigma that has, beyond it, (i) more samples than a normal tail by 4 standard
    errors and (ii) a stretch of one sigma with more samples than itself by 1.2 standard errors.
    """
    edges = _EDGES.astype(place.dtype)
    inside = (place[:, None] >= edges) & (place[:, None] < edges + _WIDTH) & (kept[:, None] > 0)
    counts = jnp.sum(inside, axis=0).astype(place.dtype)
    stretch = counts[:-1] + counts[1:]  # (bins + 1,): one sigma from each edge on
    beyond = jnp.sum(counts) - jnp.cumsum(counts)[:_BINS]
    expected = _NORMAL_TAIL.astype(place.dtype) * jnp.sum(kept > 0)
    peak = jnp.max(jnp.where(np.arange(_BINS + 1)[None, :] > np.arange(_BINS)[:, None] + 1, stretch, 0.0), axis=1)
    here = stretch[:_BINS]
    hump = (beyond - expected > 4 * jnp.sqrt(expected + 1)) & (peak - here > 1.2 * jnp.sqrt(peak + here))
    best = jnp.argmin(jnp.where(hump, here, jnp.inf))
    return jnp.where(jnp.any(hump), _FIRST + _WIDTH * (best + 1), jnp.inf)


def _standardised(points: Array, weights: Array) -> Array:
    """Coordinates in units of their median distance from their median; of their mean one where more than half agree."""
    moved = points - quantiles(points, weights, (0.5,))
    away = jnp.abs(moved)
    scale = quantiles(away, weights, (0.5,))
    mean = (away @ weights)[:, None]
    return moved / jnp.where(scale > 1e-20, scale, jnp.where(mean > 0, mean, 1.0))


def _larger_side(points: Array, weights: Array) -> Array:
    """The mean of the samples on that side of the mean, along the top direction, that holds more of them."""
    centred = points - _mean(points, weights)[:, None]
    ahead = top_direction(centred, weights) @ centred > 0
    side = ahead == (jnp.sum(jnp.where(ahead, weights, 0.0)) > 0.5 * jnp.sum(weights))
    return _mean(points, jnp.where(side, weights, 0.0))


def _square_distance(points: Array, centre: Array) -> Array:
    return jnp.sum((points - centre[:, None]) ** 2, axis=0)


def _at_least_half(new: Array, old: Array, weights: Array) -> Array:
    """``new`` unless that would keep less than half of the weight there was at first."""
    return jnp.where(jnp.sum(new) >= 0.5 * jnp.sum(weights), new, old)


def _mean(points: Array, weights: Array) -> Array:
    return (points @ weights) / jnp.maximum(jnp.sum(weights), jnp.finfo(points.dtype).tiny)


def top_direction(centred: Array, weights: Array, iterations: int = 12) -> Array:
    """The leading left singular vector of the weighted (d, n) points, by power iteration."""
    rows = jnp.where(weights > 0, centred, 0.0)
    rows = rows / jnp.maximum(jnp.max(jnp.abs(rows)), jnp.finfo(centred.dtype).tiny)
    heavy = rows * weights
    size = rows.shape[0]
    gram = heavy @ rows.T if size <= 64 else None  # d x d only where d is small
    start = jnp.sqrt(jnp.sum(heavy * rows, axis=1)) + 1e-3 * jnp.arange(1, size + 1) / size

    def body(_: int, direction: Array) -> Array:
        turned = gram @ direction if gram is not None else heavy @ (direction @ rows)
        return turned / jnp.maximum(jnp.linalg.norm(turned), jnp.finfo(turned.dtype).tiny)

    return jax.lax.fori_loop(0, iterations, body, start / jnp.linalg.norm(start), unroll=_unroll())


def quantiles(values: Array, weights: Array, levels: tuple[float, ...], steps: int = 16) -> Array:
    """The weighted quantiles of (..., n) values along their last axis: (..., levels).

    Bisection over the bits of the numbers, whose order is that of the numbers: 16 halvings find a quantile to about a
    hundredth of itself however far the farthest sample lies, at a fixed cost; a sort costs fifty times as much.

    >>> round(float(quantiles(jnp.array([1.0, 2.0, 3.0, 4.0, 100.0]), jnp.full(5, 0.2), (0.5,))[0]), 1)
    3.0
    """
    bits = _ordered_bits(values.astype(jnp.float32))[..., None, :]
    most = jnp.int32(2**31 - 1)
    shape = (*values.shape[:-1], len(levels))
    low = jnp.broadcast_to(jnp.min(jnp.where(weights > 0, bits, most), axis=-1), shape)
    high = jnp.broadcast_to(jnp.max(jnp.where(weights > 0, bits, -most), axis=-1), shape)
    target = jnp.asarray(levels, weights.dtype) * jnp.sum(weights) * (1 - 1e-6)

    def body(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low & high) + ((low ^ high) >> 1)  # their mean; the sum could overflow
        enough = jnp.sum(jnp.where(bits <= middle[..., None], weights, 0.0), axis=-1) >= target
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    high = jax.lax.fori_loop(0, steps, body, (low, high), unroll=_unroll())[1]
    return jax.lax.bitcast_convert_type(_flip(high), jnp.float32).astype(values.dtype)


def _unroll() -> bool:
    """Whether to write short loops out: an accelerator waits for the host at each turn, a CPU compiles more slowly."""
    return jax.default_backend() != "cpu"


def _ordered_bits(values: Array) -> Array:
    """Whole numbers in the order of the given single-precision ones."""
    return _flip(jax.lax.bitcast_convert_type(values, jnp.int32))


def _flip(bits: Array) -> Array:
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


FILTERS: dict[str, Filter] = {"none": keep_all, "paper": PaperFilter(), "robust": RobustFilter()}


def get(spec: Any) -> Filter:
    """A filter by name, or a function of one's own as it is."""
    return spec if callable(spec) else FILTERS[checks.one_of("filter", spec, FILTERS)]


def check(function: Filter) -> None:
    """Try a filter on made gradients and refuse one whose weights could not be used."""
    if isinstance(function, (RobustFilter, PaperFilter)) or function is keep_all:
        return
    gradients, weights = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.float32), jnp.full(16, 1 / 16)
    kept = np.asarray(function(gradients, weights))
    expected = "a filter must return one weight of 0 or more per sample, not all zero"
    if kept.shape != (16,):
        raise checks.InputError(f"{expected}; for 16 samples it returned shape {kept.shape}")
    if not np.all(np.isfinite(kept)) or np.any(kept < 0) or kept.sum() <= 0:
        raise checks.InputError(f"{expected}; for 16 samples it returned {kept.tolist()}")
