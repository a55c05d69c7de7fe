"""df/dtheta by differences from the newest point over a window, with a pseudo-inverse (paper, Algorithm 1, line 13)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from profl.parts.jacobian.estimators import Differences, Window, append_row
from profl.typing import Array


@dataclass(frozen=True)
class WindowDifferences(Differences):
    """Delta f (Delta theta)^+ as printed: no ridge, and zero up to t = H (line 6), one deployment longer than
    ``Differences``.

    The pseudo-inverse cuts off only what is rounding. What noise makes of nearly equal models is part of the estimate.
    """

    def update(self, state: Window, signal: Array, f: Array, variance: Array, at: Array) -> Window:
        rows = self.window + 1
        filled = jnp.minimum(state.filled + 1, rows + 1)  # line 6 uses L1 alone for t <= H, which is H + 1 deployments
        return append_row(state, signal, f)._replace(filled=filled)

    def estimate(self, state: Window) -> Array:
        moves = state.signals[:-1] - state.signals[-1]
        changes = state.estimates[:-1] - state.estimates[-1]
        jacobian = (jnp.linalg.pinv(moves) @ changes).T
        return jnp.where(state.filled > self.window + 1, jacobian, 0.0)
