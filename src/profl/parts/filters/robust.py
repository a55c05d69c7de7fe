"""The robust filter: it needs a reason to cut.

A reason is a group apart from the bulk (``lines``), seen along one of a few lines or by its distance from the middle
(``shape``), or samples farther out than any tail. Skew, heavy tails, zeros, lattices and counts are shapes, not
reasons: in doubt, everything stays. What the batch alone cannot tell is a second kind of clean sample from junk: 30 %
six deviations away are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.parts.filters.filter import SampleFilter
from profl.parts.filters.gap_test import EVEN, NEAR, RISE, RISE_ALONE, Known, groups
from profl.parts.filters.memory import NOT_YET, Cut, Memory, along_a_line, learned, nothing, recalled, usual
from profl.parts.filters.normality_test import figures, gaussian, where_needed
from profl.parts.filters.points import mean_of
from profl.parts.filters.projections import shape_of
from profl.parts.filters.reference_sample import Vetted
from profl.parts.filters.screen import look
from profl.typing import Array, Batch

_State = tuple[Array, Cut, Array, Array, Array]

MOST = 0.5
"""Of the samples that junk may ever be: the other half is what the filter knows clean data by."""

AROUND = 1.5
"""How much more the evidence of distances counts than that of lines: a cut all around moves the mean less."""

BEYOND = 50.0
"""Times as far as all but ten samples: beyond any tail. Of a tail of index 2 one sample in 250 batches of 500 is."""


@dataclass(frozen=True)
class RobustFilter(SampleFilter):
    """Drop what lies apart. Needs no knowledge of the fraction or the kind of junk.

    In every round, along the axes, the lines along which a group would show and the distance from the middle: find the
    valley behind which there is a group, and cut the clearest of them off, on both sides of its line. Again, until
    nothing is found.

    Args:
      at_most: the largest share of the samples that may be junk.
      rounds: how often at most.
      least: fewer samples than this are left alone: among so few, nothing tells the bulk from the rest.
      reference: samples that someone has vetted, of the same form as a batch. A group that is as large among them is
        no junk but a kind, wherever the model has moved it.

    >>> import numpy as np
    >>> kinds = np.random.default_rng(0).normal(size=(2, 500, 1)) + 8 * (np.arange(500) < 150)[:, None]
    >>> weights = np.full(500, 1 / 500, np.float32)
    >>> f"{RobustFilter()(jnp.asarray(kinds[0]), weights).sum():.2f}"
    '0.70'
    >>> known = RobustFilter(reference=kinds[1])
    >>> points = jnp.asarray(kinds[0])
    >>> f"{known.step(points, weights, known.start(1), Known(jnp.asarray(kinds[1].T), weights))[0].sum():.2f}"
    '1.00'
    """

    at_most: float = 0.45
    rounds: int = 4
    least: int = 12
    reference: Any = None
    of_samples = True  # see ``profl.parts.trusted_samples``

    def __post_init__(self) -> None:
        share = checks.real("at_most", self.at_most)
        if not 0 <= share < MOST:
            raise checks.InputError(f"at_most must be a share of the samples of 0 to less than {MOST}, got {share}")
        checks.positive_int("rounds", self.rounds)
        checks.positive_int("least", self.least)
        if self.reference is not None and not isinstance(self.reference, Vetted):
            object.__setattr__(self, "reference", Vetted(self.reference))

    def __call__(self, gradients: Array, weights: Array) -> Array:
        return self.step(gradients, weights, self.start(gradients.shape[1]))[0]

    def reference_batch(self, batch: Batch) -> Batch | None:
        """The reference as a batch like this one."""
        return None if self.reference is None else self.reference.like(batch)

    def start(self, size: int) -> Memory:
        """What it remembers of gradients of so many numbers before it has seen any."""
        return nothing(size)

    def step(
        self, gradients: Array, weights: Array, memory: Memory, vetted: Known | None = None
    ) -> tuple[Array, Memory]:
        """The weights of the samples that stay, and what to remember; ``vetted`` is what it sees of the reference."""
        if gradients.shape[0] < self.least:
            return weights, memory
        points = gradients.T
        kept, valid, told = look(memory.cut, points, weights)
        calm = valid & (gaussian(told) | usual(memory, told, kept))
        given = ((points, weights, memory, vetted), (kept, memory), ~calm)
        found = where_needed(self)(*jax.tree.map(lambda leaf: leaf[None], given))
        return jax.tree.map(lambda leaf: leaf[0], found)

    def search(
        self, points: Array, weights: Array, memory: Memory, vetted: Known | None = None
    ) -> tuple[Array, Memory]:
        """The weights of the bulk of the (d, n) points, from scratch, and what to remember."""
        total = jnp.sum(weights > 0)

        def body(state: _State) -> _State:
            kept, cut, told, _, turn = state
            stay, new = self._inside(points, kept > 0, total, vetted)
            fewer = jnp.where(stay, kept, 0.0)
            told = figures(points, fewer)
            again = jnp.any(fewer != kept) & ~gaussian(told)
            return fewer, trees.where(turn == 0, new, cut), told, again, turn + 1

        start = (weights, memory.cut, figures(points, weights), total >= self.least, jnp.zeros((), jnp.int32))
        going = jax.lax.while_loop(lambda state: state[3] & (state[4] < self.rounds), body, start)
        kept, cut, told, _, _ = going
        alone = jnp.sum(recalled(cut, points, weights)[0] > 0) == jnp.sum(kept > 0)
        other, apart = along_a_line(points, weights, kept)
        cut = trees.where(alone | ~apart, cut, other)
        return kept, trees.where(alone | apart, learned(memory, cut, told), nothing(points.shape[0])._replace(cut=cut))

    def _inside(self, points: Array, present: Array, total: Array, vetted: Known | None) -> tuple[Array, Cut]:
        """Which of the present samples stay, if ``total`` were there at first, and the cut that says so."""
        n = present.size
        everything = points if vetted is None else jnp.concatenate([points, vetted.points], axis=1)
        counted = jnp.pad(present, (0, everything.shape[1] - n))
        lines, bulk, directions, free = shape_of(everything, counted, n)
        lines, known = lines[:, :n], None if vetted is None else Known(lines[:, n:], vetted.weights)
        k, d = lines.shape[0], points.shape[0]
        last = np.arange(k) == k - 1  # distances: they have one side
        even = np.where(last | (d == 1), NEAR, EVEN)
        left = jnp.sum(present)
        most = left - (1 - self.at_most) * total + 0.5  # rounded to whole samples
        up, down = groups(bulk, most, even, RISE if d > 1 else RISE_ALONE, known)
        score = jnp.maximum(up.score, jnp.where(last, 0.0, down.score)) * jnp.where(last, AROUND * (free > 1), 1.0)
        best = jnp.argmax(score)
        valleys = jnp.stack(
            [jnp.where(each.score[best] > 0, each.valley[best], each.beside[best]) for each in (down, up)]
        )
        valleys = jnp.where((best == k - 1) & (np.arange(2) == 0)[:, None], jnp.inf, valleys)
        valleys = jnp.where(score[best] > 0, valleys, jnp.inf)  # (below and above, beginning and cut)
        away = lines[best] - bulk.centre[best]
        inside = present & (away > -valleys[0, 1]) & (away < valleys[1, 1])
        near = inside & (lines[-1] <= BEYOND * bulk.last[-1])
        stay = jnp.where(left - jnp.sum(near) <= most, near, present)
        return stay, self._cut(points, directions[best], away, valleys, stay, present)

    def _cut(self, points: Array, direction: Array, away: Array, valleys: Array, stay: Array, present: Array) -> Cut:
        """Limits around the mean of what stays; none where nothing goes."""
        one = 1 / jnp.maximum(jnp.sum(present), 1)
        along = direction @ points
        centre = mean_of(along[None], stay)[0]
        shift = mean_of(away[None], stay)[0]  # of that centre from the bulk's
        inner, outer = (jnp.minimum(valleys[:, side] + shift * np.array([1, -1]), NOT_YET) for side in (0, 1))
        crowd = jnp.sum(stay & ((away <= -valleys[0, 0]) | (away >= valleys[1, 0]))) * one
        beyond = jnp.sum(present & ~stay) * one
        return Cut(jnp.where(beyond > 0, direction, 0.0), centre, inner, outer, crowd, beyond)
