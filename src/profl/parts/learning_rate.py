"""A learning rate that the server finds from what the clients measure, free of units.

At a client

    theta_j <- theta_j + rate scale_j^2 (what the optimiser makes of the gradient, with a learning rate of one)

rate and scales are the server's and the same everywhere, so that they do not shift where the federation rests; with SGD
the step is free of units. Before the first mail both are zero: the first round only measures. A client reports the mean
of its gradients and of what it deployed, where they are the gradients; a copy of their sampling noise (the same mean
with the samples' signs alternating, in which what they have in common cancels); its own scales; how many steps it made.

At the server

In units of the common scales, with s the last move of what was deployed and y the change of the mean gradient that came
with it, whose sampling noise is known (clients report a copy of it), over the last few rounds:

    A = sum s.s,   B = sum s.y - (noise that s and y share),   C = sum y.y - (their noise)
    base = min(B / C, 1 / L) but at least a fifth of 1 / L,    L = sqrt(C / A)      (Barzilai and Borwein's second step)
    rate = SHARE base max(what of the gradient is no noise, 1 / (1 + rounds in which it was noise)) / R

Where the change of the gradient is within its noise, or the move was so short that it had to be, base stays, and grows
while the gradient itself stands out. It never grows more than ``GROWTH`` times in a round, and no round moves the model
by more than ``TRUST`` scales in root mean square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.parts.part import Exchange, Part, Step
from profl.parts.units import COMMON, some, theta_scales
from profl.problem.problem import View
from profl.server import entries
from profl.server.entries import Report
from profl.typing import Array, Batch, Key, Theta

MEMORY = 0.8  # of the sums, from round to round: the last five count
SMOOTH = 0.3  # weight of the newest gradient in the mean that is held against its noise
NOISE = 0.1  # weight of the newest copy of the noise in its mean square
FIRST = 0.1  # scales: the first move
TRUST = 2.0  # scales: the longest
GROWTH = 3.0  # of base in a round
SHARE = 0.7  # of base: room for what the last rounds did not show
CLEAR = 0.9  # share of the gradient that is no noise, above which base grows until curvature shows
PLAIN = 30.0  # times its noise: a change that shows curvature however short the move was that brought it
DOUBT = 0.5  # changes of the gradient below 1 + this times their noise show no curvature


class RateClient(NamedTuple):
    """What a client keeps; sums are over the steps of the round so far."""

    rate: Array  # (), the server's
    scales: Array  # (d,), the server's
    own_scales: Array  # (d,): this client's; zeros before its first batch
    gradient: Array  # (d,) sum
    noise: Array  # (d,) sum
    deployed: Array  # (d,) sum
    steps: Array  # ()


class RateMail(NamedTuple):
    rate: Array  # ()
    scales: Array  # (d,)


@dataclass(frozen=True)
class FoundLearningRate(Part):
    """Finds the learning rate during the run; the optimiser's is then "auto"."""

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
        return begin(trees.ravel(theta))

    def combine(self, view: View, server: RateServer, exchange: Exchange) -> tuple[RateServer, RateMail]:
        flat, reports = trees.ravel(exchange.theta), exchange.reports
        values = {name: reports[name] for name in ("gradient", "gradient_noise", "deployed")}
        values["scales"] = jnp.log(jnp.maximum(reports["scales"], jnp.finfo(flat.dtype).tiny))
        centre = {**dict.fromkeys(values, 0 * flat), "deployed": flat}
        common = {name: exchange.combine(values[name], centre[name]) for name in values}
        steps = jnp.max(jnp.where(exchange.accepted, reports["steps"], 1))
        measured = (common["deployed"], common["gradient"], common["gradient_noise"], jnp.exp(common["scales"]))
        rate, server = update(server, *measured, steps)
        return server, trees.repeat(RateMail(rate, server.scales), len(exchange.weights))


def add_gradient(view: View, state: RateClient, step: Step) -> RateClient:
    """The state with one more gradient in its sums."""
    losses = jax.vmap(view.loss, (None, 0))
    signs = jnp.where(jnp.arange(step.weights.shape[0]) % 2, 1.0, -1.0).astype(step.weights.dtype)
    noise = jax.grad(lambda t: (step.weights * signs) @ losses(t, step.batch))(step.deployed)
    few = some(step.batch, step.weights)
    own = trees.cond_or_keep(
        jnp.all(state.own_scales == 0),
        lambda theta: theta_scales(view, theta, *few(), COMMON),
        state.own_scales,
        step.deployed,
    )
    pairs = zip((state.gradient, state.noise, state.deployed), (step.gradient, noise, step.deployed), strict=True)
    gradients, noises, models = (old + trees.ravel(new) for old, new in pairs)
    return RateClient(state.rate, state.scales, own, gradients, noises, models, state.steps + 1)


class RateServer(NamedTuple):
    """What the server keeps for it."""

    scales: Array  # (d,)
    theta: Array  # (d,): the mean of what was deployed in the last round
    gradient: Array  # (d,): in units of the scales, as what follows
    noise: Array  # () its square
    mean: Array  # (d,): smoothed gradient
    mean_noise: Array  # () smoothed square of the noise
    sums: Array  # (4,): A, B, C with its noise, the noise in C
    base: Array  # ()
    calm: Array  # () rounds in which the gradient was noise
    step: Array  # () rate times R of the last round
    rounds: Array  # () int32


def begin(theta: Array) -> RateServer:
    zeros, nothing = jnp.zeros_like(theta), jnp.zeros((), theta.dtype)
    numbers = jnp.zeros(4, theta.dtype), nothing, nothing, nothing
    return RateServer(zeros, zeros, zeros, nothing, zeros, nothing, *numbers, jnp.int32(0))


def update(
    state: RateServer, theta: Array, gradient: Array, noise: Array, scales: Array, steps: Array
) -> tuple[Array, RateServer]:
    """The rate of the next round's R = ``steps`` steps, once ``gradient`` was found around ``theta``."""
    first = state.rounds == 0
    scales = jnp.where(first, scales, state.scales)
    now, noise2 = scales * gradient, jnp.sum((scales * noise) ** 2)
    size = jnp.sqrt(jnp.sum(now**2)) + jnp.finfo(now.dtype).tiny
    root = jnp.sqrt(jnp.asarray(now.shape[0], now.dtype))

    s, y = (theta - state.theta) / scales, now - state.gradient
    seen = jnp.stack([s @ s, s @ y - state.step * state.noise, y @ y, noise2 + state.noise])
    sums = jnp.where(state.rounds < 2, 0.0, MEMORY * state.sums + seen)  # the first round moved nothing
    sums = jnp.where(state.rounds == 1, seen, sums)
    moved, along, changed, blur = sums
    bend = changed - blur
    telling = (blur * state.base**2 < moved) | (bend > PLAIN * blur)  # would a curvature of 1 / base show?
    shown = (bend > DOUBT * blur) & (moved > 0) & telling
    longest = jnp.sqrt(moved / jnp.where(shown, bend, 1.0))  # 1 / L
    secant = jnp.clip(along / jnp.where(shown, bend, 1.0), 0.2 * longest, longest)

    weight = jnp.where(first, 1.0, SMOOTH)
    mean = state.mean + weight * (now - state.mean)
    mean_noise = state.mean_noise + jnp.where(first, 1.0, NOISE) * (noise2 - state.mean_noise)
    left = jnp.maximum(SMOOTH / (2 - SMOOTH), (1 - SMOOTH) ** (2.0 * state.rounds))  # of a gradient's noise, in mean
    clear = jnp.clip(1 - left * mean_noise / (jnp.sum(mean**2) + jnp.finfo(now.dtype).tiny), 0.0, 1.0)
    calm = state.calm + (1 - clear)

    kept = state.base * jnp.where(clear > CLEAR, 1.5, 1.0)
    base = jnp.where(first, FIRST * root / size, jnp.clip(jnp.where(shown, secant, kept), 0.0, GROWTH * state.base))
    step = SHARE * base * jnp.maximum(clear, 1 / (1 + calm))
    step = jnp.minimum(step, TRUST * root / size)
    known = (mean, mean_noise, sums, base, calm, step, state.rounds + 1)
    return step / jnp.maximum(steps, 1), RateServer(scales, theta, now, noise2, *known)
