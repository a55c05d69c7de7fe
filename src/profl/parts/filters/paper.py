"""Algorithm 2 as it is written in the paper."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from profl import checks
from profl.parts.filters.filter import SampleFilter
from profl.parts.filters.points import mean_of, top_direction
from profl.typing import Array

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

    # The paper's own experiments have B = 50, J1 = 0.01, J2 = 0.05. Errors as in ``robust``, with 20 and 0.05 / 50 and
    # 0.01: clean data 1.4 / 1.4 (either keeps less than half of them), 20 % at 5 sigma 1.7 / 1.5, 40 % Cauchy 8 / 17,
    # 45 % at 10 sigma 34 / 34.
    segments: int = 20  # B
    sparse: float = 0.05  # J1, a share of the samples: what a segment would hold if all 20 held as many
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
