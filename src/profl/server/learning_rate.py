"""A learning rate that is found: one for all clients, from what their gradients did when the model moved.

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

from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array

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


class Rate(NamedTuple):
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


def begin(theta: Array) -> Rate:
    zeros, nothing = jnp.zeros_like(theta), jnp.zeros((), theta.dtype)
    numbers = jnp.zeros(4, theta.dtype), nothing, nothing, nothing
    return Rate(zeros, zeros, zeros, nothing, zeros, nothing, *numbers, jnp.int32(0))


def update(state: Rate, theta: Array, gradient: Array, noise: Array, scales: Array, steps: Array) -> tuple[Array, Rate]:
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
    return step / jnp.maximum(steps, 1), Rate(scales, theta, now, noise2, *known)
