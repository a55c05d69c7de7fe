"""A Jacobian where people react slowly or the data drift: several Kalman filters, each under its own hypothesis.

It stands in place of the paper's estimator (Algorithm 1, line 13). Where people react slowly, the data respond to an
average of the deployed signals; where the data drift by themselves, the level of f is a random walk:

    f_hat = a + J (s~ - c) + noise,    s~ <- memory s~ + (1 - memory) s,    a <- a + (a step of variance walk)

For every pair (memory, walk) of a small grid this is the filter of ``kalman`` with another regressor, which is known
without noise. Its slope J is that of the long run: where f <- A f + B s it is (I - A)^-1 B with A = memory I, which is
stable by construction. The memory and its J are interpolated between the grid's points (``reaction_memory``). The plain
hypothesis, no memory and no walk, is used until another has predicted clearly better, so that data without either are
estimated as without this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.parts.jacobian import reaction_memory
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.kalman import FilterState, Kalman, evidence_weight
from profl.parts.jacobian.reaction_memory import EVIDENCE_NEEDED, SETTLING_TIMES
from profl.typing import Array

WALKS = (0.0, 5e-4)
"""Variances of a step of the level, in natural units: for trends of up to a hundredth of a deviation per deployment. A
third, of 2.5e-3, costs a third more time and ends no nearer."""

EVIDENCE_DECAY = 0.995
"""Share of the evidence that is left after a deployment, so that old evidence fades."""

TREND_RATE = 0.02
"""Weight of the newest deployment in the trend, which so averages about fifty."""

KALMAN = Kalman()


class TrackingState(NamedTuple):
    """The filters of all hypotheses, (walks, memories) of each, and what they say together."""

    filters: FilterState
    signals: Array  # s~, (memories, s)
    models: Array  # the same average of the models that deployments were made around, (memories, s)
    evidence: Array  # log-likelihood of the data, (walks, memories)
    trend: Array  # change of the level by itself in a deployment, (p,)
    slope: Array  # J, averaged over hypotheses, (p, s)
    error: Array  # its squared error, (p, s)
    hold: Array  # for how many deployments to hold a perturbation, () int32


class HypothesisEstimate(NamedTuple):
    """What the filters estimate under one hypothesis."""

    evidence: Array  # nats by which it predicted better than the plain hypothesis
    log2_settling_time: Array
    settling_error: Array  # standard error of that
    slope: Array  # J, (p, s)
    error: Array  # its squared error, (p, s)


@dataclass(frozen=True)
class Tracking(JacobianEstimator):
    """Kalman filters for a grid of memories and drifts; see the module."""

    walks: tuple[float, ...] = WALKS
    settling_times: int = SETTLING_TIMES
    line: Kalman = KALMAN

    explores = True  # without perturbations J can no longer be estimated once the model rests
    natural_units = True

    def init(self, signal: Array, f: Array) -> TrackingState:
        shape = (len(self.walks), self.settling_times)
        filters = jax.tree.map(
            lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), self.line.init_filter(signal, f)
        )
        averages = jnp.zeros((self.settling_times, signal.shape[0]), f.dtype)
        evidence, trend, slope = (jnp.zeros(size, f.dtype) for size in (shape, f.shape, (*f.shape, *signal.shape)))
        return TrackingState(filters, averages, averages, evidence, trend, slope, slope, jnp.ones((), jnp.int32))

    def update(self, state: TrackingState, signal: Array, f: Array, variance: Array, at: Array) -> TrackingState:
        first = state.filters.deployments[0, 0] == 0
        signals = reaction_memory.update_averages(state.signals, signal, first)
        models = reaction_memory.update_averages(state.models, at, first)

        def one(old: FilterState, signal: Array, model: Array, walk: Array) -> tuple[FilterState, Array, Array, Array]:
            new, prediction = self.line.predict_and_update(old, signal, f, variance, model, walk)
            along = jnp.sum(old.posterior.slope * (new.anchor - old.anchor), -1)
            drift = new.posterior.level - old.posterior.level - along
            return new, prediction.log_likelihood, prediction.noise_share, drift

        each = jax.vmap(jax.vmap(one, (0, 0, 0, None)), (0, None, None, 0))
        walks = jnp.asarray(self.walks, f.dtype)
        filters, log_likelihood, noise_share, drift = each(state.filters, signals, models, walks)
        evidence = EVIDENCE_DECAY * state.evidence + evidence_weight(noise_share[0, 0]) * log_likelihood
        walk, best = jnp.unravel_index(jnp.argmax(evidence[1:]), evidence[1:].shape)
        trend = state.trend + jnp.where(first, 0.0, TREND_RATE) * (drift[walk + 1, best] - state.trend)
        weights, each_estimate = self._hypothesis_weights(filters, evidence)
        slope = jnp.tensordot(weights, each_estimate.slope, 1)
        between = (each_estimate.slope - slope) ** 2
        error = jnp.tensordot(weights, each_estimate.error + between, 1)
        hold = reaction_memory.deployments_to_hold(each_estimate.log2_settling_time[jnp.argmax(weights)])
        return TrackingState(filters, signals, models, evidence, trend, slope, error, hold)

    def estimate(self, state: TrackingState) -> Array:
        return state.slope

    def error(self, state: TrackingState) -> Array:
        return state.error

    def hold(self, state: TrackingState) -> Array:
        return state.hold

    def figures(self, state: TrackingState) -> dict[str, Array]:
        """Figures about memory and drift of the data, by name.

        Evidence of a memory and of a drift, in nats; log2 of the settling time and its standard error; and the level's
        trend per deployment, (p,) in natural units.
        """
        _, each = self._hypothesis_weights(state.filters, state.evidence)
        best = 1 + jnp.argmax(each.evidence[1:])
        without_memory = jnp.max(state.evidence[:, 0]) - state.evidence[0, 0]
        level = state.filters.posterior.level_cov[1, jnp.argmax(state.evidence[1])]
        return {
            "memory": each.evidence[best] - without_memory,
            "log2_settling_time": each.log2_settling_time[best],
            "log2_settling_time_error": each.settling_error[best],
            "drift": jnp.max(each.evidence[2:]) - jnp.maximum(each.evidence[1], 0.0),
            "trend": state.trend,
            "trend_errors": jnp.sum(state.trend) / (TREND_RATE * jnp.sqrt(2 * level * state.trend.size)),
        }

    def _hypothesis_weights(self, filters: FilterState, evidence: Array) -> tuple[Array, HypothesisEstimate]:
        """Weights (1 + walks,) of the plain hypothesis and of every walk with its most likely memory; what they say."""
        slopes, errors = filters.posterior.slope, jax.vmap(jax.vmap(self.line.filter_error))(filters)
        zero = jnp.zeros((), slopes.dtype)
        plain = HypothesisEstimate(zero, zero, zero, slopes[0, 0], errors[0, 0])
        others = jax.vmap(_most_likely_memory)(evidence - evidence[0, 0], slopes, errors)
        both = jax.tree.map(lambda own, each: jnp.concatenate([own[None], each]), plain, others)
        handicap = np.where(np.arange(1 + len(self.walks)) == 0, 0.0, EVIDENCE_NEEDED)
        return jax.nn.softmax(both.evidence - handicap.astype(np.float32)), both


def _most_likely_memory(evidence: Array, slopes: Array, errors: Array) -> HypothesisEstimate:
    """The estimate under one walk and its most likely memory."""
    memory = reaction_memory.most_likely_memory(evidence)
    slope = jnp.tensordot(memory.weights, slopes, 1)
    error = jnp.tensordot(jnp.abs(memory.weights), errors, 1)
    return HypothesisEstimate(memory.evidence, memory.log2_settling_time, memory.error, slope, error)
