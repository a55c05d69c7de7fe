"""Natural units of a model's parameters, of the signal and of f, from what the data and the model space show.

    scale_j = min( half the width of the model space,  sd(l) / (sqrt(d) rms(dl/dtheta_j)) )

sd and rms are over the samples of a batch: a model whose parameters all move by their scales changes the loss of a
sample about as much as samples differ from one another. Nothing depends on where zero is, nor on the units of the
parameters or of the loss: shifted or rescaled problems have the same scales, shifted or rescaled.

The unit of the signal is what it moves by when the parameters move by their scales, the unit of f the standard
deviation of one sample's. A client takes its ``Measures`` on its first batch, and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl.problem.problem import View
from profl.typing import Array, Batch, Theta

FAR = 2.0**60  # a model so far out shows where the model space ends; its square is still finite in single precision
COMMON = 0.01  # of the mean slope: clients that differ then agree on scales, and so do parameters that are off by more
UNBOUNDED = 2.0**40  # a space wider than this has no end that matters
ENOUGH = 256
"""Samples to measure on. Of 64 a feature with long tails shows no tail, and its scale comes out up to fifty times too
large: credit, thirty deployments, eta = 0.1, seeds 0-9, ends 0.0086 above the optimum, deployed regret 0.45; with
256 0.0031 (0.037), with 512 0.0026 (0.020). PoFL on pricing takes 1.07 times as long as with 64, with 512 1.3 times."""


def some(batch: Batch, weights: Array) -> Callable[[], tuple[Batch, Array]]:
    """The first samples of a batch and their weights, for measuring on: to be asked for before, called in a loop.

    The samples go into the loop innermost, as they lie in memory (``trees.written``): otherwise they would be
    rearranged in every step, whether the loop is entered or not (PoFL on pricing: 1.2 times as long, ProFL 1.5 times).
    """
    few, inner = weights[:ENOUGH], jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1)[..., :ENOUGH], batch)

    def chosen() -> tuple[Batch, Array]:
        total = jnp.sum(few)
        shares = jnp.where(total > 0, few / jnp.where(total > 0, total, 1.0), 1.0 / few.shape[0])
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), inner), shares

    return chosen


def theta_scales(problem: View, theta: Theta, batch: Batch, weights: Array, common: float = 1.0) -> Array:
    """One scale per parameter, (d,); where neither data nor space show any, the size of the parameter, at least one.

    ``common`` is the share with which the square of the mean slope counts in that of a slope: with 1 it is the root
    mean square, with less it depends less on how far theta is from where the slopes cancel.

    >>> from profl.problem.families import GaussianMean
    >>> from profl.problem.problem import everywhere
    >>> view = View(lambda theta, z: jnp.sum((theta - z) ** 2), GaussianMean(), everywhere, lambda theta: theta)
    >>> batch = jnp.array([[1.0], [-1.0], [2.0], [-2.0]])
    >>> round(float(theta_scales(view, jnp.zeros(1), batch, jnp.full(4, 0.25))[0]), 3)
    0.474
    """
    flat, unravel = ravel_pytree(theta)

    def loss(vector: Array, z: Batch) -> Array:
        return problem.loss(unravel(vector), z)

    losses, slopes = jax.vmap(jax.value_and_grad(loss), (None, 0))(flat, batch)
    spread = jnp.sqrt(weights @ (losses - weights @ losses) ** 2)
    mean = weights @ slopes
    steepness = jnp.sqrt(weights @ (slopes - mean) ** 2 + common * mean**2)
    shown = spread / (jnp.sqrt(float(flat.size)) * jnp.where(steepness > 0, steepness, 1.0))
    shown = jnp.where((steepness > 0) & (spread > 0), shown, jnp.inf)
    found = jnp.minimum(shown, half_width(problem, theta))
    return jnp.where(jnp.isfinite(found) & (found > 0), found, jnp.maximum(jnp.abs(flat), 1.0))


def half_width(problem: View, theta: Theta) -> Array:
    """Half the width of the model space in every parameter, infinite where it has no end, (d,)."""
    flat, unravel = ravel_pytree(theta)
    ends = [ravel_pytree(problem.project(unravel(flat + side)))[0] for side in (FAR, -FAR)]
    width = ends[0] - ends[1]
    return jnp.where((width > 0) & (width < UNBOUNDED), width / 2, jnp.inf)


class Ruler(NamedTuple):
    """An origin and a unit for every entry of the signal: inside, problems look alike in any units."""

    origin: Array  # (s,)
    unit: Array  # (s,)

    def measure(self, signal: Array) -> Array:
        return (signal - self.origin) / self.unit


def signal_scales(problem: View, theta: Theta, scales: Array) -> Array:
    """What the signal moves by when every parameter moves by its scale, in root mean square over their signs, (s,)."""
    unravel = ravel_pytree(theta)[1]
    signal, back = jax.vjp(lambda vector: problem.signal(unravel(vector)), ravel_pytree(theta)[0])
    rows = jax.lax.map(lambda row: jnp.sum((back(row)[0] * scales) ** 2), jnp.eye(signal.size, dtype=signal.dtype))
    moved = jnp.sqrt(rows)
    return jnp.where(moved > 0, moved, 1.0)


class Measures(NamedTuple):
    """What a client measures with, from its first batch on."""

    known: Array  # () bool: whether there has been one
    scales: Array  # of the parameters, (d,); zeros before it
    signal: Ruler
    f: Ruler

    def outside(self, jacobian: Array, error: Array) -> tuple[Array, Array]:
        """df/dsignal and its squared error in the units that the problem has, from those measured in; (p, s)."""
        ratio = self.f.unit[:, None] / self.signal.unit
        return ratio * jacobian, ratio**2 * error

    def inside(self, jacobian: Array, error: Array) -> tuple[Array, Array]:
        """The way back."""
        ratio = self.signal.unit / self.f.unit[:, None]
        return ratio * jacobian, ratio**2 * error


def unmeasured(theta: Theta, signal: Array, f: Array) -> Measures:
    """Before the first batch; ``signal`` and ``f`` give shapes and types."""
    flat = ravel_pytree(theta)[0]
    rulers = [Ruler(jnp.zeros(like.shape, like.dtype), jnp.ones(like.shape, like.dtype)) for like in (signal, f)]
    return Measures(jnp.asarray(False), jnp.zeros_like(flat), *rulers)


def take_measures(problem: View, theta: Theta, batch: Batch, weights: Array, f: Array, one: Array) -> Measures:
    """Those of a batch that ``theta`` brought in; ``one`` is the variance of one sample's f."""
    scales = theta_scales(problem, theta, batch, weights, COMMON)
    spread = jnp.sqrt(jnp.where(one > 0, one, jnp.where(jnp.any(one > 0), jnp.max(one), 1.0)))
    signal = Ruler(problem.signal(theta), signal_scales(problem, theta, scales))
    return Measures(jnp.asarray(True), scales, signal, Ruler(f, spread))
