"""The robust filter: samples go only where a gap parts them from the rest that no clean tail explains.

    centre, scatter   a few concentration steps: of the 1 - at_most samples that are nearest, the mean and covariance
    lines             r_j, the distance of every sample; t_j, along the mean direction of those outside (1 - at_most)
    gap               for radii a < b on a logarithmic grid, m samples between them and k beyond b. Of a tail of index
                      ``tail_index`` at least p = 1 - (a / b)^tail_index of those beyond a lie between, so that many
                      beyond and few between have a probability of exp(-S) at most,

                          S = (m + k) KL(m / (m + k) || p),    cut where S > log(n / false_alarms).

A cut is refused where more than ``at_most`` lie beyond it: such a group may be the data as well as the junk, and stays.
A coordinate that is exactly zero says nothing: nobody bought. Rounded data have gaps of their own, of one step.
A batch that looks like the last one (``Memory``) is cut where that was, without a search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.numerics import inverse
from profl.parts.filters.filter import SampleFilter
from profl.parts.filters.order_statistics import order_statistic
from profl.parts.filters.reference_sample import Known, Vetted
from profl.parts.filters.where_needed import where_needed
from profl.typing import Array, Batch

TURNS, SMALL, RIDGE, TINY, NONE = 3, 64, 1e-5, 1e-9, 1e30
"""Concentration steps; coordinates up to which there is a covariance (a variance each beyond); what correlations are
lowered by, as single precision tells no thinner direction; what nothing is divided by less than; and the limit where
nothing is cut: what a client remembers must be finite."""

GRID = np.exp2(np.arange(40) / 5).astype(np.float32)
"""Radii, five to a doubling, over the least one that a gap may begin at."""


class Memory(NamedTuple):
    """Where the last search cut, and what was left; squared distances are those of x - centre by the form.

    ``figures`` are the squared distance beyond which samples are cut, that of the farthest that was kept (negative
    before there is any), its mean over those that were kept, and the share that was cut.
    """

    centre: Array  # (d,)
    form: Array  # (d, d), or (d,) of many coordinates
    figures: Array  # (4,)


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
      gap: the least share by which a gap's ends differ. A later batch is like the last one within the same share.
      far: deviations of the core from which on there may be a gap.
      unit: the share of the deviations from the median of a coordinate that its unit is a quantile of at least.
      per_coordinate: samples that the core needs for every coordinate, to know correlations.
      errors: standard errors by which shares differ.
      least: fewer samples than this are left alone: among so few, nothing tells the bulk from the rest.

    >>> kinds = np.random.default_rng(0).normal(size=(2, 500, 1)) + 8 * (np.arange(500) < 100)[:, None]
    >>> weights = np.full(500, 1 / 500, np.float32)
    >>> f"{RobustFilter()(jnp.asarray(kinds[0]), weights).sum():.2f}"
    '0.80'
    >>> known = RobustFilter(reference=kinds[1])
    >>> points = jnp.asarray(kinds[0])
    >>> f"{known.step(points, weights, known.start(1), Known(jnp.asarray(kinds[1].T), weights))[0].sum():.2f}"
    '1.00'
    """

    at_most: float = 1 / 3
    reference: Any = None
    false_alarms: float = 4.0
    tail_index: float = 1.5
    gap: float = 0.2
    far: float = 4.0
    unit: float = 0.25
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
        form = jnp.zeros((size, size) if size <= SMALL else size, jnp.float32)
        return Memory(jnp.zeros(size, jnp.float32), form, jnp.array([0, -1, 0, 0], jnp.float32))

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
        """The weights of the (d, n) points within the remembered limit, and whether the batch is like the last one.

        The centre moves with those within first: people react. They are as far apart as they were, and as many.
        """
        limit, edge, usual, beyond = memory.figures
        share = (weights / jnp.maximum(jnp.sum(weights), TINY)).astype(jnp.float32)
        moved = _from_centre(memory, points)
        squared = _squared(memory.form, moved)
        inside = share * (squared <= limit)
        shift = moved @ inside / jnp.maximum(jnp.sum(inside), TINY)
        turned = memory.form @ shift if memory.form.ndim == 2 else memory.form * shift
        squared = squared - 2 * (turned @ moved) + turned @ shift
        stays = squared <= limit
        left = share * stays
        total, room, one = jnp.sum(left), (1 + self.gap) ** 4, share @ share
        mean = squared @ left / jnp.maximum(total, TINY)
        noise = jnp.sqrt(2 * one * (squared**2 @ left))  # of the difference of two means
        same = (jnp.max(squared * (left > 0)) <= room * edge) & (jnp.abs(mean - usual) < self.errors * noise)
        error = self.errors * jnp.sqrt(one * (beyond + one))
        return weights * stays, same & (jnp.abs(1 - total - beyond) < error)

    def search(self, points: Array, weights: Array, vetted: Known | None = None) -> Found:
        """The weights of the (d, n) points that no gap parts from the rest, and what to remember."""
        present, d = weights > 0, points.shape[0]
        count = jnp.sum(present)
        most = jnp.floor(self.at_most * count).astype(jnp.int32)
        core, filled = count - most, points != 0
        median = order_statistic(points, present, (count + 1) // 2)
        away = jnp.abs(points - median[:, None])
        says = present & filled & (away > 0)
        number = jnp.sum(says, axis=1)
        level = jnp.maximum((number - most) / 2, self.unit * number).astype(jnp.int32)
        unit = jnp.where(number > 0, order_statistic(away, says, level + 1), 1.0)
        y = (points - median[:, None]) / unit[:, None] * says
        eye = jnp.eye(d, dtype=jnp.float32) if d <= SMALL else jnp.ones(d, jnp.float32)

        def turn(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
            near = present & (state[0] <= order_statistic(state[0], present, core))
            inside = (says & near).astype(jnp.float32)
            inside = inside / jnp.maximum(jnp.sum(inside, axis=1, keepdims=True), 1.0)
            centre = jnp.sum(inside * y, axis=1, keepdims=True)
            z = (y - centre) * says
            part = z * jnp.sqrt(inside)
            variance = jnp.sum(part**2, axis=1, keepdims=True)
            scale = jnp.sqrt(jnp.maximum(variance, 1.0))
            z, precision = z / scale, eye
            if d <= SMALL:
                part = part / jnp.sqrt(jnp.maximum(variance, TINY))
                known = (core >= self.per_coordinate * d) * (1 - RIDGE)
                precision = inverse(eye + (1 - eye) * known * (part @ part.T))
            return _squared(precision, z), z, near, centre[:, 0], scale[:, 0], precision

        one = jnp.ones(d, jnp.float32)
        state = (jnp.sum(y**4, axis=0), y, present, one, one, eye)
        squared, z, near, centre, scale, precision = jax.lax.fori_loop(0, TURNS, turn, state)
        distance = jnp.sqrt(jnp.maximum(squared, 0.0))
        towards = z @ ((present & ~near) / jnp.maximum(distance, TINY))
        direction = precision @ towards if d <= SMALL else towards
        direction = direction / jnp.sqrt(jnp.maximum(towards @ direction, TINY))
        lines = jnp.stack([distance, jnp.abs(direction @ z)])
        radii = jnp.sqrt(order_statistic(lines, present, core) ** 2 + self.far**2)[:, None] * GRID
        beyond, expected = _beyond(lines, present, radii), jnp.zeros(())
        step = jnp.abs(away - unit[:, None])  # of rounded data; of others next to nothing
        step = jnp.min(jnp.where(present & (step > 0), step, unit[:, None]), axis=1) / (unit * scale)
        step = jnp.max(step * jnp.sqrt(jnp.diag(precision) if d <= SMALL else one))
        middle, scale = median + unit * centre, unit * scale
        if vetted is not None:
            known, seen = vetted.weights > 0, vetted.points != 0
            rows = jnp.maximum(jnp.sum(known), 1)
            shift = median - order_statistic(vetted.points, known, (rows + 1) // 2)  # people react
            own = ((vetted.points + (shift - middle)[:, None]) / scale[:, None] * seen).astype(jnp.float32)
            own = jnp.stack([jnp.sqrt(jnp.maximum(_squared(precision, own), 0.0)), jnp.abs(direction @ own)])
            share = _beyond(own, known, radii) / rows
            expected = count * share + self.errors * jnp.sqrt(count * share * (1 - share) * (1 + count / rows) + 1)
        line, limit, found = self._gap(radii, beyond, expected, step, count, most)
        kept = weights * (~found | (lines[line] <= limit))
        if d <= SMALL:
            along = found & (line == 1)
            precision = jnp.where(along, direction[:, None] * direction, precision) / scale[:, None]
        memory = Memory(middle, precision / scale, jnp.zeros(4))
        squared = _squared(memory.form, _from_centre(memory, points))
        edge = jnp.max(squared * (kept > 0))
        first = jnp.min(jnp.where(present & (kept == 0), squared, NONE))
        left, total = (jnp.maximum(jnp.sum(each), TINY) for each in (kept, weights))
        if d > SMALL:
            edge = jnp.where(found & (line == 1), -1.0, edge)  # a direction of many coordinates is not remembered
        limit = jnp.where(first < NONE, jnp.sqrt(jnp.abs(edge) * first), NONE)  # in the middle of the gap
        figures = [limit, edge, squared @ kept.astype(jnp.float32) / left, 1 - jnp.sum(kept) / total]
        return kept, memory._replace(figures=jnp.stack(figures).astype(jnp.float32))

    def _gap(
        self, radii: Array, beyond: Array, expected: Array, step: Array, count: Array, most: Array
    ) -> tuple[Array, Array, Array]:
        """(line, limit, whether there is one) of the gap that a clean tail explains least.

        From the numbers of samples (lines, radii) beyond the radii, and how many are ``expected`` there.
        """
        within = radii + jnp.maximum(radii * self.gap, step)
        room = self.tail_index * jnp.log(radii[:, None, :] / within[:, :, None])  # (lines, from a, to b)
        after, before = beyond[:, None, :], beyond[:, :, None]
        between = before - after
        share, least = between / jnp.maximum(before, 1.0), -jnp.expm1(-room)
        possible = (room > 0) & (share < least) & (between <= self.gap * after)
        possible &= ((beyond <= most) & (beyond > expected))[:, None]
        ratio = jnp.where(possible & (share > 0), share / least, 1.0)
        score = (between * jnp.log(ratio) + after * (jnp.log1p(-share) + room)) * 1.0
        score = jnp.where(possible, score, 0.0)
        best = jnp.argmax(score)
        line, a, b = best // GRID.size**2, best // GRID.size % GRID.size, best % GRID.size
        number, place = beyond[line], np.arange(GRID.size)
        last = GRID.size - 1  # how many lie in the stretch before a radius and its neighbours
        around = number[np.maximum(place - 2, 0)] - number[np.minimum(place + 1, last)]
        around = jnp.where((place > a) & (place <= b) & (number <= most), around, jnp.inf)
        found = (jnp.max(score) > jnp.log(count / self.false_alarms)) & (count >= self.least)
        return line, radii[line, last - jnp.argmin(around[::-1])], found  # the emptiest, as far out as it may be


def _from_centre(memory: Memory, points: Array) -> Array:
    """The (d, n) points from the centre, with zeros as they are."""
    return (points - memory.centre[:, None]) * (points != 0)


def _squared(form: Array, moved: Array) -> Array:
    """Squared distances (n,) of (d, n) points by a form (d, d), or (d,)."""
    return jnp.sum(moved * (form @ moved if form.ndim == 2 else form[:, None] * moved), axis=0)


def _beyond(lines: Array, present: Array, radii: Array) -> Array:
    """How many of the present samples (n,) lie beyond each of the radii (k, r), along (k, n) lines."""
    return jnp.sum((lines[:, None, :] > radii[:, :, None]) & present, axis=-1) * 1.0
