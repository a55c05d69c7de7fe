"""Natural units of a model's parameters, of the signal and of f, measured on batches; not in the paper.

    scale_j = min( half the width of the model space,  sd(l) / (sqrt(d) rms(dl/dtheta_j)) )

sd and rms are over the samples of a batch. When all parameters move by their scales, the loss of a sample changes about
as much as samples differ from one another. The scales do not depend on where zero is, nor on the units of the
parameters or of the loss: shifted or rescaled problems have the same scales, shifted or rescaled.

Data without noise would have scales of nothing. The least unit of a number, of f too, is the cube root of the machine
epsilon times its size (``least_share``).

A model of more than ``LARGEST_BY_PARAMETER`` parameters, such as a network, has one scale per array: rms(dl/dtheta_j)
is then taken over all its entries. No gradient of a single sample is needed: with random signs e, the gradient of
sum_i sqrt(w_i) e_i l_i has the mean square sum_i w_i (dl_i/dtheta_j)^2, so a few of them, averaged over an array,
estimate it.

The unit of the signal is its change when the parameters move by their scales. The unit of f is the standard deviation
of one sample's f. A client measures its ``Units`` on its first batch and keeps them. At its second, fourth, eighth ...
batch it checks whether a scale was far too large: a feature that hardly varies has no slope until people have moved it,
and a long tail does not show until a sample from it is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.parts.part import Part, Step, shape_of_f
from profl.parts.variance_change import VarianceChange, log_variance, no_change
from profl.problem.problem import View
from profl.typing import Array, Batch, Key, Theta

PROBE_DISTANCE = 2.0**60
"""A model moved so far and projected shows the bounds of the model space; its square is finite in single precision."""

WIDEST_SPACE = 2.0**40
"""A model space wider than this counts as unbounded."""

MEAN_SLOPE_SHARE = 0.01
"""Share with which the squared mean slope counts in the mean square of a slope: clients that differ then agree on
scales, also while the model is far from where the slopes cancel."""

SAMPLES_MEASURED = 256
"""Samples of a batch that are measured. Of 64 a feature with long tails shows no tail, and its scale comes out up to
fifty times too large: credit, thirty deployments, eta = 0.1, seeds 0-9, ends 0.0086 above the optimum, deployed regret
0.45; with 256 0.0031 (0.037), with 512 0.0026 (0.020). PoFL on pricing takes 1.07 times as long as with 64, with 512
1.3 times."""

REVISED_RATIO = 4.0
"""A scale this many times larger than a later batch shows, relative to the other scales, is replaced by the later one.
"""

LARGEST_BY_PARAMETER = 2**14
"""Parameters of the largest model that has a scale for each: 256 gradients of single samples then take 16 MiB a client.
"""

RANDOM_SIGN_GRADIENTS = 4
"""Gradients with random signs. An array of a thousand entries shows its slope to about 2 %, where they are independent;
scales need only be right up to a factor."""


def least_share(like: Array) -> float:
    """The least unit of a number as a share of its size, the cube root of the machine epsilon.

    Exploration deploys on both sides of a model. The difference of two such deployments over their distance h has a
    rounding error of about eps / h and, by curvature, one of h^2, relative to sizes; together they are least there.
    """
    return float(jnp.finfo(like.dtype).eps) ** (1 / 3)


def first_samples(batch: Batch, weights: Array) -> tuple[Batch, Array]:
    """The first samples of a batch, and their weights, summing to one."""
    first = weights[:SAMPLES_MEASURED]
    total = jnp.sum(first)
    shares = jnp.where(total > 0, first / total, 1.0 / first.shape[0])
    return jax.tree.map(lambda leaf: leaf[:SAMPLES_MEASURED], batch), shares


def theta_scales(
    problem: View, theta: Theta, batch: Batch, weights: Array, common: float = 1.0, unseen: Array | None = None
) -> Array:
    """The scale of every parameter, (d,).

    Where neither the data nor the model space show one, it is the size of the parameter, and at least one.

    ``common`` is the share with which the squared mean slope counts in the mean square of a slope: with 1 it is the
    plain root mean square, with less it depends less on how far theta is from where the slopes cancel. ``unseen`` is a
    variance of the loss that the batch does not show: one sample shows none.

    >>> from profl.problem.families import GaussianMean
    >>> from profl.problem.model_space import everywhere
    >>> view = View(lambda theta, z: jnp.sum((theta - z) ** 2), GaussianMean(), everywhere, lambda theta: theta)
    >>> batch = jnp.array([[1.0], [-1.0], [2.0], [-2.0]])
    >>> round(float(theta_scales(view, jnp.zeros(1), batch, jnp.full(4, 0.25))[0]), 3)
    0.474
    """
    if is_large(theta):
        return trees.ravel(expand_scales(array_scales(problem, theta, batch, weights, common), theta))
    flat, unravel = ravel_pytree(theta)

    def loss(vector: Array, z: Batch) -> Array:
        return problem.loss(unravel(vector), z)

    losses, slopes = jax.vmap(jax.value_and_grad(loss), (None, 0))(flat, batch)
    variance = weights @ (losses - weights @ losses) ** 2
    if unseen is not None:
        variance += unseen
    mean = weights @ slopes
    steepness2 = weights @ (slopes - mean) ** 2 + common * mean**2
    by_data = jnp.sqrt(variance / (flat.size * steepness2))
    return _bounded_scales(by_data, half_width(problem, theta), jnp.abs(flat))


def is_large(theta: Theta) -> bool:
    """Whether a model is so large that it has one scale per array instead of one per parameter."""
    return sum(leaf.size for leaf in jax.tree.leaves(theta)) > LARGEST_BY_PARAMETER


def array_scales(problem: View, theta: Theta, batch: Batch, weights: Array, common: float = 1.0) -> Array:
    """The scale of every array of a large model, (arrays,); where the data show none, as in ``theta_scales``."""
    losses, back = jax.vjp(lambda t: jax.vmap(problem.loss, (None, 0))(t, batch), theta)

    def mean_squares(of_samples: Array) -> Array:
        return jnp.stack([jnp.mean(leaf**2) for leaf in jax.tree.leaves(back(of_samples.astype(losses.dtype))[0])])

    keys = jax.random.split(jax.random.key(0), RANDOM_SIGN_GRADIENTS)  # any signs will do, and the same ones everywhere
    probes = jax.vmap(lambda key: jnp.sqrt(weights) * jax.random.rademacher(key, weights.shape, weights.dtype))(keys)
    rows = jax.lax.map(mean_squares, jnp.concatenate([probes, weights[None]]))
    whole, mean = jnp.mean(rows[:-1], 0), rows[-1]
    steepness2 = jnp.maximum(whole - mean, 0.0) + common * mean
    leaves, widths = jax.tree.leaves(theta), jax.tree.leaves(space_width(problem, theta))
    total = sum(leaf.size for leaf in leaves)
    by_data = jnp.sqrt(weights @ (losses - weights @ losses) ** 2 / (total * steepness2))
    size = jnp.stack([jnp.sqrt(jnp.mean(leaf**2)) for leaf in leaves])
    return _bounded_scales(by_data, jnp.stack([jnp.min(width) for width in widths]), size)


def _bounded_scales(by_data: Array, half: Array, size: Array) -> Array:
    """The scales that the data show, within what the model space (its ``half`` width) and arithmetic allow."""
    by_data = jnp.where(by_data > 0, by_data, jnp.inf)  # a NaN, too: without slopes nothing is shown
    scales = jnp.minimum(half, jnp.maximum(by_data, least_share(size) * size))
    return jnp.where(scales < jnp.inf, scales, jnp.maximum(size, 1.0))


def expand_scales(scales: Array, theta: Theta) -> Theta:
    """A pytree like theta with the scale of every parameter, from scales (d,) or (arrays,)."""
    leaves, structure = jax.tree.flatten(theta)
    if not is_large(theta):
        return ravel_pytree(theta)[1](scales)
    return jax.tree.unflatten(structure, [jnp.broadcast_to(scales[i], leaf.shape) for i, leaf in enumerate(leaves)])


def half_width(problem: View, theta: Theta) -> Array:
    """Half the width of the model space in every parameter, (d,); infinite where it is unbounded."""
    return trees.ravel(space_width(problem, theta))


def space_width(problem: View, theta: Theta) -> Theta:
    """Half the width of the model space, as a pytree like theta."""
    ends = [
        problem.project(jax.tree.map(lambda leaf, side=side: leaf + side, theta))
        for side in (PROBE_DISTANCE, -PROBE_DISTANCE)
    ]

    def half(high: Array, low: Array) -> Array:
        width = high - low
        return jnp.where((width > 0) & (width < WIDEST_SPACE), width / 2, jnp.inf)

    return jax.tree.map(half, *ends)


class Unit(NamedTuple):
    """An origin and a scale for every entry of a vector (the signal or f)."""

    origin: Array  # (s,)
    scale: Array  # (s,)

    def standardise(self, vector: Array) -> Array:
        """``vector`` (s,) in natural units, relative to the origin."""
        return (vector - self.origin) / self.scale


def signal_scales(problem: View, theta: Theta, scales: Array) -> Array:
    """The change of the signal when every parameter moves by its scale: root mean square over random signs, (s,)."""
    signal, back = jax.vjp(problem.signal, theta)
    units = expand_scales(scales, theta)

    def squared_change(row: Array) -> Array:
        both = zip(jax.tree.leaves(back(row)[0]), jax.tree.leaves(units), strict=True)
        return jnp.sum(jnp.stack([jnp.sum((slope * unit) ** 2) for slope, unit in both]))

    rows = jnp.eye(signal.size, dtype=signal.dtype)
    change = jnp.sqrt(jax.lax.map(squared_change, rows) if is_large(theta) else jax.vmap(squared_change)(rows))
    return jnp.where(change > 0, change, 1.0)


class Units(NamedTuple):
    """The natural units of a client, from its first batch on."""

    scales: Array  # of the parameters, (d,), or (arrays,) of a large model; zeros before the first batch
    signal: Unit
    f: Unit
    batches: Array  # () int32: how many there have been

    @property
    def known(self) -> Array:
        """Whether there has been a batch, () bool."""
        return self.batches > 0

    def to_problem_units(self, jacobian: Array, error: Array) -> tuple[Array, Array]:
        """df/dsignal and its squared error in the problem's own units, (p, s) each, from natural units."""
        ratio = self.f.scale[:, None] / self.signal.scale
        return ratio * jacobian, ratio**2 * error

    def to_natural_units(self, jacobian: Array, error: Array) -> tuple[Array, Array]:
        """df/dsignal and its squared error in natural units, (p, s) each, from the problem's own units."""
        ratio = self.signal.scale / self.f.scale[:, None]
        return ratio * jacobian, ratio**2 * error


def initial_units(theta: Theta, signal: Array, f: Array) -> Units:
    """The units before the first batch; ``signal`` and ``f`` give shapes and types."""
    leaves = jax.tree.leaves(theta)
    count = len(leaves) if is_large(theta) else sum(leaf.size for leaf in leaves)
    scales = jnp.zeros(count, jnp.result_type(*leaves))
    return Units(scales, _identity_unit(signal), _identity_unit(f), jnp.int32(0))


def _identity_unit(like: Array) -> Unit:
    return Unit(jnp.zeros(like.shape, like.dtype), jnp.ones(like.shape, like.dtype))


def measure_units(
    problem: View, old: Units, theta: Theta, batch: Batch, weights: Array, f: Array, sample_variance: Array
) -> Units:
    """The units that a batch shows, where ``theta`` was deployed; ``sample_variance`` (p,) is that of one sample's f.

    An entry of f without variance has the largest scale of the others. Where units are known, the ``old`` ones stay,
    with the new scales of the parameters where these fell far more than the others. A fall that all have in common does
    not count: the losses of samples differ less near the optimum.
    """
    new = (array_scales if is_large(theta) else theta_scales)(problem, theta, batch, weights, MEAN_SLOPE_SHARE)
    known, ratio = old.known, new / old.scales  # infinite before the first batch
    common = jnp.minimum(jnp.max(ratio), 1.0)
    replaced = ~known | (ratio < common / REVISED_RATIO)
    scales = jnp.where(replaced, new / common, old.scales)
    variance = jnp.maximum(sample_variance, least_share(f) ** 2 * f**2)
    largest = jnp.max(variance)
    deviation = jnp.sqrt(jnp.where(variance > 0, variance, jnp.where(largest > 0, largest, 1.0)))
    signal_scale = jnp.where(jnp.any(replaced), signal_scales(problem, theta, scales), old.signal.scale)
    origins = trees.where(known, (old.signal.origin, old.f), (problem.signal(theta), Unit(f, deviation)))
    return Units(scales, Unit(origins[0], signal_scale), origins[1], old.batches + 1)


class StepUnits(NamedTuple):
    """The units of a step, in ``step.units``."""

    units: Units
    changed: Array  # () bool: whether a scale became smaller, so that estimates in the old units are void
    ratio: Array  # the new scales over the old ones


class UnitsState(NamedTuple):
    """What a client has measured."""

    units: Units
    variance: VarianceChange | tuple[()]  # () where f has more than means


@dataclass(frozen=True)
class NaturalUnits(Part):
    """Measures the units of the parameters, the signal and f (``step.units``); not in the paper.

    With this part whole batches belong in memory, samples innermost. PoFL on pricing (10 clients, 100 rounds of R = 5,
    n = 500) takes 1.1 times as long as without units; without that memory layout 3.5 times.
    """

    serves = ("units",)
    rereads = True

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("f",)

    def init(self, view: View, theta: Theta, batch: Batch) -> UnitsState:
        units = initial_units(theta, jax.eval_shape(view.signal, theta), shape_of_f(view, batch))
        return UnitsState(units, no_change(view, batch))

    def update(self, view: View, state: UnitsState, step: Step, key: Key) -> tuple[Step, UnitsState]:
        """The step with its units: measured on the first batch, revised at the second, fourth, eighth ... batch."""
        sample_variance, old = step.f_variance / jnp.sum(step.weights**2), state.units
        batches, known = old.batches + 1, old.known

        def revise(theta: Theta, inner: Batch, weights: Array) -> UnitsState:
            batch, weights = first_samples(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), inner), weights)
            units = measure_units(view, old, theta, batch, weights, step.f, sample_variance)
            variance = state.variance
            if isinstance(variance, VarianceChange):
                variance = variance.measure(known, log_variance(batch, weights))
            return UnitsState(units, variance)

        first_only = is_large(step.deployed)  # a revision costs as many gradients as a step
        due = ~known if first_only else batches & (batches - 1) == 0
        # Innermost, as they lie in memory (``trees.materialise``): else they would be rearranged in every step.
        inner = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), step.batch)
        new, variance = trees.cond_or_keep(due, revise, state, step.deployed, inner, step.weights)
        new = new._replace(batches=batches)
        changed = jnp.any(new.scales < old.scales)  # they are zeros before the first batch
        ratio = jnp.where(known, new.scales / old.scales, 1.0)
        return step._replace(units=StepUnits(new, changed, ratio)), UnitsState(new, variance)

    def figures(self, view: View, state: UnitsState, theta: Theta) -> dict[str, Array]:
        """How much the variance of the data has changed, where f only has their mean."""
        return {"variance_change": state.variance.change} if isinstance(state.variance, VarianceChange) else {}
