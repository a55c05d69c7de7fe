"""What a client of ``prm`` deploys, fits and reports.

    deploys   theta, and perturbations of it in pairs: a random corner and the opposite one
    fits      f near theta from all its observations (``response``), with the common prior of all clients
    reports   value, gradient and curvature of its fitted risk, and what it knows of its reaction

p is the number of entries of f, s of the signal, d of theta, m = 1 + slopes + curvatures.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import random, trees
from profl.methods.prm import settings as constants
from profl.methods.prm.incumbent import mean_loss, observe_risk, update_incumbent
from profl.methods.prm.messages import Mail, ReactionCoefficients, RiskFit, RoundCheck
from profl.methods.prm.noise import update_noise
from profl.methods.prm.observation_buffer import add_observation
from profl.methods.prm.past import add_history, in_natural_units, update_factor
from profl.methods.prm.response import (
    Moments,
    Prior,
    curvature_count,
    diagonal,
    empirical_prior,
    estimate_memory,
    feature_units,
    fit_response,
    move_prior,
    posterior,
    update_third_order_variance,
)
from profl.methods.prm.settings import Settings
from profl.methods.prm.state import ClientState, Exploration
from profl.methods.prm.surrogate_risk import (
    batch_weights,
    curvature_and_covariance,
    equal_weights,
    fit_discrepancy,
    moved_from,
    risks_by_batch,
    store_batch,
    surrogate_risk,
)
from profl.parts import filters, trusted_samples
from profl.parts.jacobian.reaction_memory import effective_signal, hold_deployments, update_averages
from profl.parts.units import Unit, theta_scales
from profl.problem.problem import View
from profl.server import entries
from profl.server.entries import Report
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


def perturb(problem: View, state: ClientState, key: Key, theta: Theta) -> tuple[Theta, ClientState]:
    """The deployed model and the next state: theta first, then a random corner around it and its opposite, in turns.

    Each is held while people get used to it.
    """
    (flat, unravel), last = ravel_pytree(tried_model(problem, state, theta)), state.exploration
    with stage("explore") as check:
        signs = random.explore_signs(key, flat.size).astype(flat.dtype)
        started = state.deployments > 0
        held = (last.deployments_left > 0) & started
        direction = jnp.where(held, last.direction, jnp.where(last.opposite_next, -last.direction, signs))
        direction = jnp.where(state.deployments == 0, 0.0, direction)
        deployed = check(problem.project(unravel(flat + last.size * state.units * direction)))
        opposite_next = jnp.where(held, last.opposite_next, ~last.opposite_next) & started
        longest = hold_deployments(state.reaction_memory, constants.EVIDENCE_NEEDED)
        left = jnp.where(held, last.deployments_left, longest) - 1
    new = Exploration(direction, opposite_next, left, last.size)
    return deployed, state._replace(exploration=new)


def tried_model(problem: View, state: ClientState, theta: Theta) -> Theta:
    """The model that is tried against the incumbent ``theta``."""
    flat, unravel = ravel_pytree(theta)
    return problem.project(unravel(flat + state.trial))


def filter_batch(
    settings: Settings, problem: View, state: ClientState, deployed: Theta, batch: Batch, weights: Array
) -> tuple[Array, dict[str, Array], ClientState]:
    """Weights of the samples after the filter, the share that it kept, and the state with what it remembers."""
    if settings.filter == "none":
        return weights, {}, state
    with stage("filter") as check:
        weights, kept_share, memory = check(
            trusted_samples.filter_weights(
                problem, filters.get(settings.filter), deployed, batch, weights, state.filter
            )
        )
    return weights, {"kept": kept_share}, state._replace(filter=memory)


def learn(
    settings: Settings,
    problem: View,
    state: ClientState,
    theta: Theta,
    deployed: Theta,
    batch: Batch,
    weights: Array,
) -> tuple[ClientState, Array]:
    """The state with one more observation in it, and the fitted risk at the model that was tried beside ``theta``; the
    mean loss of the batch."""
    tried, first = tried_model(problem, state, theta), state.deployments == 0
    with stage("estimate f") as check:
        f = check(problem.family.estimate(batch, weights))
        state = update_noise(problem, state, deployed, batch, weights, f)
    share, row = jnp.sum(weights**2), jax.lax.rem(state.deployments, jnp.int32(settings.keep))
    loss = mean_loss(problem, state, deployed, batch, weights, f)
    state = trees.where(
        first, measure_first_batch(problem, state, deployed, batch, weights, share * loss.unseen), state
    )
    with stage("fit") as check:
        state = check(add_to_fit(settings, problem, state, tried, deployed, f, 1 / share))
        state = state._replace(deployments=state.deployments + 1)
        equal, old = equal_weights(settings.keep, state.deployments), state.surrogate
        signal = old.signal_unit.standardise(problem.signal(deployed))
        batches = store_batch(old.batches, row, batch, weights, f, signal)
        surrogate = old._replace(batches=batches, origins=moved_from(problem, old.response, batches, equal))
        flat, unravel = ravel_pytree(tried)
        models = jnp.stack([flat, trees.ravel(deployed)])
        risks, signals = jax.vmap(lambda model: risks_by_batch(problem, surrogate, unravel(model)))(models)
        discrepancy = check(fit_discrepancy(risks[0], batches.signal, equal, loss.variance))
        at_tried, at_deployed = jnp.sum(batch_weights(discrepancy, signals) * risks, 1)
        state = state._replace(surrogate=surrogate._replace(discrepancy=discrepancy))
    with stage("curvature") as check:
        unknown = (1 - known_share(state)) ** 2 * state.common_error
        scales = jnp.concatenate([state.units, jnp.sqrt(state.sample_variance)])
        derivatives = check(
            curvature_and_covariance(problem, state.surrogate, tried, unknown[:, : signal.size], scales)
        )
    state = state._replace(derivatives=derivatives)
    with stage("compare") as check:
        incumbent = check(observe_risk(state, models[1] - models[0], loss, at_deployed - at_tried))
    return state._replace(incumbent=incumbent), loss.mean


def measure_first_batch(
    problem: View, state: ClientState, theta: Theta, batch: Batch, weights: Array, unseen: Array
) -> ClientState:
    """The state with natural units, prior and first perturbation, all from the first batch; ``unseen`` is the variance
    of a mean loss that a batch of one sample would not show."""
    units = theta_scales(problem, theta, batch, weights, unseen=unseen)
    flat, unravel = ravel_pytree(theta)
    slopes = jax.jacfwd(lambda vector: problem.signal(unravel(vector)))(flat)
    change = jnp.sqrt(slopes**2 @ units**2)  # of the signal when every parameter moves by its unit up or down
    unit = Unit(problem.signal(theta), jnp.where(change > 0, change, 1.0))
    size = jnp.minimum(jnp.sqrt(constants.FIRST_PERTURBATION * jnp.sum(weights**2)), 1.0)
    history = state.history
    return state._replace(
        history=None if history is None else in_natural_units(history, unit),
        units=units,
        prior=Prior(state.prior.mean, state.sample_variance[:, None] * prior_widths(state) ** 2),
        surrogate=state.surrogate._replace(signal_unit=unit),
        exploration=state.exploration._replace(size=size),
    )


def add_to_fit(
    settings: Settings, problem: View, state: ClientState, theta: Theta, deployed: Theta, f: Array, samples: Array
) -> ClientState:
    """The state with the response fitted to one more observation of f, as seen from ``theta``."""
    unit, old = state.surrogate.signal_unit, state.surrogate.response
    third_order, variance = third_order_variance(state), state.sample_variance
    anchor, now = unit.standardise(problem.signal(theta)), unit.standardise(problem.signal(deployed))
    averages = update_averages(state.averages, now, state.deployments == 0)
    observations = add_observation(state.observations, averages, f, samples)
    memory = estimate_memory(observations, prior_widths(state), variance, constants.PRIOR_THIRD_ORDER**2)
    effective = effective_signal(memory, observations.signal, constants.EVIDENCE_NEEDED)
    effective_observations = observations._replace(signal=effective)
    step = jnp.where(state.deployments == 0, 0.0, anchor - old.anchor)
    prior = move_prior(state.prior, step, third_order * variance)
    past = {} if state.history is None else {"beside": history_at(state, anchor, third_order * variance)}
    fit = fit_response(effective_observations, anchor, prior, variance, third_order, **past)
    if not settings.share:
        prior = empirical_prior(prior, fit.response.mean[:, 1:], fit.variance[:, 1:], variance)
        response, cov = posterior(fit.moments, anchor, prior, variance)
        fit = fit._replace(response=response, variance=diagonal(cov))
    return state._replace(
        observations=observations,
        averages=averages,
        reaction_memory=memory,
        moments=fit.moments,
        prior=prior,
        third_order_variance=update_third_order_variance(state.third_order_variance, fit.third_order),
        surrogate=state.surrogate._replace(response=fit.response),
        variance=fit.variance[:, 1:],
    )


def history_at(state: ClientState, anchor: Array, unfitted: Array) -> Callable[[Moments], Moments]:
    """What adds the client's history to moments at an anchor; ``unfitted`` (p,) is the variance of coefficients of the
    first order that is not fitted, which is the second for a large signal."""
    history, noise = state.history, state.sample_variance
    assert history is not None
    second = jnp.zeros_like(noise) if curvature_count(anchor.size) else unfitted
    return lambda moments: add_history(moments, history, anchor, second, noise)


def prior_widths(state: ClientState) -> Array:
    """Prior standard deviations of slopes and curvatures, (m - 1,), in deviations of a sample."""
    slopes = np.arange(state.common_mean.shape[1]) < state.surrogate.signal_unit.scale.size
    return jnp.asarray(np.where(slopes, constants.PRIOR_SLOPE, constants.PRIOR_CURVATURE), state.common_mean.dtype)


def third_order_variance(state: ClientState) -> Array:
    """Variance of third-order coefficients, in units of ``sample_variance``: what residuals show, and no less than a
    share of the squared curvature."""
    curvatures = state.prior.mean[:, state.surrogate.signal_unit.scale.size :]
    size = jnp.mean(jnp.sum(curvatures**2, 1) / state.sample_variance)
    return state.third_order_variance + constants.THIRD_ORDER_SHARE * size


def known_share(state: ClientState) -> Array:
    """The share of every coefficient, (p, m - 1), that comes from the client's own observations, not from its prior."""
    return 1 - jnp.minimum(state.variance / state.prior.variance, 1.0)


def report_fit(problem: View, state: ClientState, theta: Theta) -> Report:
    """What is sent in every turn: the fitted risk at ``theta``, and what is known of the reaction.

    In turns in which nobody reads the fitted risk, the observed one stands in its place.
    """
    flat, unravel = ravel_pytree(theta)

    def fitted(flat: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda x: surrogate_risk(problem, state.surrogate, unravel(x)))(flat)

    unread = state.incumbent.observed, jnp.zeros_like(flat)
    risk, gradient = trees.cond_or_keep(state.risk_wanted, fitted, unread, flat)
    unit, prior = feature_units(state.surrogate.signal_unit.scale), state.prior
    change = (state.surrogate.response.mean[:, 1:] - prior.mean) / unit
    reaction = ReactionCoefficients(change, known_share(state), prior.mean / unit, prior.variance / unit**2)
    incumbent = state.incumbent
    check = RoundCheck(
        incumbent.observed - incumbent.mean,
        incumbent.observed_variance + incumbent.variance,
        incumbent.loss_variance,
        state.exploration.size,
        state.third_order_variance,
    )
    return {
        "theta": entries.model(theta),
        "risk": entries.statistic(risk),
        "fit": entries.statistic(RiskFit(gradient, state.units, *state.derivatives).to_table()),
        "check": entries.statistic(check),
        "reaction": entries.jacobian(jnp.stack(reaction)),
    }


def read_mail(settings: Settings, state: ClientState, mail: Mail) -> ClientState:
    """The state with what the server sent, and the response under the common prior where there is a new one."""
    incumbent = update_incumbent(state.incumbent, mail.accepted & (mail.turn == 0))
    state = state._replace(
        exploration=state.exploration._replace(size=mail.perturbation),
        incumbent=incumbent,
        trial=mail.trial,
        held=mail.held,
        region=mail.region,
        risk_wanted=(mail.turn + 1 >= settings.turns_before_newton) & (mail.turn < settings.last_turn),
    )
    if not settings.share:
        return state
    unit, response, history = feature_units(state.surrogate.signal_unit.scale), state.surrogate.response, state.history
    mean, least = mail.common.mean * unit, constants.LEAST_DIFFERENCE**2 * state.sample_variance[:, None]
    slopes, single = state.surrogate.signal_unit.scale.size, mail.single_client
    momentum = mail.turn / (mail.turn + 3.0)  # Nesterov's
    common = Prior(mean + momentum * (mean - state.common_mean), mail.common.variance * unit**2 + least)
    alone = empirical_prior(state.prior, response.mean[:, 1:], state.variance, state.sample_variance, slopes)
    prior = trees.where(single, alone, common)
    if history is not None:
        slope = (
            trees.where(single, response.mean[:, 1:], mean),
            trees.where(single, state.variance, mail.common.error * unit**2),
        )
        history = update_factor(history, *(part[:, :slopes] for part in slope))
    response, cov = posterior(state.moments, response.anchor, prior, state.sample_variance)
    new = state._replace(
        prior=prior,
        common_mean=mean,
        common_error=jnp.where(single, 0.0, mail.common.error * unit**2),
        third_order_variance=mail.third_order_variance,
        surrogate=state.surrogate._replace(response=response),
        variance=diagonal(cov)[:, 1:],
        history=history,
    )
    return trees.where(mail.turn < settings.turns_before_newton, new, state)
