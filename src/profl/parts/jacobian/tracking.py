"""A Jacobian in a world with a memory: Kalman filters side by side, each with its own idea of that world.

Where people react slowly, what comes in answers to an average of what was deployed, and where the world moves by
itself, the level of f walks:

    f_hat = a + J (s~ - c) + noise,    s~ <- memory s~ + (1 - memory) s,    a <- a + (a step of variance walk)

For every pair of (memory, walk) in a small grid this is the line of ``kalman`` with another regressor,
known without noise. Its slope J is that of the long run, as it should be: where f <- A f + B s it is (I - A)^-1 B with
A = memory I, which is stable by construction. Which memory it is, and its J, is read between the grid's points
(``reaction_memory``). The plain world, no memory and no walk, is believed until another has foretold clearly
better, so that a world without either is estimated as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.parts.jacobian import reaction_memory
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.kalman import Kalman, Line
from profl.parts.jacobian.reaction_memory import EVIDENCE_NEEDED, SETTLING_TIMES
from profl.typing import Array

WALKS = (0.0, 5e-4)
"""Variances of a step of the level, in natural units: for trends of a hundredth of a deviation a deployment and less.
A third, of 2.5e-3, costs a third more time and ends no nearer."""

FADES = 0.995
"""Of the evidence is left after every deployment: what was long ago does not hold for ever."""

TREND_RATE = 0.02
"""Weight of the newest deployment in the trend: the last fifty or so."""

KALMAN = Kalman()


class Worlds(NamedTuple):
    """Walks x memories."""

    lines: Line
    seen: Array  # s~, (memories, s)
    around: Array  # the same average of the models that deployments were made around, (memories, s)
    evidence: Array  # log of how likely what came in was, (walks, memories)
    trend: Array  # by how much the level moves by itself with a deployment, (p,)
    slope: Array  # J, as it is believed, (p, s)
    error: Array  # its squared error, (p, s)
    hold: Array  # for how many deployments to hold what is explored, () int32


class Read(NamedTuple):
    """What a world says."""

    gain: Array  # by how much it has foretold better than the plain world, in nats
    log2_settling_time: Array
    settling_error: Array  # standard error of that
    slope: Array  # J, (p, s)
    error: Array  # its squared error, (p, s)


@dataclass(frozen=True)
class Tracking(JacobianEstimator):
    """See the module."""

    walks: tuple[float, ...] = WALKS
    settling_times: int = SETTLING_TIMES
    line: Kalman = KALMAN

    explores = True  # without perturbations J fades from sight once the run rests
    measured = True  # works in natural units

    def init(self, signal: Array, f: Array) -> Worlds:
        shape = (len(self.walks), self.settling_times)
        lines = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), self.line.init(signal, f))
        place = jnp.zeros((self.settling_times, signal.shape[0]), f.dtype)
        evidence, trend, slope = (jnp.zeros(size, f.dtype) for size in (shape, f.shape, (*f.shape, *signal.shape)))
        return Worlds(lines, place, place, evidence, trend, slope, slope, jnp.ones((), jnp.int32))

    def update(self, state: Worlds, signal: Array, f: Array, variance: Array, at: Array) -> Worlds:
        first = state.lines.seen[0, 0] == 0
        seen, around = (
            reaction_memory.update_averages(state.seen, signal, first),
            reaction_memory.update_averages(state.around, at, first),
        )

        def one(line: Line, seen: Array, around: Array, walk: Array) -> tuple[Line, Array, Array, Array]:
            new, told, noise = self.line.foretold(line, seen, f, variance, around, walk)
            along = jnp.sum(line.belief.slope * (new.anchor - line.anchor), -1)
            return new, told, noise, new.belief.level - line.belief.level - along

        each = jax.vmap(jax.vmap(one, (0, 0, 0, None)), (0, None, None, 0))
        lines, told, noise, moved = each(state.lines, seen, around, jnp.asarray(self.walks, f.dtype))
        evidence = FADES * state.evidence + self._counts(noise[0, 0]) * told
        walk, best = jnp.unravel_index(jnp.argmax(evidence[1:]), evidence[1:].shape)
        trend = state.trend + jnp.where(first, 0.0, TREND_RATE) * (moved[walk + 1, best] - state.trend)
        weights, read = self._believed(lines, evidence)
        slope = jnp.tensordot(weights, read.slope, 1)
        error = jnp.tensordot(weights, read.error + (read.slope - slope) ** 2, 1)  # of the filters, and between them
        hold = reaction_memory.deployments_to_hold(read.log2_settling_time[jnp.argmax(weights)])
        return Worlds(lines, seen, around, evidence, trend, slope, error, hold)

    def estimate(self, state: Worlds) -> Array:
        return state.slope

    def error(self, state: Worlds) -> Array:
        return state.error

    def hold(self, state: Worlds) -> Array:
        return state.hold

    def figures(self, state: Worlds) -> dict[str, Array]:
        """What is found of the world.

        Evidence of a memory and of a drift, in nats; log2 of the settling time and its standard error; and the level's
        trend with a deployment, (p,) in natural units.
        """
        _, read = self._believed(state.lines, state.evidence)
        best = 1 + jnp.argmax(read.gain[1:])
        at_once = jnp.max(state.evidence[:, 0]) - state.evidence[0, 0]
        level = state.lines.belief.level_cov[1, jnp.argmax(state.evidence[1])]
        return {
            "memory": read.gain[best] - at_once,
            "log2_settling_time": read.log2_settling_time[best],
            "log2_settling_time_error": read.settling_error[best],
            "drift": jnp.max(read.gain[2:]) - jnp.maximum(read.gain[1], 0.0),
            "trend": state.trend,
            "trend_errors": jnp.sum(state.trend) / (TREND_RATE * jnp.sqrt(2 * level * state.trend.size)),
        }

    def _counts(self, noise: Array) -> Array:
        """What a deployment counts for as evidence, by how much of the plain world's doubt about it was noise.

        Nothing while J itself is unsure: where it is small, a world in which people hardly see the models move
        foretells better for that alone. Counted from the start, three of six runs on a made Adult took that for a
        memory, then J for far too large, and ran away.
        """
        return jnp.clip(2 * noise - 1, 0.0, 1.0)

    def _believed(self, lines: Line, evidence: Array) -> tuple[Array, Read]:
        """How much the plain world is believed and, for every walk, the most likely memory; and what each says."""
        slopes, errors = lines.belief.slope, jax.vmap(jax.vmap(self.line.error))(lines)
        none = jnp.zeros((), slopes.dtype)
        plain = Read(none, none, none, slopes[0, 0], errors[0, 0])
        others = jax.vmap(_between)(evidence - evidence[0, 0], slopes, errors)
        read = jax.tree.map(lambda own, each: jnp.concatenate([own[None], each]), plain, others)
        doubt = np.where(np.arange(1 + len(self.walks)) == 0, 0.0, EVIDENCE_NEEDED)
        return jax.nn.softmax(read.gain - doubt.astype(np.float32)), read


def _between(evidence: Array, slopes: Array, errors: Array) -> Read:
    """The most likely memory of a walk."""
    memory = reaction_memory.most_likely_memory(evidence)
    slope = jnp.tensordot(memory.grid_weights, slopes[memory.grid_rows], 1)
    error = jnp.tensordot(jnp.abs(memory.grid_weights), errors[memory.grid_rows], 1)
    return Read(memory.evidence, memory.log2_settling_time, memory.error, slope, error)
