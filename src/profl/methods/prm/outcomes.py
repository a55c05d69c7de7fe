"""What a client of ``prm`` knows of outcomes that are limited: the fitted risk's own machinery with another loss.

    h_k(theta) = the fitted E outcome_k(theta, z) under the response f(theta), from the stored batches

It sends the value and the gradient of h_k with their covariance, from which the server predicts the outcome at models
that were never deployed, and what one unit of perturbations does to it. K is the number of limited outcomes, d that of
parameters.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm.incumbent import mean_loss
from profl.methods.prm.messages import Mail, OutcomeFit
from profl.methods.prm.state import ClientState, OutcomeState
from profl.methods.prm.surrogate_risk import (
    CurvatureAndCovariance,
    Discrepancy,
    batch_risk,
    batch_weights,
    curvature_and_covariance,
    fit_discrepancy,
    risks_by_batch,
    surrogate_risk,
)
from profl.problem.outcomes import OutcomeLimit
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


def as_loss(problem: View, limit: OutcomeLimit) -> View:
    """The problem in which the outcome is the loss."""
    return problem._replace(loss=limit.outcome)


def observe_outcomes(
    problem: View,
    state: ClientState,
    tried: Theta,
    deployed: Theta,
    batch: Batch,
    weights: Array,
    f: Array,
    slope_variance: Array,
    scales: Array,
) -> OutcomeState:
    """What is known of the outcomes after one more deployment; ``slope_variance`` and ``scales`` as in
    ``curvature_and_covariance``."""
    old, surrogate, perturbation = state.outcomes, state.surrogate, trees.ravel(deployed) - trees.ravel(tried)
    assert old is not None
    discrepancies: list[Discrepancy] = []
    derivatives: list[CurvatureAndCovariance] = []
    observed, noise, unknown = [], [], [perturbation_variance(state.derivatives, perturbation)]
    for limit in problem.outcomes:
        view = as_loss(problem, limit)
        mean = mean_loss(view, state, deployed, batch, weights, f)
        risks, signals = zip(*(risks_by_batch(view, surrogate, model) for model in (tried, deployed)), strict=True)
        discrepancy = fit_discrepancy(risks[0], surrogate.batches.signal, surrogate.discrepancy.equal, mean.variance)
        at_tried, at_deployed = (
            batch_weights(discrepancy, signal) @ risk for risk, signal in zip(risks, signals, strict=True)
        )
        own = surrogate._replace(discrepancy=discrepancy)
        near = curvature_and_covariance(view, own, tried, slope_variance, scales, value=True)
        discrepancies.append(discrepancy)
        derivatives.append(near)
        observed.append(mean.mean - (at_deployed - at_tried))
        noise.append(mean.variance)
        unknown.append(perturbation_variance(near._replace(own_covariance=near.own_covariance[1:, 1:]), perturbation))
    covariance = mean_covariance(problem, state, deployed, batch, weights, f) + jnp.diag(jnp.stack(unknown))
    new = old._replace(
        discrepancy=trees.stack(discrepancies),
        derivatives=trees.stack(derivatives),
        noise=jnp.stack(noise),
        observed=jnp.stack(observed),
        observed_covariance=covariance,
    )
    return trees.where(state.deployments == 1, stand_by_trial(new), new)


def perturbation_variance(near: CurvatureAndCovariance, perturbation: Array) -> Array:
    """The variance of what a perturbation (d,) is said to change, ()."""
    return perturbation @ (near.own_covariance + near.shared_covariance) @ perturbation


def mean_covariance(
    problem: View, state: ClientState, deployed: Theta, batch: Batch, weights: Array, f: Array
) -> Array:
    """The sampling covariance (1 + K, 1 + K) of the mean loss and the mean outcomes of a batch, as ``mean_loss`` has
    its variance."""
    functions = [problem.loss, *(limit.outcome for limit in problem.outcomes)]
    values = jnp.stack([jax.vmap(function, (None, 0))(deployed, batch) for function in functions], 1)
    share, centred = jnp.sum(weights**2), values - weights @ values

    def slope(view: View) -> Array:
        return jax.grad(lambda here: batch_risk(view, deployed, here, batch, weights, f))(f)

    slopes = jnp.stack([slope(problem._replace(loss=function)) for function in functions])
    return (centred.T @ (weights[:, None] * centred) + share * (slopes * state.sample_variance) @ slopes.T) * share


def stand_by_trial(outcomes: OutcomeState) -> OutcomeState:
    """The outcomes with what was observed at the tried model as those of the incumbent."""
    return outcomes._replace(mean=outcomes.observed, covariance=outcomes.observed_covariance)


def update_outcomes(outcomes: OutcomeState | None, mail: Mail) -> OutcomeState | None:
    """The outcomes once mail has come, which says whether the tried model is the incumbent now."""
    if outcomes is None:
        return None
    accepted = mail.accepted & (mail.turn == 0)
    updated = trees.where(accepted, stand_by_trial(outcomes), outcomes)
    return updated._replace(informed=jnp.asarray(True), estimate=mail.outcomes)


def outcome_fit(problem: View, state: ClientState, outcomes: OutcomeState, theta: Theta) -> OutcomeFit:
    """What is sent of the outcomes in every turn; zeros for value and gradient in turns in which nobody reads them."""
    (flat, unravel), near = ravel_pytree(theta), outcomes.derivatives

    def fitted(flat: Array) -> tuple[Array, Array]:
        results = []
        for k, limit in enumerate(problem.outcomes):
            own = state.surrogate._replace(discrepancy=trees.take(outcomes.discrepancy, k))
            risk = partial(surrogate_risk, as_loss(problem, limit), own)
            results.append(jax.value_and_grad(lambda x, risk=risk: risk(unravel(x)))(flat))
        return trees.stack(results)

    unread = outcomes.mean, jnp.zeros_like(near.curvature[:, 0])
    value, gradient = trees.cond_or_keep(state.risk_wanted, fitted, unread, flat)
    diagonal = partial(jnp.diagonal, axis1=1, axis2=2)
    unknown = diagonal(near.own_covariance)[:, 1:] + diagonal(near.shared_covariance)
    return OutcomeFit(
        value=value,
        gradient=gradient,
        curvature=near.curvature,
        own_covariance=near.own_covariance,
        shared_covariance=near.shared_covariance,
        spread=(gradient**2 + unknown) @ state.units**2,
        bend=diagonal(near.curvature) @ state.units**2 / 2,
        noise=outcomes.noise,
        rise=outcomes.observed - outcomes.mean,
        covariance=outcomes.observed_covariance + outcomes.covariance,
    )
