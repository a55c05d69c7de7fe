"""What a client of ``prm`` keeps from deployment to deployment.

p is the number of entries of f, s of the signal, d of theta, m = 1 + slopes + curvatures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.methods.prm.observation_buffer import ObservationBuffer, empty_buffer
from profl.methods.prm.past import ClientHistory, empty_history
from profl.methods.prm.response import Moments, Prior, Response, curvature_count
from profl.methods.prm.settings import PRIOR_THIRD_ORDER, Settings
from profl.methods.prm.surrogate_risk import CurvatureAndCovariance, SurrogateRisk, no_batches, no_discrepancy
from profl.parts import filters, trusted_samples
from profl.parts.jacobian.reaction_memory import SETTLING_TIMES, MemoryEstimate, most_likely_memory
from profl.parts.part import shape_of_f
from profl.parts.units import Unit
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


class PersonalPart(NamedTuple):
    """The personal part of a client's model, at three moments."""

    now: Any
    initial: Any  # as the run began
    deployed: Any  # as it was at the last deployment
    was_deployed: Array  # bool: whether there was one


class Exploration(NamedTuple):
    """The perturbation that a client deploys."""

    direction: Array  # (d,): the last one, in units
    opposite_next: Array  # bool: whether its opposite comes next
    deployments_left: Array  # for which it is still held
    size: Array  # of the next one, in units


class IncumbentRisk(NamedTuple):
    """What was observed of the risk at the incumbent, and of the model that is tried against it; () each."""

    mean: Array
    variance: Array
    observed: Array  # at the model that was tried last
    observed_variance: Array
    loss_variance: Array  # as far as the samples are the reason, not the perturbation


class ClientState(NamedTuple):
    """What a client keeps from deployment to deployment."""

    deployments: Array  # so far
    units: Array  # (d,): natural units of theta
    sample_variance: Array  # (p,): of one sample in every entry of f, pooled over all deployments
    noise_dof: Array  # (): degrees of freedom of that
    observations: ObservationBuffer  # their signals are (memories, s): averages of past signals
    averages: Array  # (memories, s): these averages now
    reaction_memory: MemoryEstimate  # which of them people seem to respond to
    moments: Moments  # of the observations, as seen from theta
    prior: Prior  # of all clients
    common_mean: Array  # (p, m - 1): the mean that the server sent last
    common_error: Array  # (p, m - 1): the variance of the mean itself
    third_order_variance: Array  # of what is not fitted, in units of ``sample_variance``
    surrogate: SurrogateRisk
    variance: Array  # (p, m - 1): of the response's coefficients
    derivatives: CurvatureAndCovariance  # of the fitted risk at theta
    exploration: Exploration
    trial: Array  # (d,): the model that is tried next, as a step from the incumbent
    incumbent: IncumbentRisk
    held: Array  # share of the parameters that the trust region held in the last round
    region: Array  # the server's trust region, in units
    risk_wanted: Array  # bool: whether the server reads the fitted risk in the next report
    filter: Any  # what the filter remembers; () for nothing
    personal: PersonalPart | None  # None where all of theta is shared
    history: ClientHistory | None = None  # what past deployments say of slopes; None where there are none


def initial_state(settings: Settings, problem: View, theta: Theta, batch: Batch) -> ClientState:
    """The state before the first deployment; only the shapes of ``batch`` matter."""
    d = jax.eval_shape(trees.ravel, theta).size
    s, p = jax.eval_shape(problem.signal, theta).size, shape_of_f(problem, batch).size
    m, zero = 1 + s + curvature_count(s), jnp.zeros(())
    table, square = jnp.zeros((p, m - 1)), jnp.zeros((d, d))
    gram: tuple[int, ...] = (m, m)
    if settings.history is not None:  # it knows the entries of f to different errors
        settings.history.check(f=p, signal=s)
        gram = (p, m, m)
    response = Response(jnp.zeros(s), jnp.zeros((p, m)), jnp.zeros((p, 1 + s, 1 + s)))
    unit, batches = Unit(jnp.zeros(s), jnp.ones(s)), no_batches(batch, settings.keep, p, s)
    return ClientState(
        deployments=jnp.int32(0),
        units=jnp.ones(d),
        sample_variance=jnp.ones(p),
        noise_dof=zero,
        observations=empty_buffer(settings.buffer_size, (SETTLING_TIMES, s), p),
        averages=jnp.zeros((SETTLING_TIMES, s)),
        reaction_memory=most_likely_memory(jnp.zeros(SETTLING_TIMES)),
        moments=Moments(jnp.zeros(p), jnp.zeros(gram), jnp.zeros((p, m))),
        prior=Prior(table, table + 1),
        common_mean=table,
        common_error=table,
        third_order_variance=zero + PRIOR_THIRD_ORDER**2,
        surrogate=SurrogateRisk(unit, response, batches, batches.f, no_discrepancy(settings.keep, s)),
        variance=table + 1,
        derivatives=CurvatureAndCovariance(square, square, square),
        exploration=Exploration(jnp.zeros(d), jnp.asarray(False), jnp.int32(0), zero),
        trial=jnp.zeros(d),
        incumbent=IncumbentRisk(*[zero] * 5),
        held=zero,
        region=zero + settings.region,
        risk_wanted=jnp.asarray(False),
        filter=trusted_samples.initial_memory(problem, filters.get(settings.filter), theta, batch),
        personal=initial_personal(settings, theta),
        history=None if settings.history is None else empty_history(p, s),
    )


def initial_personal(settings: Settings, theta: Theta) -> PersonalPart | None:
    """The personal part before the first deployment; None where all of theta is shared."""
    if settings.personal is None:
        return None
    part = settings.personal.personal(theta)
    return PersonalPart(part, part, part, jnp.asarray(False))
