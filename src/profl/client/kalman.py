"""A Jacobian that chooses its own memory: a Kalman filter on the line that the reaction is near an anchor.

With s what was deployed and c the anchor, an average of the last few models that deployments were made around,

    f_hat = a + J (s - c) + noise,   noise variance = v + kappa^2 |s - c|^4 / 4
    when c moves by m:   a <- a + J m,   J <- J + (change of variance kappa^2 times what |c - c0|^2 has grown by)

v is the sampling variance of f_hat, which the batch tells; c0 is a slower average, the place that the evidence comes
from. So old deployments lose weight with the distance travelled since, not with time: on the way J is read off what was
deployed lately, and once the run rests everything since counts. The anchor follows the models, not what was deployed,
and going back and forth adds no doubt twice: otherwise exploration would make the filter forget. kappa is how fast J
may change: by ``curvature`` times its own size when the signal doubles.

A reaction that is linear in truth loses the evidence of the way to where the run rests, which exploration soon makes up
for. Believing in a line where the data do not contradict it was tried (two filters, kappa = 0 beside this one, weighed
by how well they predict): at rest nothing contradicts it, and the slope of the chord from the start is taken for that
of the tangent. On exponential demand that ended 0.09 to 0.26 above the optimum where this ends about 0.01 above it.

The prior is J = 0 with entries of size rms(f) / rms(s): one per cent more signal, one per cent more f. What the
deployments do not show stays near zero, so L2 is shrunk where J would be noise, and nothing explodes however short the
run. Each step is one rank-one update; no system is solved, and there is no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from profl import trees
from profl.typing import Array

NOISE_RATE = 0.05
"""Weight of the newest batch in v, the mean of the last twenty or so: one batch's estimate is noisy, and v hardly
changes from one deployment to the next."""

ROUNDING = 64
"""Machine epsilons of mean f^2, the least noise that is taken to be there: doubt starts at the size of f^2, and what is
below its rounding cannot be told from a negative variance."""


class Belief(NamedTuple):
    """What is believed of a and J. All entries of f share one covariance, that of (a, a row of J)."""

    level: Array  # a, (p,)
    slope: Array  # J, (p, s)
    level_cov: Array  # variance of an entry of a, ()
    cross_cov: Array  # of it with the row of J, (s,)
    slope_cov: Array  # of a row of J, (s, s)


class Line(NamedTuple):
    belief: Belief
    anchor: Array  # c, (s,)
    reference: Array  # c0, (s,)
    charged: Array  # the square distance between them that doubt has been added for, ()
    noise: Array  # v, averaged over entries and the last deployments, ()
    size: Array  # largest mean square of a signal so far, ()
    seen: Array  # deployments so far, () int32


@dataclass(frozen=True)
class Kalman:
    """See the module."""

    # Figures: tail excess of PoFL on pricing with linear / exponential demand (3 seeds, 10 clients, n = 500, R = 5).
    # kappa, relative: how fast J may change. 200 rounds: 0.0009 / 0.039 with 0.5, 0.0011 / 0.017 with 1, 0.0015 / 0.009
    # with 2; 120 rounds: 0.0014 / 0.018 with 2, 0.0017 / 0.016 with 4. A curved reaction needs it, a straight one pays.
    curvature: float = 2.0
    # How fast c follows the models. 120 rounds: 0.0015 / 0.019 with 0.1, 0.0014 / 0.018, 0.0016 / 0.018 with 1.
    anchor_rate: float = 0.3
    # How fast c0 follows c: 50 deployments. 120 rounds: 0.0019 / 0.015 with 0.005, 0.0014 / 0.018, 0.0012 / 0.037 with
    # 0.1, where what was seen on the way counts for too long.
    reference_rate: float = 0.02

    explores = True  # without perturbations J fades from sight once the run rests

    def init(self, signal: Array, f: Array) -> Line:
        p, s = f.shape[0], signal.shape[0]
        belief = Belief(*[jnp.zeros(shape, f.dtype) for shape in ((p,), (p, s), (), (s,), (s, s))])
        place, number = jnp.zeros(s, f.dtype), jnp.zeros((), f.dtype)
        return Line(belief, place, place, number, number, number, jnp.zeros((), jnp.int32))

    def update(self, state: Line, signal: Array, f: Array, variance: Array, at: Array) -> Line:
        state = trees.where(state.seen == 0, begin(state, at, f, variance), state)
        noise = state.noise + NOISE_RATE * (jnp.mean(variance) - state.noise)
        size = jnp.maximum(state.size, jnp.mean(at**2))
        step = self.anchor_rate * (at - state.anchor)
        anchor = state.anchor + step
        further = jnp.maximum(jnp.sum((anchor - state.reference) ** 2) - state.charged, 0.0)
        kappa2 = self.curvature**2 * jnp.mean(state.belief.slope**2) / size
        belief = observe(move(state.belief, step, kappa2 * further), signal - anchor, f, noise, kappa2)
        reference = state.reference + self.reference_rate * (anchor - state.reference)
        charged = (1 - self.reference_rate) ** 2 * (state.charged + further)
        return Line(belief, anchor, reference, charged, noise, size, state.seen + 1)

    def estimate(self, state: Line) -> Array:
        return state.belief.slope

    def error(self, state: Line) -> Array:
        """Stated squared error of every entry of J, (p, s)."""
        return jnp.broadcast_to(jnp.maximum(jnp.diagonal(state.belief.slope_cov), 0.0), state.belief.slope.shape)


def begin(state: Line, signal: Array, f: Array, variance: Array) -> Line:
    """What is believed before the first deployment is weighed in; its signal and f only set the scale."""
    size = jnp.mean(signal**2)
    size = jnp.where(size > 0, size, 1.0)
    scale = jnp.mean(f**2) + jnp.mean(variance) + jnp.finfo(f.dtype).tiny
    prior = Belief(
        level=f,
        slope=jnp.zeros_like(state.belief.slope),
        level_cov=scale,
        cross_cov=jnp.zeros_like(signal),
        slope_cov=scale / size * jnp.eye(signal.shape[0], dtype=f.dtype),
    )
    return Line(prior, signal, signal, jnp.zeros_like(size), jnp.mean(variance), size, state.seen)


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


def observe(belief: Belief, offset: Array, f: Array, noise: Array, kappa2: Array) -> Belief:
    """One deployment weighed in: a rank-one update with the regressor (1, offset)."""
    level_cov = belief.level_cov + jnp.sum(belief.cross_cov * offset)  # the covariance times the regressor
    slope_cov = belief.cross_cov + jnp.sum(belief.slope_cov * offset, -1)
    known = jnp.maximum(level_cov + jnp.sum(slope_cov * offset), 0.0)
    floor = ROUNDING * jnp.finfo(f.dtype).eps * jnp.mean(f**2) + jnp.finfo(f.dtype).tiny
    total = known + jnp.maximum(noise, floor) + kappa2 * jnp.sum(offset**2) ** 2 / 4
    miss = f - belief.level - jnp.sum(belief.slope * offset, -1)
    level_gain, slope_gain = level_cov / total, slope_cov / total
    return Belief(
        level=belief.level + level_gain * miss,
        slope=belief.slope + miss[:, None] * slope_gain,
        level_cov=belief.level_cov - level_gain * level_cov,
        cross_cov=belief.cross_cov - level_gain * slope_cov,
        slope_cov=belief.slope_cov - slope_gain[:, None] * slope_cov,
    )
