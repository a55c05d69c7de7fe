"""Algorithm 2 as it is written in the paper."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from profl import checks
from profl.numerics import short_loop
from profl.parts.filters.filter import SampleFilter
from profl.typing import Array

POWER_STEPS = 12
"""Turns of the power iteration. After them the second direction is left with (s2 / s1)^24 of its part: a hundredth
where it is 0.83 times as long. Where two are closer than that, either shows what there is to see."""

SMALL = 64
"""Up to so many numbers in a gradient, d x d matrices are made; beyond, memory must not grow with d^2."""

TILT = 1e-3
"""How much the first direction differs between coordinates that look alike, lest it be at a right angle to the top."""
NO_LENGTH = 1e-30  # a mean shorter than this has no length that a move could be measured by
HALF = 0.5  # of the samples: what is left at least when it stops, "at most half are left" in Algorithm 2


@dataclass(frozen=True)
class PaperFilter(SampleFilter):
    """Algorithm 2 as written: project on the top singular direction, cut at the first sparse segment of the scores.

        tau_j = ((g_j - mean) . v)^2;  B segments of [0, max tau];  phi = lower end of the first with < J1 |S| members
        keep tau_j < phi; again, until the mean moves by less than J2 or at most half are left

    The first sparse segment is the very first one when the mean lies between clean and junk samples; then phi = 0 and
    nothing would be kept. That is refused: the set before that cut is returned, and ``failed`` says so. With d = 5,
    n = 500 and 40 % of samples 10 sigma away it happens every time.
    """

    segments: int = 50  # B, as in the paper's experiments
    sparse: float = 0.01  # J1, a share of the samples; J2 is theirs too
    settled: float = 0.05  # J2, relative to the length of the mean
    passes: int = 10  # at most: the paper has no limit, a compiled loop needs one

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
            mean = mean_of(points, kept)
            new = self._cut(points - mean[:, None], kept)
            empty = jnp.sum(new) <= 0
            new = jnp.where(empty, kept, new)
            moved = jnp.linalg.norm(mean - mean_of(points, new)) / jnp.maximum(jnp.linalg.norm(mean), NO_LENGTH)
            done = empty | (moved < self.settled) | (jnp.sum(new > 0) <= HALF * total)
            return new, done, failed | empty, count + 1

        start = (weights, jnp.asarray(False), jnp.asarray(False), jnp.zeros((), jnp.int32))
        kept, _, failed, _ = jax.lax.while_loop(lambda c: ~c[1] & (c[3] < self.passes), body, start)
        return kept, failed

    def _cut(self, centred: Array, kept: Array) -> Array:
        """The weights of those with tau_j < phi."""
        present = kept > 0
        scores = jnp.where(present, (top_direction(centred, kept) @ centred) ** 2, 0.0)
        width = jnp.max(scores) / self.segments
        segment = jnp.floor(scores / jnp.maximum(width, jnp.finfo(scores.dtype).tiny))
        segment = jnp.clip(segment, 0, self.segments - 1)
        inside = jnp.where(present[:, None], segment[:, None] == jnp.arange(self.segments), False).sum(0)
        is_sparse = inside < self.sparse * jnp.sum(present)
        phi = jnp.where(jnp.any(is_sparse), jnp.argmax(is_sparse) * width, jnp.inf)
        return jnp.where(scores < phi, kept, 0.0)


def mean_of(points: Array, weights: Array) -> Array:
    """The weighted mean of (d, n) points: (d,)."""
    return points @ weights / jnp.maximum(jnp.sum(weights), jnp.finfo(points.dtype).tiny)


def top_direction(centred: Array, weights: Array) -> Array:
    """The leading left singular vector of the weighted (d, n) points, by power iteration."""
    rows = jnp.where(weights > 0, centred, 0.0)
    rows = rows / jnp.maximum(jnp.max(jnp.abs(rows)), jnp.finfo(centred.dtype).tiny)
    heavy = rows * weights
    size = rows.shape[0]
    gram = heavy @ rows.T if size <= SMALL else None
    start = jnp.sqrt(jnp.sum(heavy * rows, axis=1)) + TILT * jnp.arange(1, size + 1) / size

    def turn(_: int, direction: Array) -> Array:
        turned = gram @ direction if gram is not None else heavy @ (direction @ rows)
        return turned / jnp.maximum(jnp.linalg.norm(turned), jnp.finfo(turned.dtype).tiny)

    return short_loop(POWER_STEPS, turn, start / jnp.linalg.norm(start))
