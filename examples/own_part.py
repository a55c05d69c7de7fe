"""A part of one's own: gradients no longer than is usual in the federation, with a memory and a server half.

Each client reports the mean length of its gradients; the server combines these under the method's rule and sends the
result back; in the next round a gradient longer than ``times`` that is shortened.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import profl
from profl import parts, trees
from profl.server import entries


class Lengths(NamedTuple):
    usual: Any  # () in the federation, 0 before the first mail
    mean: Any  # () of this client's gradients so far
    count: Any  # () how many they are


@dataclass(frozen=True)
class ClippedGradient(parts.Part):
    times: float = 2.0
    info = ("clipped",)
    combined = ("gradient_length",)

    def reads(self, problem):
        return ("gradient",)

    def init(self, view, theta, batch):
        return Lengths(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def update(self, view, state, step, key):
        length = trees.norm(step.gradient)
        limit = jnp.where(state.usual > 0, self.times * state.usual, jnp.inf)
        factor = jnp.minimum(1.0, limit / jnp.maximum(length, 1e-30))
        mean = (state.count * state.mean + length) / (state.count + 1)
        gradient = jax.tree.map(lambda g: factor * g, step.gradient)
        info = {**step.info, "clipped": (factor < 1).astype(float)}
        return step._replace(gradient=gradient, info=info), Lengths(state.usual, mean, state.count + 1)

    def report(self, view, state, theta):
        return {"gradient_length": entries.statistic(state.mean)}

    def receive(self, view, state, mail):
        return state._replace(usual=mail)

    def mail_like(self, view, state):
        return state.usual

    def combine(self, view, server, exchange):
        return server, trees.repeat(exchange.combine("gradient_length", jnp.zeros(())), len(exchange.weights))


def clipped_pfl(learning_rate=0.01, times=2.0):
    step = parts.PlainGradient(), ClippedGradient(times), parts.Optimiser(learning_rate)
    return profl.chain(*step, parts.Averaging("median"), name="clipped")
