"""A Jacobian that chooses its own memory: a Kalman filter on the local linear model of the reaction (line 13).

It stands in place of the paper's estimator (Algorithm 1, line 13). With s the deployed signal and c the anchor, an
average of the last few models that deployments were made around,

    f_hat = a + J (s - c) + noise,   noise variance = v + kappa^2 |s - c|^4 / 4
    when c moves by m:   a <- a + J m,   J <- J + (change of variance kappa^2 times the growth of |c - c0|^2)

v is the sampling variance of f_hat, which the batch shows; c0 is a slower average of the anchors. So old deployments
lose weight with the distance travelled since, not with time: while the model moves, J comes from recent deployments,
and once it rests, all deployments since then count. The anchor follows the models, not the deployed perturbations, and
going back and forth adds no variance twice: otherwise exploration would make the filter forget. kappa is how fast J may
change: by ``curvature`` times its own size when the signal moves by one unit, or by as much as it now moves in a few
deployments, where that is more: data without noise have tiny units, and steps do not shrink with them.

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
import numpy as np

from profl import trees
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.noticed import MissSums, no_misses
from profl.typing import Array

NOISE_RATE = 0.05
"""Weight of the newest batch in v, so that v averages about twenty: one batch's estimate is noisy, and v hardly changes
from one deployment to the next."""

LARGEST_SLOPE = 4.0
"""Natural units: an entry of J counts as at most this where its size says how fast J may change. A feature that hardly
varies and that everybody moves has entries of hundreds: all others would be forgotten at every step."""

ROUNDING_EPSILONS = 64
"""Machine epsilons, relative, by which rounding may change a variance: what is smaller cannot be told from a negative
one. The variances of J grow by it in every step, and noise is no smaller than it, relative to what is predicted."""


class Posterior(NamedTuple):
    """The posterior of a and J. All entries of f share one covariance, that of (a, a row of J)."""

    level: Array  # a, (p,)
    slope: Array  # J, (p, s)
    level_cov: Array  # variance of an entry of a, ()
    cross_cov: Array  # of it with the row of J, (s,)
    slope_cov: Array  # of a row of J, (s, s)


class FilterState(NamedTuple):
    """The state of one filter."""

    posterior: Posterior
    anchor: Array  # c, (s,)
    reference: Array  # c0, (s,)
    counted_distance2: Array  # the squared distance between them for which variance has been added, ()
    noise: Array  # v, averaged over entries and the last deployments, ()
    deployments: Array  # so far, () int32


class Prediction(NamedTuple):
    """How well f was predicted."""

    log_likelihood: Array  # ()
    noise_share: Array  # of the predictive variance, ()
    miss: Array  # f less its prediction, in predictive standard deviations, (p,)


class KalmanState(NamedTuple):
    """The state of the estimator: one filter, and what shows whether one is enough."""

    filter: FilterState
    misses: MissSums


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
        return KalmanState(self.init_filter(signal, f), no_misses(f))

    def update(self, state: KalmanState, signal: Array, f: Array, variance: Array, at: Array) -> KalmanState:
        new, prediction = self.predict_and_update(state.filter, signal, f, variance, at)
        return KalmanState(new, state.misses.add(prediction.miss, evidence_weight(prediction.noise_share)))

    def restart(self, state: KalmanState, restarts: Array, signal: Array, f: Array) -> KalmanState:
        """The state whose next deployment is the first, which replaces all else in the filter (``prior_state``)."""
        deployments = jnp.where(restarts, 0, state.filter.deployments)
        return state._replace(filter=state.filter._replace(deployments=deployments))

    def estimate(self, state: KalmanState) -> Array:
        return state.filter.posterior.slope

    def error(self, state: KalmanState) -> Array:
        return self.filter_error(state.filter)

    def figures(self, state: KalmanState) -> dict[str, Array]:
        """How much a miss of f resembles the last one, in standard errors."""
        return {"miss_correlation": state.misses.correlation()}

    # -- one filter ----------------------------------------------------------------------------------------------------

    def init_filter(self, signal: Array, f: Array) -> FilterState:
        """The filter before the first deployment; ``signal`` (s,) and ``f`` (p,) give shapes and types."""
        p, s = f.shape[0], signal.shape[0]
        posterior = Posterior(*[jnp.zeros(shape, f.dtype) for shape in ((p,), (p, s), (), (s,), (s, s))])
        place, number = jnp.zeros(s, f.dtype), jnp.zeros((), f.dtype)
        return FilterState(posterior, place, place, number, number, jnp.zeros((), jnp.int32))

    def predict_and_update(
        self, state: FilterState, signal: Array, f: Array, variance: Array, at: Array, walk: Array | None = None
    ) -> tuple[FilterState, Prediction]:
        """The filter after one more deployment, and how well f was predicted.

        ``walk`` is the variance that the level's random walk adds in a step, where there is one.
        """
        mean_variance = jnp.mean(variance)
        state = trees.where(state.deployments == 0, prior_state(state, at, f, mean_variance), state)
        noise = state.noise + NOISE_RATE * (mean_variance - state.noise)
        step = self.anchor_rate * (at - state.anchor)
        anchor = state.anchor + step
        growth = jnp.maximum(jnp.sum((anchor - state.reference) ** 2) - state.counted_distance2, 0.0)
        known2 = jnp.maximum(state.posterior.slope**2 - jnp.diagonal(state.posterior.slope_cov), 0.0)
        moved2 = jnp.sum(step**2)
        unit2 = jnp.maximum(1.0, moved2 / self.anchor_rate**2)
        kappa2 = self.curvature**2 * jnp.mean(jnp.minimum(known2, LARGEST_SLOPE**2)) / unit2
        prior = shift_anchor(state.posterior, step, kappa2 * growth, moved2)
        if walk is not None:
            prior = prior._replace(level_cov=prior.level_cov + walk)
        posterior, prediction = observe(prior, signal - anchor, f, noise, kappa2)
        reference = state.reference + self.reference_rate * (anchor - state.reference)
        counted_distance2 = (1 - self.reference_rate) ** 2 * (state.counted_distance2 + growth)
        after = FilterState(posterior, anchor, reference, counted_distance2, noise, state.deployments + 1)
        return after, prediction

    def filter_error(self, state: FilterState) -> Array:
        """The variance of every entry of J, (p, s)."""
        return jnp.broadcast_to(jnp.maximum(jnp.diagonal(state.posterior.slope_cov), 0.0), state.posterior.slope.shape)


def evidence_weight(noise_share: Array) -> Array:
    """The weight of a deployment as evidence, (), from the noise's share of the plain filter's predictive variance.

    It is zero while J itself is uncertain: where J is small, a hypothesis under which the averaged signal hardly moves
    predicts better for that reason alone. Counted from the start, three of six runs on a synthetic Adult took that for
    a memory, then J for far too large, and diverged.
    """
    return jnp.maximum(2 * noise_share - 1, 0.0)  # at most 1, as a share is


def prior_state(state: FilterState, signal: Array, f: Array, variance: Array) -> FilterState:
    """The state before the first deployment is counted, around its ``signal`` (s,); ``variance`` () is that of f."""
    one = jnp.ones((), f.dtype)
    prior = Posterior(
        level=f,
        slope=jnp.zeros_like(state.posterior.slope),
        level_cov=one + variance,
        cross_cov=jnp.zeros_like(signal),
        slope_cov=jnp.asarray(np.eye(signal.shape[0], dtype=f.dtype)),
    )
    return FilterState(prior, signal, signal, jnp.zeros_like(one), variance, state.deployments)


def shift_anchor(posterior: Posterior, step: Array, added_variance: Array, moved2: Array) -> Posterior:
    """The posterior at an anchor ``step`` (s,) further on, whose square is ``moved2``.

    ``added_variance`` is what curvature adds to that of J.
    """
    one = np.eye(step.shape[0], dtype=step.dtype)
    slope_cov = posterior.slope_cov * (1 + ROUNDING_EPSILONS * np.finfo(step.dtype).eps * one)
    cross_cov = posterior.cross_cov + jnp.sum(slope_cov * step, -1)
    level_growth = jnp.sum((posterior.cross_cov + cross_cov) * step)
    half = added_variance / 2
    return Posterior(
        level=posterior.level + jnp.sum(posterior.slope * step, -1),
        slope=posterior.slope,
        level_cov=posterior.level_cov + level_growth + half * moved2 / 2,
        cross_cov=cross_cov + half * step,
        slope_cov=slope_cov + added_variance * one,
    )


def observe(posterior: Posterior, offset: Array, f: Array, noise: Array, kappa2: Array) -> tuple[Posterior, Prediction]:
    """The posterior after one deployment, and how well f was predicted.

    It is a rank-one update with the regressor (1, offset).
    """
    level_cov = posterior.level_cov + jnp.sum(posterior.cross_cov * offset)  # the covariance times the regressor
    slope_cov = posterior.cross_cov + jnp.sum(posterior.slope_cov * offset, -1)
    known = jnp.maximum(level_cov + jnp.sum(slope_cov * offset), 0.0)
    floor = ROUNDING_EPSILONS * jnp.finfo(f.dtype).eps * (1 + known)
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
    return new, Prediction(log_likelihood, 1 - known / total, miss / jnp.sqrt(total))
