"""A Jacobian in a world with a memory: Kalman filters side by side, each with its own idea of that world.

Where people react slowly, what comes in answers to an average of what was deployed, and where the world moves by itself,
the level of f walks:

    f_hat = a + J (s~ - c) + noise,    s~ <- memory s~ + (1 - memory) s,    a <- a + (a step of variance walk)

For every pair of (memory, walk) in a small grid this is the line of ``profl.client.kalman`` with another regressor, known
without noise. Its slope J is that of the long run, as it should be: where f <- A f + B s it is (I - A)^-1 B with
A = memory I, which is stable by construction. How well each filter foretold what came in is a smooth function of the
logarithm of the settling time 1 / (1 - memory), and so is its J: both are read between the grid's points, on a parabola
through the best and its neighbours. The plain world, no memory and no walk, is believed until another has foretold
clearly better, so that a world without either is estimated as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.client.kalman import Kalman, Line
from profl.typing import Array

DOUBLINGS = 6
"""Settling times of 1, 2, 4, ..., 32 deployments."""

WALKS = (0.0, 1e-4, 2.5e-3)
"""Variances of a step of the level, in natural units: for a trend of a hundredth of a deviation a deployment and less,
and for one of a twentieth."""

DOUBT = 6.0
"""Nats by which another world must have foretold better than the plain one to be believed as much."""

FADES = 0.995
"""Of the evidence is left after every deployment: what was long ago does not hold for ever."""


class Worlds(NamedTuple):
    """Walks x memories."""

    lines: Line
    seen: Array  # s~, (memories, s)
    around: Array  # the same average of the models that deployments were made around, (memories, s)
    evidence: Array  # log of how likely what came in was, (walks, memories)


class Belief(NamedTuple):
    """What is believed: the plain world, and for every walk the best memory."""

    weights: Array  # (1 + walks,)
    slopes: Array  # (1 + walks, p, s)
    errors: Array  # (1 + walks, p, s)
    doublings: Array  # log2 of the settling times, (1 + walks,)
    gains: Array  # how much better than the plain world each has foretold, in nats, (1 + walks,)


@dataclass(frozen=True)
class Tracking:
    """See the module."""

    walks: tuple[float, ...] = WALKS
    doublings: int = DOUBLINGS
    line: Kalman = Kalman()

    explores = True
    measured = True

    @property
    def memories(self) -> np.ndarray:
        return 1 - 0.5 ** np.arange(self.doublings)

    def init(self, signal: Array, f: Array) -> Worlds:
        shape = (len(self.walks), self.doublings)
        lines = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), self.line.init(signal, f))
        place = jnp.zeros((self.doublings, signal.shape[0]), f.dtype)
        return Worlds(lines, place, place, jnp.zeros(shape, f.dtype))

    def update(self, state: Worlds, signal: Array, f: Array, variance: Array, at: Array) -> Worlds:
        first = state.lines.seen[0, 0] == 0
        keep = jnp.where(first, 0.0, jnp.asarray(self.memories, f.dtype))[:, None]
        seen, around = (keep * old + (1 - keep) * new for old, new in ((state.seen, signal), (state.around, at)))

        def one(line: Line, seen: Array, around: Array, walk: Array) -> tuple[Line, Array]:
            return self.line.foretold(line, seen, f, variance, around, walk)

        each = jax.vmap(jax.vmap(one, (0, 0, 0, None)), (0, None, None, 0))
        lines, told = each(state.lines, seen, around, jnp.asarray(self.walks, f.dtype))
        return Worlds(lines, seen, around, FADES * state.evidence + told)

    def believed(self, state: Worlds) -> Belief:
        slopes = state.lines.belief.slope
        errors = jax.vmap(jax.vmap(self.line.error))(state.lines)
        plain = state.evidence[0, 0]
        best, *read = jax.vmap(_between)(state.evidence, slopes, errors)
        gains, places, *found = (
            jnp.concatenate([jnp.reshape(own, (1, *own.shape)), each])
            for own, each in zip(
                (plain - plain, plain - plain, slopes[0, 0], errors[0, 0]), (best - plain, *read), strict=True
            )
        )
        weights = jax.nn.softmax(gains - jnp.where(np.arange(len(gains)) == 0, 0.0, DOUBT))
        return Belief(weights, found[0], found[1], places, gains)

    def estimate(self, state: Worlds) -> Array:
        belief = self.believed(state)
        return jnp.tensordot(belief.weights, belief.slopes, 1)

    def error(self, state: Worlds) -> Array:
        """Of the filters, and between them."""
        belief = self.believed(state)
        mean = jnp.tensordot(belief.weights, belief.slopes, 1)
        return jnp.tensordot(belief.weights, belief.errors + (belief.slopes - mean) ** 2, 1)

    def hold(self, state: Worlds) -> Array:
        """For how many deployments to hold what is explored: about as many as people need to settle."""
        belief = self.believed(state)
        settling = 2 ** belief.doublings[jnp.argmax(belief.weights)]
        return jnp.clip(jnp.round(0.7 * settling), 1, 2**self.doublings).astype(jnp.int32)


def _between(evidence: Array, slopes: Array, errors: Array) -> tuple[Array, Array, Array, Array]:
    """The most likely place between the grid's points: evidence there, place, slope and error."""
    last = evidence.shape[0] - 1
    middle = jnp.clip(jnp.argmax(evidence), 1, last - 1)
    low, here, high = (evidence[middle + side] for side in (-1, 0, 1))
    curve = low - 2 * here + high
    away = jnp.where(curve < 0, (low - high) / (2 * jnp.where(curve < 0, curve, -1.0)), jnp.sign(high - low))
    away = jnp.clip(away, -1.0, 1.0)
    parts = jnp.stack([away * (away - 1) / 2, 1 - away**2, away * (away + 1) / 2])
    rows = middle + jnp.arange(-1, 2)
    read = [jnp.tensordot(parts, values[rows], 1) for values in (evidence, slopes)]
    return read[0], middle + away, read[1], jnp.tensordot(jnp.abs(parts), errors[rows], 1)
