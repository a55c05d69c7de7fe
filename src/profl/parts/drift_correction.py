"""Control variates: clients that differ stay together between two averages (SCAFFOLD; Karimireddy et al. 2020).

    g <- g - own + common

own is the mean of a client's gradients over its last round, common what the server's rule made of everybody's in that
round. At the point where the rule of all gradients is zero every client then stands still; without the correction each
sets out for a point of its own, and the average of where they get to in R steps is another one. With the mean as the
rule and everybody there, the corrections sum to zero: they change where clients go, not where the average goes first.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl.typing import Array, Theta

CORRECTIONS = ("scaffold",)


class Control(NamedTuple):
    """What a client keeps for it; zeros until its first round has been combined."""

    own: Theta
    common: Theta
    total: Theta  # of the gradients of this round so far
    steps: Array  # () how many they are


def begin(theta: Theta) -> Control:
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), theta)
    return Control(zeros, zeros, zeros, jnp.zeros(()))


def corrected(control: Control, gradient: Theta) -> tuple[Theta, Control]:
    """The gradient to follow, and the control with the client's own in it."""
    total = jax.tree.map(jnp.add, control.total, gradient)
    follow = jax.tree.map(lambda g, own, common: g - own + common, gradient, control.own, control.common)
    return follow, control._replace(total=total, steps=control.steps + 1)


def mean(control: Control) -> Theta:
    """The mean of the round's gradients: what a client reports."""
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(control.steps, 1).astype(leaf.dtype), control.total)


def received(control: Control, common: Theta) -> Control:
    """The control of the next round, once the server has sent what all report have in common."""
    return begin(common)._replace(own=mean(control), common=common)
