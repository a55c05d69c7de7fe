"""What the server of ``prm`` minimises: the weighted sum of fitted risks, by Newton steps in a trust region.

A round has ``turns_before_newton`` turns in which clients learn from each other, then Newton steps:

    first turn       ``open_round``    what was tried becomes the incumbent or not (``incumbent``); the trust region
    every turn       ``compare``       the candidate is the best model so far, or the next step is shorter
                     ``next_candidate``
    last turn        ``close_round``   what is left to gain, how much to explore for it, and what to try next

Inside, lengths and derivatives are in natural units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.method import Forecast
from profl.methods.prm import settings as constants
from profl.methods.prm.incumbent import verdict
from profl.methods.prm.messages import CommonReaction, Mail, RiskFit, RoundCheck
from profl.methods.prm.newton import (
    LimitedSteps,
    inactive_bounds,
    minimise_cautiously,
    newton_turn,
    positive_eigenvalues,
)
from profl.methods.prm.settings import Settings
from profl.problem.limits import Polyhedron, as_arrays
from profl.problem.problem import View
from profl.server import rules
from profl.server.distances import no_distances, weigh_rows
from profl.server.entries import Values
from profl.server.rule_base import Rule
from profl.typing import Array, Theta


class ServerState(NamedTuple):
    """The minimisation of a round, and what goes on to the next."""

    turn: Array
    rounds: Array
    units: Array  # (d,): natural units of theta
    region: Array  # the trust region, in units
    base: Array  # (d,): the model that the round began with
    best: Array  # (d,): the best model so far
    base_risks: Array  # (clients,): each client's fitted risk at the base
    risk: Array  # the common fitted risk at the best model, above that at the base
    gradient: Array  # (d,): and its gradient
    curvature: Array  # (d, d): at the base
    gradient_covariance: Array  # (d, d): at the base
    step_share: Array  # share of the trust region that the next step may use
    perturbation: Array  # size of the clients' perturbations
    visible: Array  # that of the first one: f moves visibly, if it moves at all
    third_order_variance: Array  # mean of the clients'
    held: Array  # share of the parameters that the trust region or the model space holds
    trial: Array  # (d,): the model that clients try, as a step from the incumbent
    accepted: Array  # bool: whether the last one became the incumbent
    risk_variance: Array  # of what one round shows of the risk
    loss_variance: Array  # as far as its samples are the reason
    fall: Array  # of the observed risk, from the first model to the incumbent
    start_variance: Array  # of what was observed at the first model
    incumbent_variance: Array  # and at the incumbent
    forecast: Forecast
    distances: Any  # how far clients' gradients lie apart, of a rule that names whom it distrusts; else ()


class Bounds(NamedTuple):
    """The regions of a round, as projections of steps (d,) from the base, in units."""

    model_space: Callable[[Array], Array]
    trust_region: Callable[[Array], Array]  # that part of the model space


def initial_server(settings: Settings, theta: Theta, clients: int) -> ServerState:
    """The state before the first round."""
    flat, zero = trees.ravel(theta), jnp.zeros(())
    none, square = jnp.zeros_like(flat), jnp.zeros((flat.size, flat.size), flat.dtype)
    return ServerState(
        turn=jnp.int32(0),
        rounds=jnp.int32(0),
        units=none + 1,
        region=zero + settings.region,
        base=flat,
        best=flat,
        base_risks=jnp.zeros(clients),
        risk=zero,
        gradient=none,
        curvature=square,
        gradient_covariance=square,
        step_share=zero + 1,
        perturbation=zero,
        visible=zero,
        third_order_variance=zero,
        held=zero,
        trial=none,
        accepted=jnp.asarray(True),
        risk_variance=zero,
        loss_variance=zero,
        fall=zero,
        start_variance=zero,
        incumbent_variance=zero,
        forecast=Forecast(*[zero + jnp.nan] * 4),
        distances=no_distances(clients) if isinstance(rules.get(settings.aggregate), rules.ReweightedMean) else (),
    )


Aggregate = Callable[..., tuple[Any, ...]]


def block_aggregator(rule: Rule, weights: Array, accepted: Array) -> Aggregate:
    """A function that combines stacked pytrees (k, ...), its arguments, by the rule: the leaves of each as one row.

    A rule that compares rows so compares clients by each argument alone: what one of them is off by does not hide in
    another whose numbers are larger.
    """

    def of_block(stacked: Any) -> Any:
        rows = jax.vmap(trees.ravel)(stacked)
        unravel = ravel_pytree(trees.take(stacked, 0))[1]
        return unravel(rule(rows, weights, accepted, jnp.zeros(rows.shape[1])))

    def aggregate(*blocks: Any) -> tuple[Any, ...]:
        return of_block(blocks) if rule.by_coordinate else tuple(map(of_block, blocks))

    return aggregate


def concentration_of(weights: Array) -> Array:
    """The sum of squared weights, () once they sum to one; zero where there are none."""
    return jnp.sum(weights**2) / jnp.maximum(jnp.sum(weights), jnp.finfo(weights.dtype).tiny) ** 2


def make_mail(server: ServerState, common: CommonReaction, single_client: Array, turn: Array) -> Mail:
    """What every client gets after ``turn``; the server's own counter is at zero again after the last one."""
    return Mail(
        accepted=server.accepted,
        turn=turn,
        trial=server.trial * (server.turn == 0),
        perturbation=server.perturbation,
        held=server.held,
        region=server.region,
        third_order_variance=server.third_order_variance,
        common=common,
        single_client=single_client,
    )


def aggregate_fits(change: Array, tables: Array, units: Array, aggregate: Aggregate) -> tuple[Array, RiskFit]:
    """The common change of the risk, (), and fit with derivatives in natural units, from stacked changes (k,) and
    tables of fits."""
    columns = jnp.concatenate([jnp.ones(2, units.dtype), *[units] * 3])
    fit = jax.vmap(RiskFit.from_table)(tables * units[:, None] * columns)
    (change, gradient), *matrices = aggregate((change, fit.gradient), *fit[2:])
    return change, RiskFit(gradient, units, *matrices)


def take_turn(
    settings: Settings,
    problem: View,
    server: ServerState,
    theta: Theta,
    reports: Values,
    aggregate: Aggregate,
    concentration: Array,
) -> tuple[ServerState, Array]:
    """The state after one turn of reports at ``theta``, and the next model (d,); ``aggregate`` combines stacked rows.

    ``concentration`` is the sum of squared weights of the reports.
    """
    flat, unravel = ravel_pytree(theta)
    turn, last = server.turn, server.turn == settings.last_turn
    units, *check = aggregate(reports["fit"][:, :, 1], *reports["check"])
    tried = trees.ravel(problem.project(unravel(flat + server.trial)))
    server = open_round(settings, server, flat, tried, units, RoundCheck(*check), concentration)
    server, changes = risk_changes(settings, server, problem.client_ids, reports["risk"])
    risk, fit = aggregate_fits(changes, reports["fit"], server.units, aggregate)
    server = compare(settings, server, flat, risk, fit, concentration)
    bounds = bounds_of(problem, server, unravel)
    model = jnp.where(last | (turn < settings.turns_before_newton), server.base, next_candidate(server, bounds))
    server = trees.where(last, close_round(settings, server, bounds), server)
    return server._replace(turn=jnp.where(last, 0, turn + 1)), model


def compare_clients(
    settings: Settings, server: ServerState, client_ids: Any, gradients: Array, weights: Array, accepted: Array
) -> ServerState:
    """The state that remembers how far each client's gradient (k, d), at the base, lies from the others': once a round.

    The rule compares the reports of every turn by themselves; this says whom it distrusts, and since when.
    """
    rule = rules.get(settings.aggregate)
    if not isinstance(rule, rules.ReweightedMean):
        return server
    now = weigh_rows(server.distances, gradients, weights, accepted & (weights > 0), client_ids, rule.hostile)[1]
    first = server.turn == settings.turns_before_newton
    return server._replace(distances=trees.where(first, now, server.distances))


def risk_changes(settings: Settings, server: ServerState, client_ids: Any, risks: Array) -> tuple[ServerState, Array]:
    """The state with every client's fitted risk at the base, and how far each of ``risks`` (k,) is above that, (k,).

    Clients' levels differ by much more than a step changes them. Only changes are combined, so that a client can hide
    nothing in the level.
    """
    first = server.turn == settings.turns_before_newton
    at_base = jnp.where(first, risks, server.base_risks[client_ids])
    return server._replace(base_risks=server.base_risks.at[client_ids].set(at_base)), risks - at_base


def open_round(
    settings: Settings,
    server: ServerState,
    flat: Array,
    tried: Array,
    units: Array,
    check: RoundCheck,
    concentration: Array,
) -> ServerState:
    """The state for a new round, where one begins: the verdict on what was tried, and the trust region that follows."""
    first, step = server.rounds == 0, jnp.max(jnp.abs(server.trial) / server.units)
    promised = -server.risk
    accepted, good, bad, variance = verdict(check, promised, step > 0, concentration)
    used, idle = step > constants.REGION_USED * server.region, step < constants.REGION_IDLE * server.region
    factor = jnp.where(good & used, 2.0, jnp.where(bad | idle, 0.5, 1.0))
    region = jnp.maximum(server.region * factor, jnp.minimum(constants.LEAST_REGION, server.region))
    region = jnp.where(server.rounds == 1, settings.region, region)
    region = jnp.where(accepted, region, step / 2)
    region = jnp.where(first, constants.FIRST_STEP * settings.region, region)
    new = server._replace(
        region=region,
        base=jnp.where(accepted, tried, flat),
        accepted=accepted,
        loss_variance=check.loss_variance * concentration,
        risk_variance=variance / 2,  # of the two that are compared
        fall=server.fall - jnp.where(accepted & ~first, check.rise, 0.0),
        start_variance=jnp.where(first, variance, server.start_variance),
        incumbent_variance=jnp.where(accepted, variance - server.incumbent_variance, server.incumbent_variance),
        units=jnp.where(first, units, server.units),
        perturbation=jnp.where(first, check.perturbation, server.perturbation),
        visible=jnp.where(first, check.perturbation, server.visible),
        third_order_variance=check.third_order_variance,
    )
    return trees.where(server.turn == 0, new, server)


def compare(
    settings: Settings, server: ServerState, flat: Array, risk: Array, fit: RiskFit, concentration: Array
) -> ServerState:
    """The state with the candidate ``flat`` as the best model, where its risk is lower; else the next step is shorter.

    ``concentration`` is the sum of squared weights: independent errors of clients average out by as much.
    """
    covariance = fit.own_covariance * concentration + fit.shared_covariance
    first = server.turn == settings.turns_before_newton
    better = first | (risk <= server.risk)
    shorter = jnp.where(better, server.step_share, server.step_share / constants.SHORTER_STEP)
    best, risk, gradient = trees.where(better, (flat, risk, fit.gradient), (server.best, server.risk, server.gradient))
    curvature, covariance = trees.where(
        first, (fit.curvature, covariance), (server.curvature, server.gradient_covariance)
    )
    return server._replace(
        best=best,
        risk=risk,
        gradient=gradient,
        curvature=curvature,
        gradient_covariance=covariance,
        step_share=jnp.where(first, 1.0, shorter),
    )


def bounds_of(problem: View, server: ServerState, unravel: Callable[[Array], Theta]) -> Bounds:
    """The model space and the trust region around the base."""

    longest = server.region
    if problem.max_change is not None:  # clients could not deploy what lies farther away
        longest = jnp.minimum(longest, problem.max_change.reach(server.base) / server.units)
    if isinstance(problem.project, Polyhedron):
        region = as_arrays(problem.project.region, server.base.dtype)
        steps = partial(LimitedSteps.from_models, region, server.base, server.units)
        return Bounds(steps(jnp.inf), steps(longest))

    def model_space(y: Array) -> Array:
        return (trees.ravel(problem.project(unravel(server.base + server.units * y))) - server.base) / server.units

    def trust_region(y: Array) -> Array:
        return model_space(jnp.clip(y, -longest, longest))

    return Bounds(model_space, trust_region)


def next_candidate(server: ServerState, bounds: Bounds) -> Array:
    """The model (d,) after a cautious Newton step from the best one, inside the trust region; none after a rise."""
    at, longest = best_step(server), server.step_share * server.region
    start = server.gradient - server.curvature @ at  # at the base, by the same quadratic
    target = minimise_cautiously(server.curvature, server.gradient_covariance, start, bounds.trust_region)
    step = target - at
    if isinstance(bounds.trust_region, LimitedSteps):  # a shorter one in the same direction keeps the limits
        step = step * jnp.minimum(1.0, longest / jnp.maximum(jnp.max(jnp.abs(step)), jnp.finfo(step.dtype).tiny))
    step = jnp.clip(step, -longest, longest) * server.accepted
    return server.base + server.units * bounds.trust_region(at + step)


def best_step(server: ServerState) -> Array:
    """The best model as a step from the base, (d,), in units."""
    return (server.best - server.base) / server.units


def close_round(settings: Settings, server: ServerState, bounds: Bounds) -> ServerState:
    """The state after the last turn: what is left to gain, and how much to explore for it.

    The expected excess is g' H^-1 g / 2 + tr(H^-1 C) / 2 over the parameters that the model space does not hold: of
    the others there is nothing to gain.
    """
    at, gradient = best_step(server), server.gradient
    inside_region = inactive_bounds(gradient, at, bounds.trust_region)
    doubt = constants.SURE * jnp.sqrt(jnp.maximum(jnp.diagonal(server.gradient_covariance), 0.0))
    movable = inactive_bounds(gradient, at, bounds.model_space) | (jnp.abs(gradient) <= doubt)  # not surely held
    axes, values = positive_eigenvalues(server.curvature, gradient)
    inverted, gradient = (axes / values) @ axes.T, gradient * movable
    uncertain = inverted @ (server.gradient_covariance * movable[:, None] * movable)
    unknown, known = jnp.trace(uncertain) / 2, gradient @ inverted @ gradient / 2
    if isinstance(bounds.model_space, LimitedSteps):  # the gradient may go on through a slanted face
        y = newton_turn(server.curvature, server.gradient, at, at, bounds.model_space) - at
        known = jnp.maximum(-(server.gradient @ y + y @ ((axes * values) @ axes.T) @ y / 2), 0.0)
    rounds = server.rounds + 1
    seen = server.risk_variance / rounds  # what is observed of the risk itself: a family may be wrong beyond that
    error = jnp.sqrt(jnp.maximum(jnp.sum(uncertain * uncertain.T), 0.0) / 2 + seen)
    cost = jnp.sum(values) / 2
    unnoticed = jnp.sqrt(server.risk_variance) / rounds
    size = perturbation_size(server, jnp.sqrt((settings.curiosity * unknown + unnoticed) / cost))
    promised = jnp.maximum(-server.risk, 0.0)
    forecast = Forecast(promised + known + unknown, error, promised + known + unknown / (rounds + 1.0), size**2 * cost)
    held = jnp.mean(~inside_region * 1.0)
    return server._replace(
        rounds=rounds, perturbation=size, held=held, trial=server.best - server.base, forecast=forecast
    )


def perturbation_size(server: ServerState, wanted: Array) -> Array:
    """The size of the next perturbation, () in units: the ``wanted`` one, as far as it does not blur the verdict.

    What a perturbation of size x costs is known up to a variance of x^2 tr(C). That is to be no more than the variance
    that the samples of a deployment give its mean loss anyhow: else a trial that is worse could pass. The less samples
    say, the further one may so explore. The first perturbation's size is allowed: f then moves visibly.
    """
    slope_variance = jnp.maximum(jnp.trace(server.gradient_covariance), jnp.finfo(wanted.dtype).tiny)
    hidden = jnp.sqrt(server.loss_variance / slope_variance)
    return jnp.minimum(wanted, jnp.maximum(hidden, server.visible))
