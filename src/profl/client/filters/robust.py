"""The robust filter: it needs a reason to cut.

A reason is a group apart from the bulk (``lines``), seen along one of a few lines or by its distance from the middle
(``shape``), or samples farther out than any tail. Skew, heavy tails, zeros, lattices and counts are shapes, not
reasons: in doubt, everything stays. What the batch alone cannot tell is a second kind of clean sample from junk: 30 %
six deviations away are cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.client.filters.lines import EVEN, NEAR, groups
from profl.client.filters.shape import shape_of
from profl.client.filters.suspicion import suspicious, where_needed
from profl.typing import Array

MOST = 0.5
"""Of the samples that junk may ever be: the other half is what the filter knows clean data by."""

AROUND = 1.5
"""How much more the evidence of distances counts than that of lines: a cut all around moves the mean less."""

BEYOND = 50.0
"""Times as far as all but ten samples: beyond any tail. Of a tail of index 2 one sample in 250 batches of 500 is."""


@dataclass(frozen=True)
class RobustFilter:
    """Drop what lies apart. Needs no knowledge of the fraction or the kind of junk.

    In every round, along the axes, the lines along which a group would show and the distance from the middle: find the
    valley behind which there is a group, and cut the clearest of them off, on both sides of its line. Again, until
    nothing is found.

    Args:
      at_most: the largest share of the samples that may be junk.
      rounds: how often at most.
      least: fewer samples than this are left alone: among so few, nothing tells the bulk from the rest.
    """

    at_most: float = 0.45
    rounds: int = 4
    least: int = 12
    first_order = True  # see ``profl.client.filtering``

    def __post_init__(self) -> None:
        share = checks.real("at_most", self.at_most)
        if not 0 <= share < MOST:
            raise checks.InputError(f"at_most must be a share of the samples of 0 to less than {MOST}, got {share}")
        checks.positive_int("rounds", self.rounds)
        checks.positive_int("least", self.least)

    def __call__(self, gradients: Array, weights: Array) -> Array:
        if gradients.shape[0] < self.least:
            return weights
        return where_needed(self, suspicious)(gradients.T[None], weights[None])[0]

    def cut(self, points: Array, weights: Array) -> Array:
        """The weights of the bulk of the (d, n) points, suspicious or not."""
        total = jnp.sum(weights > 0)

        def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            kept, _, turn = state
            stay = self._inside(points, kept > 0, total)
            new = jnp.where(stay, kept, 0.0)
            return new, jnp.any(new != kept) & suspicious(points, new), turn + 1

        start = (weights, total >= self.least, jnp.zeros((), jnp.int32))
        return jax.lax.while_loop(lambda state: state[1] & (state[2] < self.rounds), body, start)[0]

    def _inside(self, points: Array, present: Array, total: Array) -> Array:
        """Which of the present samples stay, if ``total`` were there at first."""
        lines, bulk = shape_of(points, present)
        k, d = lines.shape[0], points.shape[0]
        last = np.arange(k) == k - 1  # distances: they have one side
        even = np.where(last | (d == 1), NEAR, EVEN)
        left = jnp.sum(present)
        most = left - (1 - self.at_most) * total + 0.5  # rounded to whole samples
        up, down = groups(bulk, most, even)
        score = jnp.maximum(up.score, jnp.where(last, 0.0, down.score)) * np.where(last, AROUND * (d > 1), 1.0)
        best = jnp.argmax(score)
        upper = jnp.where(up.score[best] > 0, up.cut[best], up.beside[best])
        lower = jnp.where(down.score[best] > 0, down.cut[best], down.beside[best])
        lower = jnp.where(best == k - 1, jnp.inf, lower)
        away = lines[best] - bulk.centre[best]
        apart = (score[best] > 0) & ((away >= upper) | (-away >= lower))
        inside = present & ~apart & (lines[-1] <= BEYOND * bulk.last[-1])
        return jnp.where(left - jnp.sum(inside) <= most, inside, present)
