"""A learning rate that the server chooses from what clients observe, free of units; not in the paper.

At a client

    theta_j <- theta_j + rate scale_j^2 (the optimiser's update at a learning rate of one)

Rate and scales are the server's and the same everywhere, so that they do not shift where the federation rests; with SGD
the step is free of units. Before the first mail both are zero: the first round only measures. A client reports the mean
of its gradients and of the models that it deployed, at which they were taken; a copy of their sampling noise (the same
mean with the samples' signs alternating, in which their common part cancels); 1 / scale^2 of its batches; by how much
its loss differs from that at the incumbent, with the squared standard error. The server sends what all steps of a round
take together; how many they are, a client knows itself.

At the server

In units of the common scales, with s the last move of the deployed models and y the change of the mean gradient that
came with it, whose sampling noise is known (clients report a copy of it), over the last few rounds:

    A = sum s.s,   B = sum s.y - (noise that s and y share),   C = sum y.y - (their noise)
    base = min(B / C, 1 / L) but at least a fifth of 1 / L,    L = sqrt(C / A)      (Barzilai and Borwein's second step)
    R rate = SECANT_SHARE base max(share of the gradient that is no noise, 1 / (1 + rounds in which it was noise))

Base stays where the last moves were so short that a curvature of 1 / base would be lost in the noise; it grows where
such a curvature would have shown and did not. No round moves the model farther than the radius of a trust region.

The incumbent is the model with the least observed risk. A round in which the risk was higher, by more than ``ERRORS``
standard errors, is taken back: the next one starts from the incumbent, a shorter step along its gradient, and the
radius falls. Otherwise the radius is at least ``FACTOR`` times the last move. The round after a return also measures
the incumbent's risk again, because the least of many noisy risks is too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.parts.part import Exchange, Part, Step
from profl.parts.units import MEAN_SLOPE_SHARE, first_samples, theta_scales
from profl.problem.problem import View
from profl.server import entries
from profl.server.entries import Report
from profl.typing import Array, Batch, Key, Theta

MEMORY = 0.8  # share of a mean over rounds that is left after one more: it averages about five
FIRST_MOVE = 0.1  # length of the first move, in scales
FACTOR = 2.0  # by which the longest move grows at most in a round, and falls when one is taken back
SECANT_SHARE = 0.7  # share of the secant step that is used: a margin for curvature that the last rounds did not show
LEAST_SECANT = 0.2  # least secant step, as a share of 1 / L
ERRORS = 2.0  # a rise of the observed risk by more than so many standard errors is taken back


class RateClient(NamedTuple):
    """The state of a client; sums are over the steps of the round so far."""

    rate: Array  # (), the server's
    scales: Array  # (d,), the server's
    steepness: Array  # (d,) sum: 1 / scale^2 of this client's batch
    gradient: Array  # (d,) sum
    noise: Array  # (d,) sum
    deployed: Array  # (d,) sum
    loss: Array  # (2,) sum: the mean loss of a batch, its squared standard error
    reference: Array  # (3,): the mean loss at the incumbent, its squared standard error, in how many rounds
    steps: Array  # ()


class RateMail(NamedTuple):
    """The length of a round and the scales that the server sends, and what it decided about the last round."""

    step: Array  # (): R times the learning rate of the next round's R steps
    scales: Array  # (d,)
    decision: Array  # (2,) bool: whether its model is the incumbent; whether it measured the incumbent again


@dataclass(frozen=True)
class FoundLearningRate(Part):
    """Chooses the learning rate during the run, where the optimiser's is "auto"; not in the paper.

    Args:
      descends: whether steps follow the gradient of the deployed risk, so that one that raises it is a mistake.
    """

    descends: bool = True

    combined = ("gradient", "gradient_noise", "steepness", "deployed", "loss_change", "loss_error")
    info = ("rate",)
    rereads = True
    draws = False

    def settings(self) -> dict[str, Any]:
        return {}  # the optimiser states "auto"

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("gradient",)

    def init(self, view: View, theta: Theta, batch: Batch) -> RateClient:
        flat = ravel_pytree(theta)[0]
        zeros, nothing = jnp.zeros_like(flat), jnp.zeros((), flat.dtype)
        numbers = jnp.zeros(2, flat.dtype), jnp.zeros(3, flat.dtype), nothing
        return RateClient(nothing, zeros, zeros, zeros, zeros, zeros, *numbers)

    def update(self, view: View, state: RateClient, step: Step, key: Key) -> tuple[Step, RateClient]:
        new = add_gradient(view, state, step)
        flat, unravel = ravel_pytree(step.theta)
        scale = unravel((new.rate * new.scales**2).astype(flat.dtype))
        info = {**step.info, "rate": new.rate}
        return step._replace(update_scale=scale, learning_rate=new.rate, info=info), new

    def report(self, view: View, state: RateClient, theta: Theta) -> Report:
        steps = jnp.maximum(state.steps, 1)
        change = state.loss[0] / steps - state.reference[0]
        error = state.loss[1] / steps**2 + state.reference[1]
        return {
            "gradient": entries.gradient(state.gradient / steps),
            "gradient_noise": entries.gradient(state.noise / steps),
            "deployed": entries.statistic(state.deployed / steps),
            "steepness": entries.statistic(state.steepness / steps),
            "loss_change": entries.statistic(jnp.where(state.reference[2] > 0, change, 0.0)),
            "loss_error": entries.statistic(error),
        }

    def receive(self, view: View, state: RateClient, mail: RateMail) -> RateClient:
        zeros, none = jnp.zeros_like(mail.scales), jnp.zeros_like(mail.step)
        reference, rate = next_reference(state, *mail.decision), mail.step / jnp.maximum(state.steps, 1)
        return RateClient(rate, mail.scales, *4 * (zeros,), jnp.zeros_like(state.loss), reference, none)

    def mail_like(self, view: View, state: RateClient) -> RateMail:
        return RateMail(state.rate, state.scales, jnp.zeros(2, bool))

    def open(self, view: View, theta: Theta) -> RateServer:
        return initial_server_state(trees.ravel(theta))

    def combine(self, view: View, server: RateServer, exchange: Exchange) -> tuple[RateServer, RateMail]:
        flat, unravel = ravel_pytree(exchange.theta)
        centre = dict.fromkeys(("gradient", "gradient_noise", "steepness"), 0 * flat)
        centre |= {"deployed": flat, "loss_change": jnp.zeros((), flat.dtype)}
        common = {name: exchange.combine(name, centre[name]) for name in centre}

        first, change = server.rounds == 0, common["loss_change"]
        rose = ~first & ~(change <= ERRORS * standard_error(exchange, change)) & self.descends
        fell = first | (change < 0) | (not self.descends)
        again = server.taken_back & ~fell
        server = server._replace(
            incumbent=jnp.where(fell, flat, server.incumbent),
            incumbent_gradient=jnp.where(fell, common["gradient"], server.incumbent_gradient),
            taken_back=rose,
        )
        measured = (common["deployed"], common["gradient"], common["gradient_noise"], common["steepness"])
        server = next_step(server, *measured)
        shorter = server.incumbent - server.step * server.scales**2 * server.incumbent_gradient
        server = server._replace(restart=trees.ravel(view.project(unravel(shorter))))
        mail = RateMail(server.step, server.scales, jnp.stack([fell, again]))
        return server, trees.repeat(mail, len(exchange.weights))

    def combined_model(self, server: RateServer, theta: Theta, sent: Theta) -> Theta:
        flat, unravel = ravel_pytree(theta)
        return unravel(jnp.where(server.taken_back, server.restart, flat))


def next_reference(state: RateClient, is_incumbent: Array, again: Array) -> Array:
    """The client's mean loss at the incumbent after a round, with its squared standard error and rounds, (3,).

    What a round measures ``again`` counts by at most ``ERRORS`` standard errors, because it was a step away.
    """
    steps = jnp.maximum(state.steps, 1)
    loss, error = state.loss[0] / steps, state.loss[1] / steps**2
    old, old_error, rounds = state.reference
    most = ERRORS * jnp.sqrt(error + old_error)
    mean = old + jnp.clip(loss - old, -most, most) / (rounds + 1)
    averaged = jnp.stack([mean, (rounds**2 * old_error + error) / (rounds + 1) ** 2, rounds + 1])
    reference = jnp.where(again & (rounds > 0), averaged, state.reference)
    reference = jnp.where(is_incumbent, jnp.stack([loss, error, jnp.ones_like(loss)]), reference)
    return jnp.where(state.steps > 0, reference, state.reference)


def standard_error(exchange: Exchange, change: Array) -> Array:
    """The standard error of the combined change of the loss, ().

    Of a client it is at least how far its change is from the common one: with one sample a batch it knows no error.
    """
    changes, errors = exchange.reports["loss_change"], exchange.reports["loss_error"]
    squares = jnp.maximum(errors, (changes - change) ** 2)
    weights = jnp.where(exchange.accepted, exchange.weights, 0.0)
    square = exchange.combine_values(squares, jnp.zeros_like(change))
    return jnp.sqrt(square * jnp.sum(weights**2)) / jnp.sum(weights)


def add_gradient(view: View, state: RateClient, step: Step) -> RateClient:
    """The state with one more gradient in its sums."""
    losses = jax.vmap(view.loss, (None, 0))
    signs = jnp.where(jnp.arange(step.weights.shape[0]) % 2, 1.0, -1.0).astype(step.weights.dtype)
    noise = jax.grad(lambda t: (step.weights * signs) @ losses(t, step.batch))(step.deployed)
    samples, weights = first_samples(step.batch, step.weights)
    scales = theta_scales(view, step.deployed, samples, weights, MEAN_SLOPE_SHARE)
    each = losses(step.deployed, step.batch)
    mean = step.weights @ each
    share = jnp.sum(step.weights**2)
    error = step.weights**2 @ (each - mean) ** 2 / jnp.where(share < 1, 1 - share, 1.0)
    explored = trees.ravel(step.deployed) - trees.ravel(step.theta)
    error += (trees.ravel(step.gradient) @ explored) ** 2  # of the loss at theta
    pairs = zip((state.gradient, state.noise, state.deployed), (step.gradient, noise, step.deployed), strict=True)
    gradients, noises, models = (old + trees.ravel(new) for old, new in pairs)
    loss = state.loss + jnp.stack([mean, error])
    sums = (gradients, noises, models, loss, state.reference, state.steps + 1)
    return RateClient(state.rate, state.scales, state.steepness + scales**-2.0, *sums)


class RateServer(NamedTuple):
    """The state of the server."""

    scales: Array  # (d,)
    steepness: Array  # (d,): 1 / scale^2, smoothed
    theta: Array  # (d,): the mean of what was deployed in the last round
    gradient: Array  # (d,)
    noise: Array  # () its square, in units of the scales
    mean: Array  # (d,): smoothed gradient
    mean_noise: Array  # () smoothed square of the noise
    sums: Array  # (4,): A, B, C with its noise, the noise in C
    base: Array  # ()
    radius: Array  # () longest move
    noisy_rounds: Array  # () rounds in which the gradient was noise
    step: Array  # () rate times R of the last round
    rounds: Array  # () int32
    incumbent: Array  # (d,): the model with the least observed risk
    incumbent_gradient: Array  # (d,): there
    taken_back: Array  # () bool: whether the last round is taken back
    restart: Array  # (d,): the model to go on with then


def initial_server_state(theta: Array) -> RateServer:
    """The server's state before the first round, for flat models like ``theta`` (d,)."""
    zeros, nothing = jnp.zeros_like(theta), jnp.zeros((), theta.dtype)
    numbers = jnp.zeros(4, theta.dtype), nothing, nothing + FIRST_MOVE, nothing, nothing, jnp.int32(0)
    return RateServer(
        zeros, zeros, zeros, zeros, nothing, zeros, nothing, *numbers, zeros, zeros, jnp.asarray(False), zeros
    )


def next_step(state: RateServer, theta: Array, gradient: Array, noise: Array, steepness: Array) -> RateServer:
    """The next state, whose ``step`` is R times the rate of the next round's R steps.

    ``gradient`` (d,) is the mean gradient around ``theta`` (d,), ``noise`` (d,) a copy of its sampling noise. After
    a round that is taken back the next step is the incumbent's.
    """
    first = state.rounds == 0
    weight = jnp.maximum(1 - MEMORY, 1 / (1.0 + state.rounds))
    steepness = state.steepness + weight * (steepness - state.steepness)
    scales = jax.lax.rsqrt(jnp.maximum(steepness, jnp.finfo(steepness.dtype).tiny))
    scales = scales * jnp.exp(jnp.mean(jnp.log(jnp.where(first, scales, state.scales)) - jnp.log(scales)))  # same size
    noise2 = jnp.sum((scales * noise) ** 2)
    tiny = jnp.finfo(scales.dtype).tiny
    root = jnp.sqrt(jnp.asarray(scales.shape[0], scales.dtype))

    s, y = (theta - state.theta) / scales, scales * (gradient - state.gradient)
    new_sums = jnp.stack([s @ s, s @ y - state.step * state.noise, y @ y, noise2 + state.noise])
    sums = jnp.where(state.rounds < 1, 0.0, MEMORY * state.sums + new_sums)
    base = jnp.where(first, 0.0, secant_step(sums, state.base))

    mean = state.mean + weight * (gradient - state.mean)
    mean_noise = state.mean_noise + weight * (noise2 - state.mean_noise)
    noise_left = weight / (2 - weight)  # share of one gradient's noise in the mean
    clear = jnp.clip(1 - noise_left * mean_noise / (jnp.sum((scales * mean) ** 2) + tiny), 0.0, 1.0)
    noisy_rounds = state.noisy_rounds + (1 - clear)

    move = state.step * jnp.sqrt(jnp.sum((scales * state.gradient) ** 2)) / root
    radius = jnp.where(
        state.taken_back, jnp.minimum(state.radius, move) / FACTOR, jnp.maximum(state.radius, FACTOR * move)
    )
    used = jnp.where(state.taken_back, state.incumbent_gradient, gradient)
    size = jnp.sqrt(jnp.sum((scales * used) ** 2)) + tiny
    base = jnp.where(first, FIRST_MOVE * root / size, base)
    step = SECANT_SHARE * base * jnp.maximum(clear, 1 / (1 + noisy_rounds))
    step = jnp.minimum(step, radius * root / size)
    measured = {"scales": scales, "steepness": steepness, "theta": theta, "gradient": gradient, "noise": noise2}
    means = {"mean": mean, "mean_noise": mean_noise, "sums": sums, "noisy_rounds": noisy_rounds}
    return state._replace(**measured, **means, base=base, radius=radius, step=step, rounds=state.rounds + 1)


def secant_step(sums: Array, base: Array) -> Array:
    """The next base, (), from the last one and the sums (A, B, C with its noise, the noise in C)."""
    move2, along, change2, noise2 = sums
    beyond_noise = change2 - noise2
    would_show = noise2 * base**2 < move2  # a curvature of 1 / base
    has_curvature = would_show & (beyond_noise > noise2)
    ratio = along / jnp.where(has_curvature, beyond_noise, 1.0)
    longest = jnp.sqrt(move2 / jnp.where(has_curvature, beyond_noise, 1.0))  # 1 / L
    without_curvature = jnp.where(would_show, FACTOR * base, base)
    return jnp.where(has_curvature, jnp.clip(ratio, LEAST_SECANT * longest, longest), without_curvature)
