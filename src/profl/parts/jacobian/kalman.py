"""A Jacobian that chooses its own memory: a Kalman filter on the line that the reaction is near an anchor.

With s what was deployed and c the anchor, an average of the last few models that deployments were made around,

    f_hat = a + J (s - c) + noise,   noise variance = v + kappa^2 |s - c|^4 / 4
    when c moves by m:   a <- a + J m,   J <- J + (change of variance kappa^2 times what |c - c0|^2 has grown by)

v is the sampling variance of f_hat, which the batch tells; c0 is a slower average, the place that the evidence comes
from. So old deployments lose weight with the distance travelled since, not with time: on the way J is read off what was
deployed lately, and once the run rests everything since counts. The anchor follows the models, not what was deployed,
and going back and forth adds no doubt twice: otherwise exploration would make the filter forget. kappa is how fast J
may change: by ``curvature`` times its own size when the signal moves by one unit.

A reaction that is linear in truth loses the evidence of the way to where the run rests, which exploration soon makes up
for. Believing in a line where the data do not contradict it was tried (two filters, kappa = 0 beside this one, weighed
by how well they predict): at rest nothing contradicts it, and the slope of the chord from the start is taken for that
of the tangent. On exponential demand that ended 0.09 to 0.26 above the optimum where this ends about 0.01 above it.

Signal and f are measured in natural units (``profl.parts.units``), so nothing depends on where zero is. The prior is
J = 0 with entries of size one: a model that moves by its scale moves f by about as much as samples differ. What the
deployments do not show stays near zero, so L2 is shrunk where J would be noise, and nothing explodes however short the
run. Each step is one rank-one update; no system is solved, and there is no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from profl import trees
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.typing import Array

NOISE_RATE = 0.05
"""Weight of the newest batch in v, the mean of the last twenty or so: one batch's estimate is noisy, and v hardly
changes from one deployment to the next."""

STEEPEST = 4.0
"""In natural units: what an entry of J counts as at most where its size tells how fast J may change. A feature that
hardly varies and that everybody moves has entries of hundreds: all others would be forgotten at every step."""

ROUNDING = 64
"""Machine epsilons of 1 + mean f^2, the least noise that is taken to be there: doubt starts at one, and what is below
its rounding cannot be told from a negative variance."""


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
    seen: Array  # deployments so far, () int32


@dataclass(frozen=True)
class Kalman(JacobianEstimator):
    """See the module."""

    # kappa, relative, per unit of the signal: how fast J may change. Tail excess of PoFL on pricing with linear /
    # exponential demand (3 seeds, 10 clients, n = 500, 120 rounds of R = 5): 0.0011 / 0.014. A curved reaction needs
    # it, a straight one pays. Only what of J stands out from its own error counts as its size.
    curvature: float = 2.0
    anchor_rate: float = 0.3  # how fast c follows the models; 0.1 and 1 end about the same
    # How fast c0 follows c: 50 deployments. With 0.1 what was seen on the way counts for too long.
    reference_rate: float = 0.02

    explores = True  # without perturbations J fades from sight once the run rests
    measured = True  # works in natural units

    def init(self, signal: Array, f: Array) -> Line:
        p, s = f.shape[0], signal.shape[0]
        belief = Belief(*[jnp.zeros(shape, f.dtype) for shape in ((p,), (p, s), (), (s,), (s, s))])
        place, number = jnp.zeros(s, f.dtype), jnp.zeros((), f.dtype)
        return Line(belief, place, place, number, number, jnp.zeros((), jnp.int32))

    def update(self, state: Line, signal: Array, f: Array, variance: Array, at: Array) -> Line:
        return self.foretold(state, signal, f, variance, at, jnp.zeros((), f.dtype))[0]

    def foretold(
        self, state: Line, signal: Array, f: Array, variance: Array, at: Array, walk: Array
    ) -> tuple[Line, Array, Array]:
        """``update`` where the level walks by steps of that variance; the log of how likely f was beforehand; and how
        much of what was unsure about it was noise."""
        state = trees.where(state.seen == 0, begin(state, at, f, variance), state)
        noise = state.noise + NOISE_RATE * (jnp.mean(variance) - state.noise)
        step = self.anchor_rate * (at - state.anchor)
        anchor = state.anchor + step
        further = jnp.maximum(jnp.sum((anchor - state.reference) ** 2) - state.charged, 0.0)
        sizes = jnp.clip(state.belief.slope**2 - self.error(state), 0.0, STEEPEST**2)
        kappa2 = self.curvature**2 * jnp.mean(sizes)
        before = move(state.belief, step, kappa2 * further)
        before = before._replace(level_cov=before.level_cov + walk)
        belief, likely, share = observe(before, signal - anchor, f, noise, kappa2)
        reference = state.reference + self.reference_rate * (anchor - state.reference)
        charged = (1 - self.reference_rate) ** 2 * (state.charged + further)
        return Line(belief, anchor, reference, charged, noise, state.seen + 1), likely, share

    def estimate(self, state: Line) -> Array:
        return state.belief.slope

    def error(self, state: Line) -> Array:
        """Stated squared error of every entry of J, (p, s)."""
        return jnp.broadcast_to(jnp.maximum(jnp.diagonal(state.belief.slope_cov), 0.0), state.belief.slope.shape)


def begin(state: Line, signal: Array, f: Array, variance: Array) -> Line:
    """What is believed before the first deployment is weighed in."""
    one = jnp.ones((), f.dtype)
    prior = Belief(
        level=f,
        slope=jnp.zeros_like(state.belief.slope),
        level_cov=one + jnp.mean(variance),
        cross_cov=jnp.zeros_like(signal),
        slope_cov=jnp.eye(signal.shape[0], dtype=f.dtype),
    )
    return Line(prior, signal, signal, jnp.zeros_like(one), jnp.mean(variance), state.seen)


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


def observe(belief: Belief, offset: Array, f: Array, noise: Array, kappa2: Array) -> tuple[Belief, Array, Array]:
    """One deployment weighed in: a rank-one update with the regressor (1, offset); how likely it was, as a log; and the
    noise's share of the doubt about it."""
    level_cov = belief.level_cov + jnp.sum(belief.cross_cov * offset)  # the covariance times the regressor
    slope_cov = belief.cross_cov + jnp.sum(belief.slope_cov * offset, -1)
    known = jnp.maximum(level_cov + jnp.sum(slope_cov * offset), 0.0)
    floor = ROUNDING * jnp.finfo(f.dtype).eps * (1 + jnp.mean(f**2))
    total = known + jnp.maximum(noise, floor) + kappa2 * jnp.sum(offset**2) ** 2 / 4
    miss = f - belief.level - jnp.sum(belief.slope * offset, -1)
    level_gain, slope_gain = level_cov / total, slope_cov / total
    likely = -(jnp.sum(miss**2) / total + miss.shape[0] * jnp.log(total)) / 2
    new = Belief(
        level=belief.level + level_gain * miss,
        slope=belief.slope + miss[:, None] * slope_gain,
        level_cov=belief.level_cov - level_gain * level_cov,
        cross_cov=belief.cross_cov - level_gain * slope_cov,
        slope_cov=belief.slope_cov - slope_gain[:, None] * slope_cov,
    )
    return new, likely, 1 - known / total
