"""The robust filter: samples go only where a gap parts them from the rest that no clean tail explains.

    centre, scatter   a few concentration steps: of the 1 - at_most samples that are nearest, the mean and covariance
    lines             the distance of every sample, its place along the mean direction of those outside, and in every
                      coordinate: a column with a long tail must not hide what is plain in another
    gap               for radii a < b on a logarithmic grid, m samples between them and k beyond b. Of a tail of index
                      ``tail_index`` at least p = 1 - (a / b)^tail_index of those beyond a lie between, so that many
                      beyond and few between have a probability of exp(-S) at most,

                          S = (m + k) KL(m / (m + k) || p),    cut where S > log(lines n / false_alarms).

The line with the largest S is cut first; what is left is tested again. A group of more than ``at_most`` may be the
data as well as the junk, and stays. A coordinate that is exactly zero says nothing: nobody bought. (Where the family
says otherwise, ``Family.ordinary``, the points come with zeros for that and for nothing else.) Rounded data have gaps
of their own, of one step. A batch that looks like the last one (``Memory``) is cut where that was, without a search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.numerics import short_loop
from profl.parts.filters.filter import SampleFilter
from profl.parts.filters.order_statistics import order_statistic
from profl.parts.filters.reference_sample import Known, Vetted
from profl.parts.filters.where_needed import where_needed
from profl.typing import Array, Batch

TURNS, SMALL, RIDGE, TINY, NONE = 3, 64, 1e-5, 1e-9, 1e30
"""Concentration steps; coordinates up to which there is a covariance (a variance each beyond); what correlations are
lowered by, as single precision tells no thinner direction; what nothing is divided by less than; and the limit where
nothing is cut: what a client remembers must be finite."""

GRID = np.exp2(np.arange(32) / 4).astype(np.float32)
"""Radii, four to a doubling, over the least one that a gap may begin at."""


class Memory(NamedTuple):
    """Where the last search cut each line, and what was left.

    ``figures`` are the mean squared distance of the samples that were kept, and the share that was cut.
    """

    centre: Array  # (d,)
    scale: Array  # (d,)
    precision: Array  # (d, d) in units of the scale, or (d,) of many coordinates
    direction: Array  # (d,)
    limits: Array  # (lines,): beyond them samples are cut
    edges: Array  # (lines,): how far out those that were kept are; negative before there are any
    figures: Array  # (2,)

    def standardise(self, points: Array) -> Array:
        """The (d, n) points from the centre, in units of the scale; zeros as they are."""
        return (points - self.centre[:, None]) * (1 / self.scale)[:, None] * (points != 0)

    def lines(self, z: Array) -> Array:
        """How far out standardised (d, n) points are: (d + 2, n), or (1, n) of single numbers."""
        if len(z) == 1:
            return jnp.abs(z)
        squared = jnp.sum(z * _times(self.precision, z), axis=0)
        return jnp.concatenate(
            [jnp.sqrt(jnp.maximum(squared, 0.0))[None], jnp.abs(self.direction @ z)[None], jnp.abs(z)]
        )

    def within(self, points: Array, bounds: Array) -> tuple[Array, Array, Array]:
        """The squared distances (n,) of points (d, n), and which are within each of two ``bounds`` (2, lines), (n,)."""
        z = self.standardise(points)
        squared, along, first = jnp.sum(z * _times(self.precision, z), axis=0), jnp.abs(self.direction @ z), len(z) > 1
        inside = []
        for bound in bounds:
            each = jnp.all(jnp.abs(z) <= bound[2 if first else 0 :, None], axis=0)
            inside.append(each & (squared <= bound[0] * jnp.abs(bound[0])) & (along <= bound[1]) if first else each)
        return squared, inside[0], inside[1]


Found = tuple[Array, Memory]


@dataclass(frozen=True)
class RobustFilter(SampleFilter):
    """Drop what a gap parts from the rest of a batch. Needs no knowledge of the fraction or the kind of junk.

    Args:
      at_most: the largest share of the samples that may be junk. A larger group stays: junk or not, it is undecided.
      reference: samples that someone has vetted, of the same form as a batch. A group that is as large among them is
        no junk but a kind, wherever the model has moved it.
      false_alarms: a gap counts where a clean batch of n samples has it with a probability of this over n. Dropping
        a few of the farthest costs a small batch nothing, and a large one its mean.
      tail_index: of the heaviest tail that clean data may have; up to 1 it has no mean, up to 2 no variance.
      gap: the least share by which a gap's ends differ. A later batch is like the last one within two such steps
        of distance, and four along other lines.
      far: deviations of the core from which on there may be a gap.
      core: the share of the 1 - at_most samples nearest to the median of a coordinate that its unit is a quantile of.
      unit: the same of all values that are neither zero nor the median, where zeros and ties are many.
      per_coordinate: samples that the core needs for every coordinate, to know correlations.
      errors: standard errors by which shares differ.
      least: fewer samples than this are left alone: among so few, nothing tells the bulk from the rest.

    >>> kinds = np.random.default_rng(0).normal(size=(2, 500, 1)) + 8 * (np.arange(500) < 100)[:, None]
    >>> weights = np.full(500, 1 / 500, np.float32)
    >>> f"{jax.jit(RobustFilter())(kinds[0], weights).sum():.2f}"
    '0.80'
    >>> known = RobustFilter(reference=kinds[1])
    >>> step = jax.jit(lambda points, vetted: known.step(points, weights, known.start(1), Known(vetted.T, weights)))
    >>> f"{step(*kinds)[0].sum():.2f}"
    '1.00'
    """

    at_most: float = 1 / 3
    reference: Any = None
    false_alarms: float = 4.0
    tail_index: float = 2.0
    gap: float = 0.2
    far: float = 3.0
    unit: float = 0.25
    core: float = 1.0
    per_coordinate: int = 6
    errors: float = 5.0
    least: int = 12
    of_samples = True  # see ``profl.parts.trusted_samples``

    def __post_init__(self) -> None:
        share = checks.real("at_most", self.at_most)
        if not 0 <= share < 1 / 2:
            raise checks.InputError(f"at_most must be a share of the samples of 0 to less than 0.5, got {share}")
        checks.positive_int("least", self.least)
        if self.reference is not None and not isinstance(self.reference, Vetted):
            object.__setattr__(self, "reference", Vetted(self.reference))

    def __call__(self, points: Array, weights: Array) -> Array:
        return self.step(points, weights, self.start(points.shape[1]))[0]

    def reference_batch(self, batch: Batch) -> Batch | None:
        """The reference as a batch like this one."""
        return None if self.reference is None else self.reference.like(batch)

    def start(self, size: int) -> Memory:
        """The memory of samples of so many numbers before there is any."""
        zero, one = jnp.zeros(size, jnp.float32), jnp.ones(size, jnp.float32)
        line = jnp.ones(size + 2 if size > 1 else 1, jnp.float32)
        return Memory(zero, one, _identity(size), zero, NONE * line, -line, jnp.zeros(2, jnp.float32))

    def step(self, points: Array, weights: Array, memory: Memory, vetted: Known | None = None) -> Found:
        """The weights of the samples that stay, and what to remember; ``vetted`` is what it sees of the reference."""
        if points.shape[0] < self.least:
            return weights, memory
        points = points.T.astype(jnp.float32)
        kept, same = self.recall(memory, points, weights)
        given = ((points, weights, vetted), (kept, memory), ~same)
        found = where_needed(self)(*jax.tree.map(lambda leaf: leaf[None], given))
        return jax.tree.map(lambda leaf: leaf[0], found)

    def recall(self, memory: Memory, points: Array, weights: Array) -> tuple[Array, Array]:
        """The weights of the (d, n) points within the remembered limits, and whether the batch is like the last one.

        The centre moves with those within first: people react. They are as far apart as they were, and as many. With a
        number that is not finite it is like no other: neither are the sums.
        """
        whole, own = jnp.maximum(jnp.sum(weights), TINY), weights.astype(jnp.float32)
        steps = np.where(np.arange(memory.edges.size) == 0, 2, 4)  # of many lines one is often longer than it was
        bounds = jnp.stack([memory.limits, (1 + self.gap) ** steps * memory.edges])
        left = own * _within(memory, points, bounds)[1]
        moves = (points - memory.centre[:, None]) * (points != 0)
        centre = memory.centre + moves @ left / jnp.maximum(jnp.sum(left), TINY)
        squared, inside, near = _within(memory._replace(centre=centre), points, bounds)
        left = own * inside / whole
        usual, beyond, total, one = *memory.figures, jnp.sum(left), own @ own / whole**2
        errors = 2 * (squared**2 @ left), beyond + one  # of the difference of two means, and of two shares
        moved = squared @ left / jnp.maximum(total, TINY) - usual, 1 - total - beyond
        same = jnp.all(jnp.stack(moved) ** 2 < self.errors**2 * one * jnp.stack(errors)) & jnp.all(near | (left == 0))
        return weights * (left > 0), same

    def search(self, points: Array, weights: Array, vetted: Known | None = None) -> Found:
        """The weights of the (d, n) points that no gap parts from the rest, and what to remember."""
        points = jnp.where(jnp.all(jnp.isfinite(points)), points, 0.0)  # else nothing can be said: all alike, all kept
        present, d = weights > 0, points.shape[0]
        count = jnp.sum(present, dtype=jnp.float32)
        most = jnp.floor(self.at_most * count)
        median = order_statistic(points, present, count / 2)
        away = jnp.abs(points - median[:, None]) * (points != 0)
        ties = jnp.sum(present & (away == 0), axis=1, dtype=jnp.float32)
        rank = jnp.maximum(self.core * (count - most), ties + 1 + self.unit * (count - ties))
        unit = order_statistic(away, present, jnp.minimum(jnp.floor(rank), count))
        unit = unit + (unit == 0)
        step = jnp.min(jnp.where(present & (away > 0), away, unit[:, None]), axis=1)  # of rounded data
        start = self.start(d)._replace(centre=median, scale=unit)
        frame, near = self._concentrate(start, points, present, count - most)
        z = frame.standardise(points)
        outside = (present & ~near) / jnp.maximum(frame.lines(z)[0], TINY)
        direction = _times(frame.precision, z @ outside)
        frame = frame._replace(direction=direction / jnp.sqrt(jnp.maximum(z @ outside @ direction, TINY)))
        lines, expected, step = frame.lines(z), jnp.zeros(()), step / frame.scale
        joint = jnp.max(step * jnp.sqrt(jnp.diag(frame.precision) if frame.precision.ndim == 2 else 1.0))
        step = step if d == 1 else jnp.concatenate([jnp.full(2, joint), step])
        size = lines**2 @ near / jnp.maximum(jnp.sum(near), 1)
        radii = jnp.sqrt(size + self.far**2)[:, None] * GRID
        if vetted is not None:
            known = vetted.weights > 0
            rows = jnp.maximum(jnp.sum(known, dtype=jnp.float32), 1.0)
            moved = order_statistic(vetted.points, known, rows / 2) - median  # people react
            z = frame._replace(centre=frame.centre + moved).standardise(vetted.points)
            own = frame.lines(z.astype(jnp.float32))
            share = _beyond(own, known, radii) / rows
            expected = count * share + self.errors * jnp.sqrt(count * share * (1 - share) * (1 + count / rows) + 1)

        def cut(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            limits, inside, _ = state
            gone = count - jnp.sum(inside)
            new = self._gaps(radii, _beyond(lines, inside, radii), expected, step, count - gone, most - gone)
            limits = jnp.minimum(limits, new)
            return limits, present & jnp.all(lines <= limits[:, None], axis=0), jnp.any(new < NONE)

        none = jnp.full(len(lines), NONE, jnp.float32)
        limits, inside, _ = jax.lax.while_loop(lambda state: state[2], cut, (none, present, jnp.asarray(True)))
        kept = weights * inside
        edges = jnp.max(lines * (kept > 0), axis=1)
        first = jnp.min(lines + NONE * (lines <= limits[:, None]) + NONE * ~present, axis=1)
        limits = jnp.where(first < NONE, jnp.sqrt(edges * first), NONE)  # in the middle of the gap
        left, total = (jnp.maximum(jnp.sum(each), TINY) for each in (kept, weights))
        usual = lines[0] ** 2 @ kept.astype(jnp.float32) / left
        figures = jnp.stack([usual, 1 - jnp.sum(kept) / total]).astype(jnp.float32)
        return kept, frame._replace(limits=limits, edges=edges, figures=figures)

    def _concentrate(self, start: Memory, points: Array, present: Array, core: Array) -> tuple[Memory, Array]:
        """Centre, scale and precision of the nearest ``core`` of the samples (n,), and which these are."""
        d, filled, eye = len(points), present & (points != 0), _identity(len(points))

        def turn(_: int, state: tuple[Memory, Array, Array]) -> tuple[Memory, Array, Array]:
            near = present & (state[1] <= order_statistic(state[1], present, core))
            inside = (filled & near).astype(jnp.float32)
            inside = inside / jnp.maximum(jnp.sum(inside, axis=1, keepdims=True), 1.0)
            y = start.standardise(points)
            centre = jnp.sum(inside * y, axis=1, keepdims=True)
            part = (y - centre) * jnp.sqrt(inside)
            variance = jnp.sum(part**2, axis=1, keepdims=True)
            scale = start.scale * jnp.sqrt(jnp.maximum(variance[:, 0], 1.0))
            frame = start._replace(centre=start.centre + start.scale * centre[:, 0], scale=scale)
            if eye.ndim == 2:
                part = part / jnp.sqrt(jnp.maximum(variance, TINY))
                known = (core >= self.per_coordinate * d) * (1 - RIDGE)
                frame = frame._replace(precision=_inverse(eye + (1 - eye) * known * (part @ part.T)))
            return frame, frame.lines(frame.standardise(points))[0], near

        first = jnp.sum(start.standardise(points) ** 4, axis=0)
        frame, _, near = short_loop(TURNS, turn, (start, first, present))
        return frame, near

    def _gaps(self, radii: Array, beyond: Array, expected: Array, step: Array, count: Array, most: Array) -> Array:
        """Limits (lines,): of the line with the gap that a clean tail explains least, and none of the others.

        From the numbers of samples (lines, radii) beyond the radii, and how many are ``expected`` there.
        """
        within = radii + jnp.maximum(radii * self.gap, step[:, None])
        room = self.tail_index * jnp.log(radii[:, None, :] / within[:, :, None])  # (lines, from a, to b)
        after, before = beyond[:, None, :], beyond[:, :, None]
        between = before - after
        share, least = between / jnp.maximum(before, 1.0), -jnp.expm1(-room)
        possible = (room > 0) & (share < least) & (between <= self.gap * after)
        possible &= ((beyond > expected) & (2 * beyond <= count))[:, None]
        ratio = jnp.where(possible & (share > 0), share / least, 1.0)
        score = (between * jnp.log(ratio) + after * (jnp.log1p(-share * possible) + room)) * possible
        enough, decided = jnp.log1p(len(radii) * count / self.false_alarms), (after <= most) & (count >= self.least)
        score = score * decided
        best = jnp.max(score, axis=(1, 2))
        hit = score == best[:, None, None]
        low = jnp.min(jnp.where(jnp.any(hit, axis=2), radii, NONE), axis=1, keepdims=True)
        high = jnp.max(jnp.any(hit, axis=1) * radii, axis=1, keepdims=True)
        inside = (radii > low) & (radii <= high) & (beyond <= most)
        here = jnp.concatenate([beyond[:, :1], beyond[:, :-1]], axis=1) - beyond  # samples from the last radius to it
        bins = jnp.where(inside, here, NONE)  # the emptiest, as far out as may be
        limits = jnp.max((bins <= jnp.min(bins, axis=1, keepdims=True)) * radii, axis=1)
        return jnp.where((best > enough) & (best >= jnp.max(best)), limits, NONE)


@jax.jit  # once in a program, though it is called twice
def _within(memory: Memory, points: Array, bounds: Array) -> tuple[Array, Array, Array]:
    """``Memory.within``, of which an accelerator writes what it returns to memory, and less of what that is made of."""
    return jax.lax.optimization_barrier(memory.within(points, bounds))


def _identity(size: int) -> Array:
    """The precision of so many coordinates in units of their own; its diagonal where they are many."""
    return jnp.eye(size, dtype=jnp.float32) if size <= SMALL else jnp.ones(size, jnp.float32)


def _inverse(correlation: Array) -> Array:
    """The inverse of a correlation matrix (d, d), by symmetric sweeps: its pivots are 1 at most."""
    eye = jnp.eye(len(correlation), dtype=correlation.dtype)

    def sweep(a: Array, one: Array) -> tuple[Array, None]:
        column = jnp.sum(a * one, axis=1)
        rest = column - one
        return a - rest[:, None] * rest / (column @ one) - 2 * eye * one, None

    return -jax.lax.scan(sweep, correlation, eye, unroll=jax.default_backend() != "cpu" and len(eye) <= 8)[0]


def _times(precision: Array, z: Array) -> Array:
    """The product of a precision (d, d), or its diagonal (d,), with z (d,) or (d, n)."""
    if precision.ndim == 1:
        return (precision * z.T).T
    if jax.default_backend() == "cpu" or z.ndim == 1:
        return precision @ z
    # A library would read z from an accelerator's memory and write the product there; sums are part of what reads them.
    return sum(column[:, None] * row for column, row in zip(precision.T, z, strict=True))


def _beyond(lines: Array, present: Array, radii: Array) -> Array:
    """How many of the present samples (n,) lie beyond each of the radii (k, r), along (k, n) lines.

    One radius after the other: a CPU is ten times as fast as with all in one sum, unlike an accelerator.
    """
    each = jax.lax.map if jax.default_backend() == "cpu" else lambda count, rows: jax.vmap(count)(rows)
    return each(lambda radius: (lines > radius[:, None]) @ present.astype(jnp.float32), radii.T).T
