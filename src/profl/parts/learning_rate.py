"""A learning rate that the server chooses from the gradients that clients measure, free of units; not in the paper.

At a client

    theta_j <- theta_j + rate scale_j^2 (the optimiser's update at a learning rate of one)

Rate and scales are the server's and the same everywhere, so that they do not shift where the federation rests; with SGD
the step is free of units. Before the first mail both are zero: the first round only measures. A client reports the mean
of its gradients and of the models that it deployed, at which they were taken; a copy of their sampling noise (the same
mean with the samples' signs alternating, in which their common part cancels); its own scales; how many steps it made.

At the server

In units of the common scales, with s the last move of the deployed models and y the change of the mean gradient that
came with it, whose sampling noise is known (clients report a copy of it), over the last few rounds:

    A = sum s.s,   B = sum s.y - (noise that s and y share),   C = sum y.y - (their noise)
    base = min(B / C, 1 / L) but at least a fifth of 1 / L,    L = sqrt(C / A)      (Barzilai and Borwein's second step)
    rate = BASE_SHARE base max(share of the gradient that is no noise, 1 / (1 + rounds in which it was noise)) / R

Where the change of the gradient is within its noise, or the move was so short that it had to be, base stays, and grows
while the gradient exceeds its noise. It never grows more than ``LARGEST_BASE_GROWTH`` times in a round, and no round
moves the model by more than ``LONGEST_MOVE`` scales in root mean square.
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

SUMS_DECAY = 0.8  # share of the sums A, B and C that is left after a round: they average about five
GRADIENT_RATE = 0.3  # weight of the newest gradient in the mean gradient, which is compared with its noise
NOISE_SQUARE_RATE = 0.1  # weight of the newest copy of the noise in its mean square
FIRST_MOVE = 0.1  # length of the first move, in scales
LONGEST_MOVE = 2.0  # length of the longest move in a round, in scales
LARGEST_BASE_GROWTH = 3.0  # factor by which base grows in a round at most
BASE_SHARE = 0.7  # share of base that is used: a margin for curvature that the last rounds did not show
LEAST_SECANT = 0.2  # least base, as a share of 1 / L
CLEAR_SHARE = 0.9  # share of the gradient that is no noise, above which base grows until curvature shows
CLEAR_GROWTH = 1.5  # factor by which base then grows
EVIDENT_CHANGE = 30.0  # a squared change of the gradient this many times its noise shows curvature after any move
LEAST_CHANGE = 0.5  # a squared change of the gradient below 1 + this times its noise shows no curvature


class RateClient(NamedTuple):
    """The state of a client; sums are over the steps of the round so far."""

    rate: Array  # (), the server's
    scales: Array  # (d,), the server's
    own_scales: Array  # (d,): this client's; zeros before its first batch
    gradient: Array  # (d,) sum
    noise: Array  # (d,) sum
    deployed: Array  # (d,) sum
    steps: Array  # ()


class RateMail(NamedTuple):
    """The learning rate and the scales that the server sends."""

    rate: Array  # ()
    scales: Array  # (d,)


@dataclass(frozen=True)
class FoundLearningRate(Part):
    """Chooses the learning rate during the run, where the optimiser's is "auto"; not in the paper."""

    info = ("rate",)
    rereads = True

    def settings(self) -> dict[str, Any]:
        return {}  # the optimiser states "auto"

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("gradient",)

    def init(self, view: View, theta: Theta, batch: Batch) -> RateClient:
        flat = ravel_pytree(theta)[0]
        zeros, nothing = jnp.zeros_like(flat), jnp.zeros((), flat.dtype)
        return RateClient(nothing, zeros, zeros, zeros, zeros, zeros, nothing)

    def update(self, view: View, state: RateClient, step: Step, key: Key) -> tuple[Step, RateClient]:
        new = add_gradient(view, state, step)
        flat, unravel = ravel_pytree(step.theta)
        scale = unravel((new.rate * new.scales**2).astype(flat.dtype))
        info = {**step.info, "rate": new.rate}
        return step._replace(update_scale=scale, learning_rate=new.rate, info=info), new

    def report(self, view: View, state: RateClient, theta: Theta) -> Report:
        steps = jnp.maximum(state.steps, 1)
        return {
            "gradient": entries.gradient(state.gradient / steps),
            "gradient_noise": entries.gradient(state.noise / steps),
            "deployed": entries.statistic(state.deployed / steps),
            "scales": entries.statistic(state.own_scales),
            "steps": entries.count(state.steps),
        }

    def receive(self, view: View, state: RateClient, mail: RateMail) -> RateClient:
        zeros = jnp.zeros_like(mail.scales)
        return RateClient(mail.rate, mail.scales, state.own_scales, zeros, zeros, zeros, jnp.zeros_like(mail.rate))

    def mail_like(self, view: View, state: RateClient) -> RateMail:
        return RateMail(state.rate, state.scales)

    def open(self, view: View, theta: Theta) -> RateServer:
        return initial_server_state(trees.ravel(theta))

    def combine(self, view: View, server: RateServer, exchange: Exchange) -> tuple[RateServer, RateMail]:
        flat, reports = trees.ravel(exchange.theta), exchange.reports
        values = {name: reports[name] for name in ("gradient", "gradient_noise", "deployed")}
        values["scales"] = jnp.log(jnp.maximum(reports["scales"], jnp.finfo(flat.dtype).tiny))
        centre = {**dict.fromkeys(values, 0 * flat), "deployed": flat}
        common = {name: exchange.combine(values[name], centre[name]) for name in values}
        steps = jnp.max(jnp.where(exchange.accepted, reports["steps"], 1))
        measured = (common["deployed"], common["gradient"], common["gradient_noise"], jnp.exp(common["scales"]))
        rate, server = next_rate(server, *measured, steps)
        return server, trees.repeat(RateMail(rate, server.scales), len(exchange.weights))


def add_gradient(view: View, state: RateClient, step: Step) -> RateClient:
    """The state with one more gradient in its sums."""
    losses = jax.vmap(view.loss, (None, 0))
    signs = jnp.where(jnp.arange(step.weights.shape[0]) % 2, 1.0, -1.0).astype(step.weights.dtype)
    noise = jax.grad(lambda t: (step.weights * signs) @ losses(t, step.batch))(step.deployed)
    samples = first_samples(step.batch, step.weights)
    own = trees.cond_or_keep(
        jnp.all(state.own_scales == 0),
        lambda theta: theta_scales(view, theta, *samples(), MEAN_SLOPE_SHARE),
        state.own_scales,
        step.deployed,
    )
    pairs = zip((state.gradient, state.noise, state.deployed), (step.gradient, noise, step.deployed), strict=True)
    gradients, noises, models = (old + trees.ravel(new) for old, new in pairs)
    return RateClient(state.rate, state.scales, own, gradients, noises, models, state.steps + 1)


class RateServer(NamedTuple):
    """The state of the server."""

    scales: Array  # (d,)
    theta: Array  # (d,): the mean of what was deployed in the last round
    gradient: Array  # (d,): in units of the scales, as what follows
    noise: Array  # () its square
    mean: Array  # (d,): smoothed gradient
    mean_noise: Array  # () smoothed square of the noise
    sums: Array  # (4,): A, B, C with its noise, the noise in C
    base: Array  # ()
    noisy_rounds: Array  # () rounds in which the gradient was noise
    step: Array  # () rate times R of the last round
    rounds: Array  # () int32


def initial_server_state(theta: Array) -> RateServer:
    """The server's state before the first round, for flat models like ``theta`` (d,)."""
    zeros, nothing = jnp.zeros_like(theta), jnp.zeros((), theta.dtype)
    numbers = jnp.zeros(4, theta.dtype), nothing, nothing, nothing
    return RateServer(zeros, zeros, zeros, nothing, zeros, nothing, *numbers, jnp.int32(0))


def next_rate(
    state: RateServer, theta: Array, gradient: Array, noise: Array, scales: Array, steps: Array
) -> tuple[Array, RateServer]:
    """The rate of the next round's R = ``steps`` steps, (), and the next state.

    ``gradient`` (d,) is the mean gradient around ``theta`` (d,), ``noise`` (d,) a copy of its sampling noise.
    """
    first = state.rounds == 0
    scales = jnp.where(first, scales, state.scales)
    scaled, noise2 = scales * gradient, jnp.sum((scales * noise) ** 2)
    tiny = jnp.finfo(scaled.dtype).tiny
    size = jnp.sqrt(jnp.sum(scaled**2)) + tiny
    root = jnp.sqrt(jnp.asarray(scaled.shape[0], scaled.dtype))

    s, y = (theta - state.theta) / scales, scaled - state.gradient
    new_sums = jnp.stack([s @ s, s @ y - state.step * state.noise, y @ y, noise2 + state.noise])
    sums = jnp.where(state.rounds < 2, 0.0, SUMS_DECAY * state.sums + new_sums)  # the first round moved nothing
    sums = jnp.where(state.rounds == 1, new_sums, sums)
    has_curvature, secant = secant_step(sums, state.base)

    weight = jnp.where(first, 1.0, GRADIENT_RATE)
    mean = state.mean + weight * (scaled - state.mean)
    mean_noise = state.mean_noise + jnp.where(first, 1.0, NOISE_SQUARE_RATE) * (noise2 - state.mean_noise)
    at_start = (1 - GRADIENT_RATE) ** (2.0 * state.rounds)
    noise_left = jnp.maximum(GRADIENT_RATE / (2 - GRADIENT_RATE), at_start)  # share of one gradient's noise in the mean
    clear = jnp.clip(1 - noise_left * mean_noise / (jnp.sum(mean**2) + tiny), 0.0, 1.0)
    noisy_rounds = state.noisy_rounds + (1 - clear)

    without_curvature = state.base * jnp.where(clear > CLEAR_SHARE, CLEAR_GROWTH, 1.0)
    base = jnp.clip(jnp.where(has_curvature, secant, without_curvature), 0.0, LARGEST_BASE_GROWTH * state.base)
    base = jnp.where(first, FIRST_MOVE * root / size, base)
    step = BASE_SHARE * base * jnp.maximum(clear, 1 / (1 + noisy_rounds))
    step = jnp.minimum(step, LONGEST_MOVE * root / size)
    averages = (mean, mean_noise, sums, base, noisy_rounds, step, state.rounds + 1)
    return step / jnp.maximum(steps, 1), RateServer(scales, theta, scaled, noise2, *averages)


def secant_step(sums: Array, base: Array) -> tuple[Array, Array]:
    """Whether the sums (A, B, C with its noise, the noise in C) show curvature, () bool, and the step by it, ()."""
    move2, along, change2, noise2 = sums
    beyond_noise = change2 - noise2
    would_show = (noise2 * base**2 < move2) | (beyond_noise > EVIDENT_CHANGE * noise2)  # a curvature of 1 / base
    has_curvature = (beyond_noise > LEAST_CHANGE * noise2) & (move2 > 0) & would_show
    longest = jnp.sqrt(move2 / jnp.where(has_curvature, beyond_noise, 1.0))  # 1 / L
    ratio = along / jnp.where(has_curvature, beyond_noise, 1.0)
    return has_curvature, jnp.clip(ratio, LEAST_SECANT * longest, longest)
