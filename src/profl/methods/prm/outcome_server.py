"""What the server of ``prm`` does about limits on what comes in: sequential quadratic programming.

    read       the fits of all clients, also of those who pause, become one prediction g_k(theta) of every limit
    check      the verdict on a trial looks at the observed loss + sum_k lambda_k outcome_k in place of the loss
    turn       a step minimises the fitted risk inside g_k <= 0 (``outcome_steps``), curved as the Lagrangian is
    close      exploring costs room as well: perturbations are sized by that, and never larger than the room

The multipliers lambda_k are those of the step that made the candidate. A limit's own sign is taken out here: all are
"at most zero".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm.messages import OutcomeFit, RoundCheck
from profl.methods.prm.newton import LimitedSteps, positive_eigenvalues
from profl.methods.prm.outcome_steps import Cone, minimise_in_limits, normal_start
from profl.methods.prm.settings import ROOM_GROWTH, Settings
from profl.numerics import pseudo_inverse
from profl.problem.limits import as_arrays, space_region
from profl.problem.outcomes import OutcomeLimit, weight_table
from profl.problem.polyhedron import Region
from profl.problem.problem import View
from profl.server.rule_base import Rule
from profl.typing import Array

if TYPE_CHECKING:
    from profl.methods.prm.server import ServerState


class Reported(NamedTuple):
    """The outcomes that each client reported last, as a straight line around a model; one row per client."""

    model: Array  # (clients, d)
    value: Array  # (clients, K)
    gradient: Array  # (clients, K, d)
    seen: Array  # (clients,) bool: whether it ever reported


class Prediction(NamedTuple):
    """The K limits at a model, above their bounds; derivatives in the parameters' own scale."""

    value: Array  # (K,)
    gradient: Array  # (K, d)
    curvature: Array  # (K, d, d)
    covariance: Array  # (K, 1 + d, 1 + d): of value and gradient
    spread: Array  # (K,)
    bend: Array  # (K,)
    noise: Array  # (K,)

    def in_units(self, units: Array) -> Prediction:
        """With derivatives in natural units (d,)."""
        scale = jnp.append(1.0, units)
        return self._replace(
            gradient=self.gradient * units,
            curvature=self.curvature * units[:, None] * units,
            covariance=self.covariance * scale[:, None] * scale,
        )


class Reading(NamedTuple):
    """What the server makes of one turn's reports of outcomes."""

    reported: Reported
    prediction: Prediction  # at the model that was sent
    rise: Array  # (): by how much the trial raised sum_k lambda_k outcome_k, as observed
    variance: Array  # (): of the rise of the loss and of that together


class OutcomeServer(NamedTuple):
    """What the server keeps of the limits."""

    reported: Reported
    multipliers: Array  # (K,)
    risk: Array  # the common fitted risk at the best model, above that at the base
    best: Prediction  # there, in natural units; with the curvature and so on of the base
    base: Array  # (K,): above the bounds, at the base
    error: Array  # (K,): standard error of that
    planned: Array  # (): size of the perturbations that steps make room for


def initial_outcome_server(limits: tuple[OutcomeLimit, ...], d: int, clients: int) -> Any:
    """The state before the first round; () where nothing that comes in is limited."""
    if not limits:
        return ()
    k, zero = len(limits), jnp.zeros(())
    none = jnp.zeros(k)
    reported = Reported(
        jnp.zeros((clients, d)), jnp.zeros((clients, k)), jnp.zeros((clients, k, d)), jnp.zeros(clients, bool)
    )
    square, joint = jnp.zeros((k, d, d)), jnp.zeros((k, 1 + d, 1 + d))
    prediction = Prediction(none, jnp.zeros((k, d)), square, joint, none, none, none)
    return OutcomeServer(reported, none, zero, prediction, none, none, zero)


def estimates(server: ServerState, limits: tuple[OutcomeLimit, ...]) -> Array:
    """The fitted outcomes at the incumbent and their standard errors, (2, K)."""
    signs, bounds = (np.array([getattr(limit, name) for limit in limits]) for name in ("sign", "bound"))
    return jnp.stack([bounds + signs * server.outcomes.base, server.outcomes.error])


# -- reading the reports -----------------------------------------------------------------------------------------------


def rule_mean(rule: Rule, weights: Array, usable: Array, stacked: Any) -> Any:
    """The mean of stacked pytrees by the rule, with ``weights`` (k,) that need not sum to one; zeros of none."""
    usable = usable & (weights > 0)
    rows, unravel = jax.vmap(trees.ravel)(stacked), ravel_pytree(trees.take(stacked, 0))[1]
    total = jnp.sum(jnp.where(usable, weights, 0.0))
    mean = rule(rows, weights / jnp.where(total > 0, total, 1.0), usable, jnp.zeros(rows.shape[1]))
    return unravel(jnp.where(jnp.any(usable), mean, 0.0))


def signed_sum(rule: Rule, all_weights: np.ndarray, ids: Any, usable: Array, stacked: Any) -> Any:
    """sum_i w_i x_i over all clients, from the rows x of the clients ``ids``: each sign's mean by the rule, times its
    weights. Who has not reported counts like the others of its sign."""
    total: Any = None
    for sign in (1.0, -1.0):
        weights = np.maximum(sign * all_weights, 0.0)
        if not weights.any():
            continue
        mean = rule_mean(rule, jnp.asarray(weights, float)[ids], usable, stacked)
        size = sign * weights.sum()
        part = jax.tree.map(partial(jnp.multiply, size), mean)
        total = part if total is None else jax.tree.map(jnp.add, total, part)
    return total


def read(
    rule: Rule,
    problem: View,
    server: ServerState,
    flat: Array,
    fits: OutcomeFit,
    weights: Array,
    accepted: Array,
    fitted: Array,
) -> Reading:
    """What the reports of one turn say at the model ``flat``; ``fitted`` says whether they have values for it."""
    old, ids = server.outcomes.reported, problem.client_ids
    assert ids is not None
    fresh = accepted & fitted

    def put(before: Array, now: Array) -> Array:
        keep = fresh.reshape(-1, *[1] * (now.ndim - 1))
        return before.at[ids].set(jnp.where(keep, now, before[ids]))

    model = jnp.broadcast_to(flat, (ids.shape[0], flat.size))
    reported = Reported(
        put(old.model, model),
        put(old.value, fits.value),
        put(old.gradient, fits.gradient),
        put(old.seen, jnp.ones_like(fresh)),
    )
    here = reported.value + jnp.einsum("ckd,cd->ck", reported.gradient, flat - reported.model)
    everybody, predictions, rises = np.arange(old.seen.shape[0]), [], []
    for k, (limit, w) in enumerate(zip(problem.outcomes, weight_table(problem.outcomes), strict=True)):
        value, gradient = signed_sum(rule, w, everybody, reported.seen, (here[:, k], reported.gradient[:, k]))
        curvature, bend, rise = signed_sum(
            rule, w, ids, accepted, (fits.curvature[:, k], fits.bend[:, k], fits.rise[:, k])
        )
        own, spread, noise = signed_sum(
            rule, w**2, ids, accepted, (fits.own_covariance[:, k], fits.spread[:, k], fits.noise[:, k])
        )
        size = np.abs(w)  # errors that clients share add up whatever their weights' sign: at most so much
        shared = size.sum() * signed_sum(rule, size, ids, accepted, fits.shared_covariance[:, k])
        own = own.at[1:, 1:].add(shared).at[0, 0].add(unreported_variance(w, here[:, k], reported.seen))
        sign = limit.sign
        bend = jnp.maximum(sign * bend, 0.0)
        predictions.append(
            Prediction(sign * (value - limit.bound), sign * gradient, sign * curvature, own, spread, bend, noise)
        )
        rises.append(sign * rise)
    multipliers = server.outcomes.multipliers
    share = jnp.where(accepted, weights, 0.0)
    share = share / jnp.maximum(jnp.sum(share), jnp.finfo(share.dtype).tiny)
    table = jnp.asarray(weight_table(problem.outcomes), share.dtype)[:, ids] * accepted
    signs = np.array([limit.sign for limit in problem.outcomes])
    loads = jnp.concatenate([share[None], (multipliers * signs)[:, None] * table])  # (1 + K, rows)
    covariance = rule_mean(rule, weights, accepted, fits.covariance)
    return Reading(
        reported, trees.stack(predictions), multipliers @ jnp.stack(rises), jnp.sum(covariance * (loads @ loads.T))
    )


def unreported_variance(weights: np.ndarray, values: Array, seen: Array) -> Array:
    """The variance that clients who never reported add to a limit's value, ()."""
    count = jnp.maximum(jnp.sum(seen), 1)
    mean = jnp.sum(jnp.where(seen, values, 0.0)) / count
    between = jnp.sum(jnp.where(seen, (values - mean) ** 2, 0.0)) / jnp.maximum(count - 1, 1)
    return between * jnp.sum(jnp.where(seen, 0.0, weights**2))


def check_with_outcomes(check: RoundCheck, reading: Reading, concentration: Array) -> RoundCheck:
    """The check in which the loss is the Lagrangian's."""
    tiny = jnp.finfo(concentration.dtype).tiny
    return check._replace(rise=check.rise + reading.rise, variance=reading.variance / jnp.maximum(concentration, tiny))


# -- the turns ---------------------------------------------------------------------------------------------------------


def merit(server: ServerState, risk: Array, values: Array) -> Array:
    """The Lagrangian at a model with such a ``risk`` and such ``values`` (K,) of the limits, above that at the base."""
    outcomes = server.outcomes
    return risk + outcomes.multipliers @ (values - outcomes.base)


def begin(server: ServerState, now: Prediction, risk: Array, first: Array) -> ServerState:
    """The state with the round's own curvatures and covariances, where its Newton turns begin."""
    old = server.outcomes
    new = old._replace(best=now, base=now.value, error=jnp.sqrt(jnp.maximum(now.covariance[:, 0, 0], 0.0)), risk=risk)
    return server._replace(outcomes=trees.where(first, new, old))


def keep_better(server: ServerState, now: Prediction, risk: Array, better: Array) -> ServerState:
    """The state with the limits at the candidate, where that is the best model now."""
    old = server.outcomes
    values = old.best._replace(value=now.value, gradient=now.gradient)
    best, risk = trees.where(better, (values, risk), (old.best, old.risk))
    return server._replace(outcomes=old._replace(best=best, risk=risk))


def lagrangian(server: ServerState) -> ServerState:
    """The state in which gradient and curvature are those of the Lagrangian, and what is unknown of the gradient across
    the active limits does not count: they say where the optimum lies in those directions."""
    outcomes, best = server.outcomes, server.outcomes.best
    weights = outcomes.multipliers
    gradient = server.gradient + weights @ best.gradient
    curvature = server.curvature + jnp.tensordot(weights, best.curvature, 1)
    axes, values = positive_eigenvalues(curvature, gradient)
    inverse, active = (axes / values) @ axes.T, weights > 0
    N = best.gradient * active[:, None]
    inner = pseudo_inverse(N @ inverse @ N.T)
    across = jnp.eye(gradient.size, dtype=gradient.dtype) - N.T @ inner @ N @ inverse
    covariance = across @ server.gradient_covariance @ across.T
    return server._replace(gradient=gradient, curvature=curvature, gradient_covariance=covariance)


def step_region(problem: View, server: ServerState, longest: Any) -> Region:
    """The steps in units that model space and trust region allow."""
    base = server.base
    space = as_arrays(space_region(problem.project, base.size), base.dtype)
    return LimitedSteps.from_models(space, base, server.units, longest).region


def cone_of(problem: View, server: ServerState) -> Cone:
    """What is predicted around the best model."""
    best = server.outcomes.best
    anchor = jnp.where(server.accepted, 0.0, server.trial / server.units)  # the fits are those of the model tried
    quantile = np.array([limit.quantile for limit in problem.outcomes])
    at = (server.best - server.base) / server.units
    return Cone(
        at, best.value, best.gradient, anchor, best.covariance, best.spread, best.bend, jnp.asarray(quantile, at.dtype)
    )


def smallest_size(server: ServerState) -> Array:
    """Perturbations that change an outcome by no more than a deployment's own samples do, (): smaller ones would teach
    nothing, and nobody could tell them from none."""
    best = server.outcomes.best
    tiny = jnp.finfo(best.noise.dtype).tiny
    return jnp.minimum(jnp.sqrt(jnp.min(best.noise / jnp.maximum(best.spread, tiny))), server.outcomes.planned)


def next_candidate(problem: View, server: ServerState, longest: Array) -> tuple[Array, Array]:
    """(the model (d,) after a step inside the limits, their multipliers (K,)); the base after a rise."""
    cone, region = cone_of(problem, server), step_region(problem, server, longest)
    planned = jnp.maximum(cone.largest_size(cone.at), ROOM_GROWTH * server.perturbation)  # a price for it shows first
    planned = jnp.minimum(server.outcomes.planned, planned)
    start = normal_start(cone, region, planned, jnp.minimum(smallest_size(server), planned))
    curvature = server.curvature + jnp.tensordot(server.outcomes.multipliers, server.outcomes.best.curvature, 1)
    gradient = server.gradient - curvature @ cone.at  # at the base, by the same quadratic
    target, multipliers = minimise_in_limits(cone, region, start, curvature, server.gradient_covariance, gradient)
    step, most = target - cone.at, server.step_share * server.region
    step = step * jnp.minimum(1.0, most / jnp.maximum(jnp.max(jnp.abs(step)), jnp.finfo(step.dtype).tiny))
    return server.base + server.units * (cone.at + step * server.accepted), multipliers


def close(
    settings: Settings,
    problem: View,
    server: ServerState,
    close_round: Callable[[ServerState], ServerState],
) -> ServerState:
    """The state after the last turn. A perturbation of size x needs room, at a price of lambda'z x sqrt(spread), which
    the model itself pays: it is to cost no more than all that is unknown, of the risk and of the outcomes."""
    own = lagrangian(server)
    closed, cone, outcomes = close_round(own), cone_of(problem, server), server.outcomes
    price = outcomes.multipliers * cone.quantile
    variance = cone.variance(cone.at)
    unknown, per_size = price @ jnp.sqrt(variance), price @ jnp.sqrt(cone.spread)
    tiny = jnp.finfo(unknown.dtype).tiny
    cost = jnp.sum(positive_eigenvalues(own.curvature, own.gradient)[1]) / 2
    worth = closed.forecast.price / settings.curiosity + unknown
    planned = jnp.minimum(closed.perturbation, worth / jnp.maximum(per_size, tiny))
    server = server._replace(outcomes=outcomes._replace(planned=planned))
    size = jnp.maximum(jnp.minimum(planned, cone.largest_size(cone.at)), smallest_size(server))
    room = price @ (jnp.sqrt(variance + size**2 * cone.spread))
    forecast = closed.forecast._replace(
        excess=closed.forecast.excess + room,
        gain=closed.forecast.gain + unknown / (2.0 * closed.rounds),
        price=size**2 * cost,
    )
    return closed._replace(
        gradient=server.gradient,
        curvature=server.curvature,
        gradient_covariance=server.gradient_covariance,
        outcomes=server.outcomes,
        perturbation=size,
        forecast=forecast,
    )
