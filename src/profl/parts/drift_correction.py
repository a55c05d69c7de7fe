"""Control variates against the drift of clients between two averages (SCAFFOLD; Karimireddy et al. 2020).

Not in the paper.

    g <- g - own + common

own is the mean of a client's gradients over its last round, common the aggregate of all clients' means in that round.
At the point where the aggregate of all gradients is zero every client then stands still; without the correction each
moves towards a point of its own, and the average after R steps lies elsewhere. With the mean as the rule and all
clients present, the corrections sum to zero: they change the clients' paths, not the first step of the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.parts.part import Exchange, Part, Step
from profl.problem.problem import View
from profl.server import entries
from profl.server.entries import Report
from profl.typing import Array, Batch, Key, Theta

CORRECTIONS = ("scaffold",)


class ControlVariates(NamedTuple):
    """The state of a client; zeros until its first round has been combined."""

    own: Theta
    common: Theta
    total: Theta  # of the gradients of this round so far
    steps: Array  # () how many they are


@dataclass(frozen=True)
class DriftCorrection(Part):
    """Control variates; ``correction`` is "scaffold". Not in the paper."""

    correction: str = "scaffold"

    combined = ("control",)
    draws = False

    def __post_init__(self) -> None:
        checks.one_of("correction", self.correction, CORRECTIONS)

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("gradient",)

    def init(self, view: View, theta: Theta, batch: Batch) -> ControlVariates:
        zeros = zeros_like(theta)
        return ControlVariates(zeros, zeros, zeros, jnp.zeros(()))

    def update(self, view: View, state: ControlVariates, step: Step, key: Key) -> tuple[Step, ControlVariates]:
        total = jax.tree.map(jnp.add, state.total, step.gradient)
        follow = jax.tree.map(lambda g, own, common: g - own + common, step.gradient, state.own, state.common)
        return step._replace(gradient=follow), state._replace(total=total, steps=state.steps + 1)

    def report(self, view: View, state: ControlVariates, theta: Theta) -> Report:
        return {"control": entries.gradient(mean_gradient(state))}

    def receive(self, view: View, state: ControlVariates, mail: Theta) -> ControlVariates:
        zeros = zeros_like(mail)
        return ControlVariates(mean_gradient(state), mail, zeros, jnp.zeros(()))

    def mail_like(self, view: View, state: ControlVariates) -> Theta:
        return state.common

    def open(self, view: View, theta: Theta) -> Theta:
        """The gradient that all reports have in common."""
        return zeros_like(theta)

    def combine(self, view: View, server: Theta, exchange: Exchange) -> tuple[Theta, Theta]:
        common = exchange.combine("control", server)
        return common, trees.repeat(common, len(exchange.weights))


def zeros_like(theta: Theta) -> Theta:
    """Zeros, a pytree like theta."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), theta)


def mean_gradient(control: ControlVariates) -> Theta:
    """The mean of the round's gradients: what a client reports."""
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(control.steps, 1).astype(leaf.dtype), control.total)
