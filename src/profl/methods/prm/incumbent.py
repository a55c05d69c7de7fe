"""The incumbent: the model that the server stands by until another was deployed and its observed risk is no higher.

    D_i = (mean loss at the trial - what perturbing it cost)  -  (the same at the incumbent)       at client i
    the trial becomes the incumbent  unless  sum_i alpha_i D_i > SURE standard errors              at the server

What a perturbation costs is said by the fitted risk; as far as its gradient is not known, that adds to the error. The
comparison is the acceptance test of a trust region under noise (Chen, Menickelly and Scheinberg 2018): the region grows
while at least a share of the promised decrease is observed, and shrinks where it is not. A run returns the incumbent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.methods.prm.messages import RoundCheck
from profl.methods.prm.settings import PROMISE_KEPT, SURE
from profl.methods.prm.state import ClientState, IncumbentRisk
from profl.methods.prm.surrogate_risk import loss_variance
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class MeanLoss(NamedTuple):
    """The mean loss of a batch, () each."""

    mean: Array
    variance: Array  # its sampling variance
    unseen: Array  # the variance of one sample's loss that the noise of f gives it: a batch of one sample shows none


def mean_loss(problem: View, state: ClientState, deployed: Theta, batch: Batch, weights: Array, f: Array) -> MeanLoss:
    """What the ``deployed`` model lost on the batch that it brought in; its variance is that of the samples, or that
    of f where they are few."""
    losses, share = jax.vmap(problem.loss, (None, 0))(deployed, batch), jnp.sum(weights**2)
    mean = weights @ losses
    unseen = loss_variance(problem, deployed, batch, weights, f, state.sample_variance)
    return MeanLoss(mean, (weights @ (losses - mean) ** 2 + share * unseen) * share, unseen)


def observe_risk(state: ClientState, perturbation: Array, loss: MeanLoss, cost: Array) -> IncumbentRisk:
    """What a mean loss at the deployed model shows of the risk at the tried one, from which it is a ``perturbation``
    (d,) away.

    ``cost`` is what the fitted risk says that the perturbation changed, as far as its gradient is known.
    """
    unknown = state.derivatives.own_covariance + state.derivatives.shared_covariance
    variance = loss.variance + perturbation @ unknown @ perturbation
    now = state.incumbent._replace(observed=loss.mean - cost, observed_variance=variance, loss_variance=loss.variance)
    return update_incumbent(now, state.deployments == 1)


def update_incumbent(incumbent: IncumbentRisk, accepted: Array) -> IncumbentRisk:
    """The risk at the incumbent once the server has decided on the model that was tried."""
    updated = incumbent._replace(mean=incumbent.observed, variance=incumbent.observed_variance)
    return trees.where(accepted, updated, incumbent)


class Verdict(NamedTuple):
    """What the server makes of the trial; () each."""

    accepted: Array  # bool: it is the incumbent now
    good: Array  # bool: enough of the promised decrease was observed
    bad: Array  # bool: surely too little was
    variance: Array  # of the compared risks' difference


def verdict(check: RoundCheck, promised: Array, moved: Array, concentration: Array) -> Verdict:
    """Whether the trial becomes the incumbent, from the common ``check`` and the ``promised`` decrease.

    ``moved`` says whether it is another model at all, ``concentration`` is the sum of squared weights of the clients.

    >>> check = RoundCheck(*jnp.array([0.3, 0.01, 0.01, 0.0, 0.0]))
    >>> [bool(verdict(check, jnp.asarray(1.0), jnp.asarray(True), share).accepted) for share in (0.1, 10.0)]
    [False, True]
    """
    variance = jnp.maximum(check.variance, 0.0) * concentration
    error = jnp.sqrt(variance)
    accepted = ~moved | ~(check.rise > SURE * error)
    missing = check.rise + PROMISE_KEPT * promised
    return Verdict(accepted, accepted & (missing < error), missing > SURE * error, variance)
