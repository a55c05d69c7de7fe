"""How long people remember earlier deployments: which average of past signals the data respond to.

    average <- memory average + (1 - memory) signal,   settling time 1 / (1 - memory) = 1, 2, 4, ..., 32 deployments

An average is kept for each settling time, and evidence is compared between them. Evidence is a smooth function of the
logarithm of the settling time, so its maximum is read between the grid's points, on a parabola through the best point
and its neighbours. The first settling time, no memory, is used until another explains the data clearly better:
estimates on data without memory stay as they would be without this module.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array

SETTLING_TIMES = 6
"""Size of the grid: settling times of 1, 2, 4, ..., 32 deployments."""

EVIDENCE_NEEDED = 6.0
"""Nats by which a model with memory or drift must predict better than the plain one to have the same weight."""

HELD_SHARE = 0.7
"""Share of a settling time for which a perturbation is held: the reaction is then half complete, and a level
that drifts by itself has not yet drifted far."""

LEAST_EVIDENCE_CURVATURE = 0.05
"""The least curvature of the evidence: where nothing is known of a memory, the standard error of log2 of its settling
time is about 4."""


class MemoryEstimate(NamedTuple):
    """The most likely memory of the population."""

    evidence: Array  # nats by which it explains the data better than no memory
    log2_settling_time: Array
    error: Array  # standard error of that
    weights: Array  # (memories,): of the grid's points in the interpolation; zero but for three of them


def update_averages(averages: Array, signal: Array, first: Array) -> Array:
    """Averages (memories, s) of past signals after one more deployment; ``first`` says whether it is the first one."""
    memory = jnp.where(first, 0.0, jnp.asarray(1 - 0.5 ** np.arange(averages.shape[0]), signal.dtype))[:, None]
    return memory * averages + (1 - memory) * signal


def most_likely_memory(evidence: Array) -> MemoryEstimate:
    """The maximum between the grid's points; ``evidence`` (memories,) is relative to that of no memory."""
    low, here, high = evidence[:-2], evidence[1:-1], evidence[2:]
    curvature, slope = 2 * here - low - high, (high - low) / 2
    offset = jnp.clip(slope / jnp.maximum(curvature, jnp.finfo(slope.dtype).tiny), -1.0, 1.0)
    value = here + offset * slope - offset**2 * curvature / 2
    best = jnp.where(value == jnp.max(value), 1.0, 0.0)
    best = best / jnp.sum(best)
    error = jax.lax.rsqrt(jnp.maximum(best @ curvature, LEAST_EVIDENCE_CURVATURE))
    shares = best * jnp.stack([offset * (offset - 1) / 2, 1 - offset**2, offset * (offset + 1) / 2])
    weights = shares.ravel() @ np.vstack([np.eye(here.size, evidence.size, k) for k in range(3)]).astype(shares.dtype)
    return MemoryEstimate(best @ value, best @ (1 + np.arange(here.size) + offset), error, weights)


def hold_deployments(memory: MemoryEstimate, evidence_needed: float) -> Array:
    """For how many deployments to hold a perturbation, () int32; 1 where there is no evidence of a memory."""
    return jnp.where(memory.evidence > evidence_needed, deployments_to_hold(memory.log2_settling_time), 1)


def deployments_to_hold(log2_settling_time: Array) -> Array:
    """For how many deployments to hold a perturbation where people do remember, () int32."""
    return jnp.clip(jnp.round(HELD_SHARE * 2**log2_settling_time), 1, 2**SETTLING_TIMES).astype(jnp.int32)


def effective_signal(memory: MemoryEstimate, averages: Array, evidence_needed: float) -> Array:
    """The exponentially averaged signals that the population responds to, (n, s), from averages (n, memories, s)."""
    share = jax.nn.sigmoid(memory.evidence - evidence_needed)
    weights = share * memory.weights + (1 - share) * (np.arange(memory.weights.size) == 0)
    return jnp.einsum("m,nms->ns", weights, averages)
