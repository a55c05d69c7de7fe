"""A Jacobian that chooses its own memory: a Kalman filter on the local linear model of the reaction (line 13).

It stands in place of the paper's estimator (Algorithm 1, line 13). With s the deployed signal and c the anchor, an
average of the last few models that deployments were made around,

    f_hat = a + J (s - c) + noise,   noise variance = v + kappa^2 |s - c|^4 / 4
    when c moves by m:   a <- a + J m,   J <- J + (change of variance kappa^2 times the growth of |c - c0|^2)

v is the sampling variance of f_hat, which the batch shows; c0 is a slower average of the anchors. So old deployments
lose weight with the distance travelled since, not with time: while the model moves, J comes from recent deployments,
and once it rests, all deployments since then count. The anchor follows the models, not the deployed perturbations, and
going back and forth adds no variance twice: otherwise exploration would make the filter forget. kappa is how fast J may
change: by ``curvature`` times its own size when the signal moves by one unit.

A reaction that is truly linear loses the evidence from the path to the resting point, which exploration soon replaces.
Two filters, kappa = 0 beside this one, weighted by their predictions, were tried: at rest nothing contradicts the
linear one, and the slope of the chord from the start is taken for that of the tangent. On exponential demand that ended
0.09 to 0.26 above the optimum, where this filter ends about 0.01 above it.

Signal and f are in natural units (``profl.parts.units``), so nothing depends on where zero is. The prior is J = 0 with
entries of size one: a model that moves by its scale moves f by about as much as samples differ. Directions that the
deployments do not show stay near zero, so L2 is shrunk where J would be noise, and nothing explodes however short the
run is. Each step is one rank-one update; no system is solved, and there is no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from profl import trees
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.typing import Array

NOISE_RATE = 0.05
"""Weight of the newest batch in v, so that v averages about twenty: one batch's estimate is noisy, and v hardly changes
from one deployment to the next."""

LARGEST_SLOPE = 4.0
"""Natural units: an entry of J counts as at most this where its size says how fast J may change. A feature that hardly
varies and that everybody moves has entries of hundreds: all others would be forgotten at every step."""

LEAST_NOISE_EPSILONS = 64
"""The least noise variance, in machine epsilons times 1 + mean f^2: the prior variance is one, and a variance below its
rounding cannot be told from a negative one."""


class Posterior(NamedTuple):
    """The posterior of a and J. All entries of f share one covariance, that of (a, a row of J)."""

    level: Array  # a, (p,)
    slope: Array  # J, (p, s)
    level_cov: Array  # variance of an entry of a, ()
    cross_cov: Array  # of it with the row of J, (s,)
    slope_cov: Array  # of a row of J, (s, s)


class KalmanState(NamedTuple):
    """The state of one filter."""

    posterior: Posterior
    anchor: Array  # c, (s,)
    reference: Array  # c0, (s,)
    counted_distance2: Array  # the squared distance between them for which variance has been added, ()
    noise: Array  # v, averaged over entries and the last deployments, ()
    deployments: Array  # so far, () int32


@dataclass(frozen=True)
class Kalman(JacobianEstimator):
    """A Kalman filter for the level a and the slope J; see the module."""

    # kappa, relative, per unit of the signal: how fast J may change. Tail excess of PoFL on pricing with linear /
    # exponential demand (3 seeds, 10 clients, n = 500, 120 rounds of R = 5): 0.0011 / 0.014. A curved reaction needs
    # it, a linear one pays for it. Only the part of J that exceeds its own error counts as its size.
    curvature: float = 2.0
    anchor_rate: float = 0.3  # how fast c follows the models; 0.1 and 1 end about the same
    # How fast c0 follows c: 50 deployments. With 0.1 deployments on the way count for too long.
    reference_rate: float = 0.02

    explores = True  # without perturbations J can no longer be estimated once the model rests
    natural_units = True

    def init(self, signal: Array, f: Array) -> KalmanState:
        p, s = f.shape[0], signal.shape[0]
        posterior = Posterior(*[jnp.zeros(shape, f.dtype) for shape in ((p,), (p, s), (), (s,), (s, s))])
        place, number = jnp.zeros(s, f.dtype), jnp.zeros((), f.dtype)
        return KalmanState(posterior, place, place, number, number, jnp.zeros((), jnp.int32))

    def update(self, state: KalmanState, signal: Array, f: Array, variance: Array, at: Array) -> KalmanState:
        return self.predict_and_update(state, signal, f, variance, at, jnp.zeros((), f.dtype))[0]

    def predict_and_update(
        self, state: KalmanState, signal: Array, f: Array, variance: Array, at: Array, walk: Array
    ) -> tuple[KalmanState, Array, Array]:
        """The state after one more deployment, the log-likelihood of f beforehand, (), and the share of the predictive
        variance that was noise, ().

        ``walk`` is the variance that the level's random walk adds in a step.
        """
        state = trees.where(state.deployments == 0, prior_state(state, at, f, variance), state)
        noise = state.noise + NOISE_RATE * (jnp.mean(variance) - state.noise)
        step = self.anchor_rate * (at - state.anchor)
        anchor = state.anchor + step
        growth = jnp.maximum(jnp.sum((anchor - state.reference) ** 2) - state.counted_distance2, 0.0)
        sizes = jnp.clip(state.posterior.slope**2 - self.error(state), 0.0, LARGEST_SLOPE**2)
        kappa2 = self.curvature**2 * jnp.mean(sizes)
        prior = shift_anchor(state.posterior, step, kappa2 * growth)
        prior = prior._replace(level_cov=prior.level_cov + walk)
        posterior, log_likelihood, noise_share = observe(prior, signal - anchor, f, noise, kappa2)
        reference = state.reference + self.reference_rate * (anchor - state.reference)
        counted_distance2 = (1 - self.reference_rate) ** 2 * (state.counted_distance2 + growth)
        return (
            KalmanState(posterior, anchor, reference, counted_distance2, noise, state.deployments + 1),
            log_likelihood,
            noise_share,
        )

    def estimate(self, state: KalmanState) -> Array:
        return state.posterior.slope

    def error(self, state: KalmanState) -> Array:
        """The variance of every entry of J, (p, s)."""
        return jnp.broadcast_to(jnp.maximum(jnp.diagonal(state.posterior.slope_cov), 0.0), state.posterior.slope.shape)


def prior_state(state: KalmanState, signal: Array, f: Array, variance: Array) -> KalmanState:
    """The state before the first deployment is counted, around its ``signal`` (s,)."""
    one = jnp.ones((), f.dtype)
    prior = Posterior(
        level=f,
        slope=jnp.zeros_like(state.posterior.slope),
        level_cov=one + jnp.mean(variance),
        cross_cov=jnp.zeros_like(signal),
        slope_cov=jnp.eye(signal.shape[0], dtype=f.dtype),
    )
    return KalmanState(prior, signal, signal, jnp.zeros_like(one), jnp.mean(variance), state.deployments)


def shift_anchor(posterior: Posterior, step: Array, added_variance: Array) -> Posterior:
    """The posterior at an anchor ``step`` (s,) further on; ``added_variance`` is what curvature adds to that of J."""
    slope_step = jnp.sum(posterior.slope_cov * step, -1)  # covariance of the slope with its product with the step
    level_growth = jnp.sum((2 * posterior.cross_cov + slope_step) * step)
    return Posterior(
        level=posterior.level + jnp.sum(posterior.slope * step, -1),
        slope=posterior.slope,
        level_cov=posterior.level_cov + level_growth + added_variance * jnp.sum(step**2) / 4,
        cross_cov=posterior.cross_cov + slope_step + added_variance * step / 2,
        slope_cov=posterior.slope_cov + added_variance * jnp.eye(step.shape[0], dtype=step.dtype),
    )


def observe(
    posterior: Posterior, offset: Array, f: Array, noise: Array, kappa2: Array
) -> tuple[Posterior, Array, Array]:
    """The posterior after one deployment, the log-likelihood of f, and the noise's share of the predictive variance.

    It is a rank-one update with the regressor (1, offset).
    """
    level_cov = posterior.level_cov + jnp.sum(posterior.cross_cov * offset)  # the covariance times the regressor
    slope_cov = posterior.cross_cov + jnp.sum(posterior.slope_cov * offset, -1)
    known = jnp.maximum(level_cov + jnp.sum(slope_cov * offset), 0.0)
    floor = LEAST_NOISE_EPSILONS * jnp.finfo(f.dtype).eps * (1 + jnp.mean(f**2))
    total = known + jnp.maximum(noise, floor) + kappa2 * jnp.sum(offset**2) ** 2 / 4
    miss = f - posterior.level - jnp.sum(posterior.slope * offset, -1)
    level_gain, slope_gain = level_cov / total, slope_cov / total
    log_likelihood = -(jnp.sum(miss**2) / total + miss.shape[0] * jnp.log(total)) / 2
    new = Posterior(
        level=posterior.level + level_gain * miss,
        slope=posterior.slope + miss[:, None] * slope_gain,
        level_cov=posterior.level_cov - level_gain * level_cov,
        cross_cov=posterior.cross_cov - level_gain * slope_cov,
        slope_cov=posterior.slope_cov - slope_gain[:, None] * slope_cov,
    )
    return new, log_likelihood, 1 - known / total
