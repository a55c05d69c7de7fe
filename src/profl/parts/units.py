"""Natural units of a model's parameters, of the signal and of f, from what the data and the model space show.

    scale_j = min( half the width of the model space,  sd(l) / (sqrt(d) rms(dl/dtheta_j)) )

sd and rms are over the samples of a batch: a model whose parameters all move by their scales changes the loss of a
sample about as much as samples differ from one another. Nothing depends on where zero is, nor on the units of the
parameters or of the loss: shifted or rescaled problems have the same scales, shifted or rescaled.

A model of more than ``LARGE`` parameters, a network, has one scale per array: rms(dl/dtheta_j) is then that of all its
entries. It takes no gradient of a single sample: with random signs e, the gradient of sum_i sqrt(w_i) e_i l_i has the
mean square sum_i w_i (dl_i/dtheta_j)^2, so that a few of them, averaged over an array, tell its size.

The unit of the signal is what it moves by when the parameters move by their scales, the unit of f the standard
deviation of one sample's. A client takes its ``Measures`` on its first batch, and keeps them. At its second, fourth,
eighth ... batch it only looks whether a scale was far too large: a feature that hardly varies shows no slope until
people have moved it, and a long tail none until it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.parts.part import Part, Step, shape_of_f
from profl.problem.problem import View
from profl.typing import Array, Batch, Key, Theta

FAR = 2.0**60  # a model so far out shows where the model space ends; its square is still finite in single precision
COMMON = 0.01  # of the mean slope: clients that differ then agree on scales, and so do parameters that are off by more
UNBOUNDED = 2.0**40  # a space wider than this has no end that matters
ENOUGH = 256
"""Samples to measure on. Of 64 a feature with long tails shows no tail, and its scale comes out up to fifty times too
large: credit, thirty deployments, eta = 0.1, seeds 0-9, ends 0.0086 above the optimum, deployed regret 0.45; with
256 0.0031 (0.037), with 512 0.0026 (0.020). PoFL on pricing takes 1.07 times as long as with 64, with 512 1.3 times."""

TOO_LARGE = 4.0
"""Times what a later batch shows, beside the other scales: such a scale becomes the later one."""

LARGE = 2**14
"""Parameters above which they are measured by the array: 256 gradients of single samples then take 16 MiB a client."""

PROBES = 4
"""Gradients with random signs. An array of a thousand entries shows its slope to 2 % or so, where they are independent;
a scale is a matter of factors."""


def some(batch: Batch, weights: Array) -> Callable[[], tuple[Batch, Array]]:
    """The first samples of a batch and their weights, for measuring on: to be asked for before, called in a loop.

    The samples go into the loop innermost, as they lie in memory (``trees.materialise``): otherwise they would be
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
    >>> from profl.problem.model_space import everywhere
    >>> view = View(lambda theta, z: jnp.sum((theta - z) ** 2), GaussianMean(), everywhere, lambda theta: theta)
    >>> batch = jnp.array([[1.0], [-1.0], [2.0], [-2.0]])
    >>> round(float(theta_scales(view, jnp.zeros(1), batch, jnp.full(4, 0.25))[0]), 3)
    0.474
    """
    if large(theta):
        return trees.ravel(spread_over(array_scales(problem, theta, batch, weights, common), theta))
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


def large(theta: Theta) -> bool:
    """Whether a model is measured by the array; its shapes say so."""
    return sum(leaf.size for leaf in jax.tree.leaves(theta)) > LARGE


def array_scales(problem: View, theta: Theta, batch: Batch, weights: Array, common: float = 1.0) -> Array:
    """One scale per array of a large model, (arrays,): see the module. Where none shows, as ``theta_scales``."""
    losses, back = jax.vjp(lambda t: jax.vmap(problem.loss, (None, 0))(t, batch), theta)

    def mean_squares(of_samples: Array) -> Array:
        return jnp.stack([jnp.mean(leaf**2) for leaf in jax.tree.leaves(back(of_samples.astype(losses.dtype))[0])])

    keys = jax.random.split(jax.random.key(0), PROBES)  # any signs will do, and the same ones everywhere
    probes = jax.vmap(lambda key: jnp.sqrt(weights) * jax.random.rademacher(key, weights.shape, weights.dtype))(keys)
    rows = jax.lax.map(mean_squares, jnp.concatenate([probes, weights[None]]))
    whole, mean = jnp.mean(rows[:-1], 0), rows[-1]
    steepness = jnp.sqrt(jnp.maximum(whole - mean, 0.0) + common * mean)
    spread = jnp.sqrt(weights @ (losses - weights @ losses) ** 2)
    leaves, widths = jax.tree.leaves(theta), jax.tree.leaves(space_width(problem, theta))
    total = sum(leaf.size for leaf in leaves)
    shown = spread / (jnp.sqrt(float(total)) * jnp.where(steepness > 0, steepness, 1.0))
    shown = jnp.where((steepness > 0) & (spread > 0), shown, jnp.inf)
    found = jnp.minimum(shown, jnp.stack([jnp.min(width) for width in widths]))
    size = jnp.stack([jnp.sqrt(jnp.mean(leaf**2)) for leaf in leaves])
    return jnp.where(jnp.isfinite(found) & (found > 0), found, jnp.maximum(size, 1.0))


def spread_over(scales: Array, theta: Theta) -> Theta:
    """The scales as a model has its parameters: one per parameter (d,), or one per array."""
    leaves, structure = jax.tree.flatten(theta)
    if not large(theta):
        return ravel_pytree(theta)[1](scales)
    return jax.tree.unflatten(structure, [jnp.broadcast_to(scales[i], leaf.shape) for i, leaf in enumerate(leaves)])


def half_width(problem: View, theta: Theta) -> Array:
    """Half the width of the model space in every parameter, infinite where it has no end, (d,)."""
    return trees.ravel(space_width(problem, theta))


def space_width(problem: View, theta: Theta) -> Theta:
    """The same, as a model has its parameters."""
    ends = [problem.project(jax.tree.map(lambda leaf, side=side: leaf + side, theta)) for side in (FAR, -FAR)]

    def half(high: Array, low: Array) -> Array:
        width = high - low
        return jnp.where((width > 0) & (width < UNBOUNDED), width / 2, jnp.inf)

    return jax.tree.map(half, *ends)


class Ruler(NamedTuple):
    """An origin and a unit for every entry of the signal: inside, problems look alike in any units."""

    origin: Array  # (s,)
    unit: Array  # (s,)

    def measure(self, signal: Array) -> Array:
        return (signal - self.origin) / self.unit


def signal_scales(problem: View, theta: Theta, scales: Array) -> Array:
    """What the signal moves by when every parameter moves by its scale, in root mean square over their signs, (s,)."""
    signal, back = jax.vjp(problem.signal, theta)
    units = spread_over(scales, theta)

    def moved_by(row: Array) -> Array:
        both = zip(jax.tree.leaves(back(row)[0]), jax.tree.leaves(units), strict=True)
        return jnp.sum(jnp.stack([jnp.sum((slope * unit) ** 2) for slope, unit in both]))

    moved = jnp.sqrt(jax.lax.map(moved_by, jnp.eye(signal.size, dtype=signal.dtype)))
    return jnp.where(moved > 0, moved, 1.0)


class Measures(NamedTuple):
    """What a client measures with, from its first batch on."""

    known: Array  # () bool: whether there has been one
    scales: Array  # of the parameters, (d,), or (arrays,) of a large model's; zeros before it
    signal: Ruler
    f: Ruler
    batches: Array  # () int32: how many there have been

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
    leaves = jax.tree.leaves(theta)
    count = len(leaves) if large(theta) else sum(leaf.size for leaf in leaves)
    nothing = jnp.zeros(count, jnp.result_type(*leaves))
    return Measures(jnp.asarray(False), nothing, _unit_ruler(signal), _unit_ruler(f), jnp.int32(0))


def _unit_ruler(like: Array) -> Ruler:
    return Ruler(jnp.zeros(like.shape, like.dtype), jnp.ones(like.shape, like.dtype))


def take_measures(problem: View, theta: Theta, batch: Batch, weights: Array, f: Array, one: Array) -> Measures:
    """Those of a batch that ``theta`` brought in; ``one`` is the variance of one sample's f."""
    scales = (array_scales if large(theta) else theta_scales)(problem, theta, batch, weights, COMMON)
    spread = jnp.sqrt(jnp.where(one > 0, one, jnp.where(jnp.any(one > 0), jnp.max(one), 1.0)))
    signal = Ruler(problem.signal(theta), signal_scales(problem, theta, scales))
    return Measures(jnp.asarray(True), scales, signal, Ruler(f, spread), jnp.int32(1))


def look_again(problem: View, old: Measures, new: Measures, theta: Theta) -> Measures:
    """``old``, but with scales as ``new`` has them where these fell far more than the others; ``new`` where nothing was
    known. What all of them fell by comes with the model's way: the losses of samples differ less near the optimum."""
    ratio = new.scales / jnp.where(old.known, old.scales, 1.0)
    common = jnp.minimum(jnp.max(ratio), 1.0)
    smaller = old.known & (ratio < common / TOO_LARGE)
    scales = jnp.where(smaller, new.scales / common, old.scales)
    unit = jnp.where(jnp.any(smaller), signal_scales(problem, theta, scales), old.signal.unit)
    return trees.where(old.known, old._replace(scales=scales, signal=old.signal._replace(unit=unit)), new)


class UnitsNow(NamedTuple):
    """The units of this step, as ``step.units``."""

    measures: Measures
    changed: Array  # () bool: whether a scale became smaller, so that what was learned in the old units is void
    ratio: Array  # the new scales over the old ones


@dataclass(frozen=True)
class NaturalUnits(Part):
    """Measures the parameters, the signal and f from the first batch on; not in the paper.

    With this part whole batches belong in memory, samples innermost. PoFL on pricing (10 clients, 100 rounds of R = 5,
    n = 500) takes 1.1 times as long as where nothing is measured; without that 3.5 times.
    """

    serves = ("units",)
    rereads = True

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("f",)

    def init(self, view: View, theta: Theta, batch: Batch) -> Measures:
        return unmeasured(theta, jax.eval_shape(view.signal, theta), shape_of_f(view, batch))

    def update(self, view: View, state: Measures, step: Step, key: Key) -> tuple[Step, Measures]:
        """Takes or checks the measures; where a scale turns out to be far too large, ``changed`` says so."""
        one = step.f_variance / jnp.sum(step.weights**2)
        few, batches = some(step.batch, step.weights), state.batches + 1

        def look(theta: Theta) -> Measures:
            return look_again(view, state, take_measures(view, theta, *few(), step.f, one), theta)

        once = large(step.deployed)  # to look again costs as many gradients as a step has, and is amortised late
        due = ~state.known if once else batches & (batches - 1) == 0
        new = trees.cond_or_keep(due, look, state, step.deployed)._replace(batches=batches)
        changed = state.known & jnp.any(new.scales < state.scales)
        ratio = jnp.where(state.known, new.scales / state.scales, 1.0)
        return step._replace(units=UnitsNow(new, changed, ratio)), new
