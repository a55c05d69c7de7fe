"""A Jacobian that chooses its own memory: a Kalman filter on the line that the reaction is near an anchor.

With s what was deployed and c the anchor, an average of the last ten or so deployments,

    f_hat = a + J (s - c) + noise,   noise variance = v + kappa^2 |s - c|^4 / 4
    when c moves by m:   a <- a + J m,   J <- J + (change of variance kappa^2 (|c + m - c0|^2 - |c - c0|^2))

v is the sampling variance of f_hat, which the batch tells; c0 is a slower average, the place that the evidence comes
from. So old deployments lose weight with the distance travelled since, not with time: on the way J is read off what was
deployed lately, and once the run rests everything since counts. kappa is how fast J may change: by ``curvature`` times
its own size when the signal doubles. What the reaction really does is not needed: a linear one costs little with this
kappa, because a run that rests adds no doubt.

The prior is J = 0 with entries of size rms(f) / rms(s): one per cent more signal, one per cent more f. What the
deployments do not show stays near zero, so L2 is shrunk where J would be noise, and nothing explodes however short the
run. Each step is one rank-one update; no system is solved, and there is no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.typing import Array


class Belief(NamedTuple):
    """What a filter believes of a and J. All entries of f share one covariance, that of (a, a row of J)."""

    level: Array  # a, (p,)
    slope: Array  # J, (p, s)
    level_cov: Array  # variance of an entry of a, ()
    cross_cov: Array  # of it with the row of J, (s,)
    slope_cov: Array  # of a row of J, (s, s)


class Filters(NamedTuple):
    beliefs: Belief  # one row per filter
    log_odds: Array  # of each filter against the best, (K,)
    anchor: Array  # c, (s,)
    reference: Array  # c0, (s,)
    noise: Array  # v, averaged over entries and the last deployments, ()
    size: Array  # largest mean square of a signal so far, ()
    seen: Array  # deployments so far, () int32


@dataclass(frozen=True)
class Kalman:
    """See the module. ``window`` is there for the contract and changes nothing: the memory follows from the data."""

    window: int = 20
    curvatures: tuple[float, ...] = (0.0, 3.0)
    log_odds: tuple[float, ...] = (-5.0, 0.0)  # at the start
    cap: float = 10.0  # on log odds: so much evidence against a filter is forgotten no sooner, and remembered no longer
    anchor_rate: float = 0.1
    reference_rate: float = 0.02

    def init(self, signal: Array, f: Array) -> Filters:
        p, s, k = f.shape[0], signal.shape[0], len(self.curvatures)
        belief = Belief(*[jnp.zeros((k, *shape), f.dtype) for shape in ((p,), (p, s), (), (s,), (s, s))])
        place, number = jnp.zeros(s, f.dtype), jnp.zeros((), f.dtype)
        odds = jnp.array(self.log_odds, f.dtype)
        return Filters(belief, odds, place, place, number, number, jnp.zeros((), jnp.int32))

    def update(self, state: Filters, signal: Array, f: Array, variance: Array) -> Filters:
        state = trees.where(state.seen == 0, begin(state, signal, f, variance), state)
        noise = state.noise + 0.05 * (jnp.mean(variance) - state.noise)
        size = jnp.maximum(state.size, jnp.mean(signal**2))
        step = self.anchor_rate * (signal - state.anchor)
        anchor, lag = state.anchor + step, state.anchor - state.reference
        further = jnp.maximum(jnp.sum(step * (step + 2 * lag)), 0.0)

        def one(belief: Belief, curvature: Array) -> tuple[Belief, Array]:
            kappa2 = curvature**2 * jnp.mean(belief.slope**2) / size
            return observe(move(belief, step, kappa2 * further), signal - anchor, f, noise, kappa2)

        beliefs, evidence = jax.vmap(one)(state.beliefs, jnp.array(self.curvatures, f.dtype))
        odds = state.log_odds + evidence
        return Filters(
            beliefs,
            jnp.maximum(odds - jnp.max(odds), -self.cap),
            anchor,
            state.reference + self.reference_rate * (anchor - state.reference),
            noise,
            size,
            state.seen + 1,
        )

    def estimate(self, state: Filters) -> Array:
        return jnp.tensordot(jax.nn.softmax(state.log_odds), state.beliefs.slope, 1)

    def error(self, state: Filters) -> Array:
        """Estimated squared error of every entry of J, (p, s): what each filter states, and how far they disagree."""
        share = jax.nn.softmax(state.log_odds)[:, None, None]
        stated = jnp.diagonal(state.beliefs.slope_cov, axis1=1, axis2=2)[:, None, :]
        apart = (state.beliefs.slope - jnp.sum(share * state.beliefs.slope, 0)) ** 2
        return jnp.sum(share * (stated + apart), 0)


def begin(state: Filters, signal: Array, f: Array, variance: Array) -> Filters:
    """What is believed before the first deployment is weighed in; its signal and f only set the scale."""
    size = jnp.mean(signal**2)
    size = jnp.where(size > 0, size, 1.0)
    scale = jnp.mean(f**2) + jnp.mean(variance) + jnp.finfo(f.dtype).tiny
    old = state.beliefs
    prior = Belief(
        level=jnp.broadcast_to(f, old.level.shape),
        slope=jnp.zeros_like(old.slope),
        level_cov=jnp.broadcast_to(scale, old.level_cov.shape),
        cross_cov=jnp.zeros_like(old.cross_cov),
        slope_cov=jnp.broadcast_to(scale / size * jnp.eye(signal.shape[0], dtype=f.dtype), old.slope_cov.shape),
    )
    return state._replace(beliefs=prior, anchor=signal, reference=signal, noise=jnp.mean(variance), size=size)


def move(belief: Belief, step: Array, doubt: Array) -> Belief:
    """The line as seen from an anchor one step further; ``doubt`` is the variance that curvature adds to J."""
    pulled = jnp.sum(belief.slope_cov * step, -1)
    return Belief(
        level=belief.level + jnp.sum(belief.slope * step, -1),
        slope=belief.slope,
        level_cov=belief.level_cov + jnp.sum((2 * belief.cross_cov + pulled) * step) + doubt * jnp.sum(step**2) / 4,
        cross_cov=belief.cross_cov + pulled + doubt * step / 2,
        slope_cov=belief.slope_cov + doubt * jnp.eye(step.shape[0], dtype=step.dtype),
    )


def observe(belief: Belief, offset: Array, f: Array, noise: Array, kappa2: Array) -> tuple[Belief, Array]:
    """One deployment weighed in (a rank-one update with the regressor (1, offset)), and how well it was foreseen."""
    level_cov = belief.level_cov + jnp.sum(belief.cross_cov * offset)  # the covariance times the regressor
    slope_cov = belief.cross_cov + jnp.sum(belief.slope_cov * offset, -1)
    spread = jnp.maximum(level_cov + jnp.sum(slope_cov * offset), 0.0)
    floor = 1e-10 * jnp.mean(f**2) + jnp.finfo(f.dtype).tiny  # f_hat is no better than its precision
    total = spread + jnp.maximum(noise, floor) + kappa2 * jnp.sum(offset**2) ** 2 / 4
    miss = f - belief.level - jnp.sum(belief.slope * offset, -1)
    level_gain, slope_gain = level_cov / total, slope_cov / total
    updated = Belief(
        level=belief.level + level_gain * miss,
        slope=belief.slope + miss[:, None] * slope_gain,
        level_cov=belief.level_cov - level_gain * level_cov,
        cross_cov=belief.cross_cov - level_gain * slope_cov,
        slope_cov=belief.slope_cov - slope_gain[:, None] * slope_cov,
    )
    return updated, -0.5 * (f.shape[0] * jnp.log(total) + jnp.sum(miss**2) / total)
