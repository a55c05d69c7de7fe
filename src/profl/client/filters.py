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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    effective
       dimension (Wilson and Hilferty), give its mean m and deviation s without looking at the half that may be junk;
       drop r^(2/3) > m + ``reach`` s. Again with what is left, because the first look is blurred by the junk itself.
    3. Before and after that: a group that lies nearer shows as a hump along the top direction: drop what is past the
    valley
       before it, on both sides alike (so that cutting does not shift the mean), if there are clearly more samples
       than a normal tail has and their density rises again. Smooth tails do not rise and stay.

    Never keeps less than half of the weight.
    """

    reach: float = 4.5
    core: float = 0.5
    passes: int = 3

    def __call__(self, gradients: Array, weights: Array) -> Array:
        points = _standardised(gradients.T, weights)
        centre = _larger_side(points, weights)
        for steps in (2, 2):
            for _ in range(steps):
                inner = self._core(points, weights, centre)
                centre = _mean(points, inner)
            spread = jnp.sqrt(_mean((points - centre[:, None]) ** 2, inner))
            points = (points - centre[:, None]) / jnp.where(spread > 0, spread, 1.0)[:, None]
            centre = jnp.zeros_like(centre)
        kept = self._drop_humps(points, weights, weights)
        for _ in range(self.passes):
            kept = self._drop_far(_log_distance(points, centre), kept, weights)
            centre = _mean(points, self._core(points, kept, centre))
        return self._drop_humps(points - centre[:, None], kept, weights)

    def _core(self, points: Array, weights: Array, centre: Array) -> Array:
        """The weights of the nearer part alone."""
        distance = _log_distance(points, centre)
        return jnp.where(distance <= quantile(distance, weights, self.core), weights, 0.0)

    def _drop_far(self, distance: Array, kept: Array, weights: Array) -> Array:
        low, quarter, half = (jnp.exp(quantile(distance, kept, level) / 3) for level in (0.1, 0.25, 0.5))  # r^(2/3)
        deviation = (quarter - low) / 0.607  # between the 10 % and 25 % points of a standard normal
        limit = jnp.maximum(quarter + (0.674 + self.reach) * deviation, half)
        return _at_least_half(jnp.where(distance <= 3 * jnp.log(limit), kept, 0.0), kept, weights)

    def _drop_humps(self, points: Array, kept: Array, weights: Array) -> Array:
        line = top_direction(points, kept) @ points
        unit = quantile(jnp.abs(line), kept, 0.25) / 0.319  # 25 % of a normal lie within 0.319 sigma
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
    inside = (place[:, None] >= _EDGES) & (place[:, None] < _EDGES + _WIDTH) & (kept[:, None] > 0)
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
    middle = jax.vmap(lambda row: quantile(row, weights, 0.5))(points)
    away = jnp.abs(points - middle[:, None])
    scale = jax.vmap(lambda row: jnp.exp(quantile(jnp.log(row + 1e-30), weights, 0.5)))(away)
    mean = away @ weights
    return (points - middle[:, None]) / jnp.where(scale > 1e-20, scale, jnp.where(mean > 0, mean, 1.0))[:, None]


def _larger_side(points: Array, weights: Array) -> Array:
    """The mean of the samples on that side of the mean, along the top direction, that holds more of them."""
    centred = points - _mean(points, weights)[:, None]
    ahead = top_direction(centred, weights) @ centred > 0
    side = ahead == (jnp.sum(jnp.where(ahead, weights, 0.0)) > 0.5 * jnp.sum(weights))
    return _mean(points, jnp.where(side, weights, 0.0))


def _log_distance(points: Array, centre: Array) -> Array:
    """log |x - c|^2, in which bisection keeps its relative precision however far the farthest sample lies."""
    return jnp.log(jnp.sum((points - centre[:, None]) ** 2, axis=0) + 1e-30)


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

    return jax.lax.fori_loop(0, iterations, body, start / jnp.linalg.norm(start))


def quantile(values: Array, weights: Array, level: float, steps: int = 16) -> Array:
    """The weighted ``level`` quantile of each column, by bisection; fixed cost, no sort.

    >>> round(float(quantile(jnp.array([1.0, 2.0, 3.0, 4.0, 100.0]), jnp.full(5, 0.2), 0.5)), 2)
    3.0
    """
    weight = weights.reshape(-1, *(1,) * (values.ndim - 1))
    target = level * jnp.sum(weights)
    low = jnp.min(jnp.where(weight > 0, values, jnp.inf), axis=0)
    high = jnp.max(jnp.where(weight > 0, values, -jnp.inf), axis=0)

    def body(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        enough = jnp.sum(jnp.where(values <= middle, weight, 0.0), axis=0) >= target * (1 - 1e-6)
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    return jax.lax.fori_loop(0, steps, body, (low, high))[1]


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
