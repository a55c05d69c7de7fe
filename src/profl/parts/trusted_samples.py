"""Which samples of a batch to trust (paper, Algorithm 1, lines 7 and 11): the filter's input, and its weights.

A filter that works on gradients, as the paper's does, sees g_j = grad l(theta; z_j). These are skewed even where the
data are not (a squared loss: g = (theta x - y) x), and cutting a long tail moves the mean: on clean housing the robust
rule ended 0.17 above the optimum that way, on retail 1.4. So that rule sees the samples z_j themselves, their floating
numbers. To first order the gradient is a linear function of these, and the rule looks at projections on lines. And what
it learned from one batch holds for the next, because it does not depend on the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.parts import filters
from profl.parts.filters import Filter
from profl.parts.filters.filter import SampleFilter, as_filter
from profl.parts.filters.reference_sample import Known
from profl.parts.part import Part, Step, plain
from profl.problem.families import Family
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Loss, Theta

ALARMING_SHARE = 0.25  # share of a batch: where more is dropped, somebody should check whether it is junk
LEAST = np.finfo(np.float32).tiny  # stands for a zero that is not ordinary


class HasLoss(Protocol):
    """What the filter needs of a problem."""

    @property
    def loss(self) -> Loss: ...
    @property
    def family(self) -> Family: ...


@dataclass(frozen=True)
class TrustedSamples(Part):
    """Lowers the weights of samples that look like junk (paper, Algorithm 1, lines 7 and 11).

    Args:
      filter: "robust", "paper", a ``profl.parts.SampleFilter``, or a function
        ``(gradients, weights) -> weights``.
    """

    filter: Any = "robust"

    info = ("kept",)
    rereads = True

    def __post_init__(self) -> None:
        filters.check(filters.get(self.filter))

    def settings(self) -> dict[str, Any]:
        return {"filter": plain(self.filter)}

    def init(self, view: View, theta: Theta, batch: Batch) -> Any:
        return initial_memory(view, filters.get(self.filter), theta, batch)

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        with stage("filter") as watch:
            weights, kept_share, memory = watch(
                filter_weights(view, filters.get(self.filter), step.deployed, step.batch, step.weights, state)
            )
        return step._replace(weights=weights, info={**step.info, "kept": kept_share}), memory


def initial_memory(problem: HasLoss, filter_: Filter, theta: Theta, batch: Batch) -> Any:
    """The filter's memory before the first batch, a row per group of samples; () for a filter without memory."""
    chosen = as_filter(filter_)
    rows = jax.tree.leaves(batch)[0].shape[0]
    like = jax.ShapeDtypeStruct((rows,), jnp.float32)
    points = jax.eval_shape(partial(_input_of(chosen), problem), theta, batch, like)
    if not points.shape[1]:
        return ()
    memory, groups = chosen.start(points.shape[1]), problem.family.group_count
    return trees.repeat(memory, groups) if groups > 1 else memory


def filter_weights(
    problem: HasLoss, filter_: Filter, theta: Theta, batch: Batch, weights: Array, memory: Any
) -> tuple[Array, Array, Any]:
    """The weights (n,) after the filter, summing to one again, the share of the weight that was kept, and the memory.

    Every group of samples (or class) is filtered by itself and keeps its share of the weight: two clean groups are not
    clean and junk, and the filter must not change what the family reads off the shares. A batch of labels alone stays
    as it is.
    """
    chosen = as_filter(filter_)
    if chosen.of_samples and not jax.eval_shape(partial(samples, problem), theta, batch, weights).shape[1]:
        return weights, jnp.ones((), weights.dtype), memory
    input_of, reference = _input_of(chosen), chosen.reference_batch(batch)
    rows = 0 if reference is None else jax.tree.leaves(reference)[0].shape[0]

    def one_group(weights: Array, memory: Any, reference_weights: Array) -> tuple[Array, Any]:
        points = input_of(problem, theta, batch, weights)
        known = None
        if reference is not None:
            known = Known(input_of(problem, theta, reference, reference_weights).T, reference_weights)
        return chosen.step(points, weights, memory, known)

    groups = problem.family.group_count
    if groups == 1:
        after, memory = one_group(weights, memory, jnp.ones(rows))
        left = jnp.sum(after)
        return after / jnp.where(left > 0, left, 1.0), left, memory
    member = jax.vmap(problem.family.group_of)(batch) == jnp.arange(groups)[:, None]
    before = jnp.where(member, weights, 0.0)  # (groups, n)
    reference_weights = jnp.ones((groups, rows))
    if reference is not None:
        reference_weights = 1.0 * (jax.vmap(problem.family.group_of)(reference) == jnp.arange(groups)[:, None])
    after, memory = jax.vmap(one_group)(before, memory, reference_weights)
    share, left = jnp.sum(before, axis=1, keepdims=True), jnp.sum(after, axis=1, keepdims=True)
    return jnp.sum(after * share / jnp.where(left > 0, left, 1.0), axis=0), jnp.sum(left), memory


def _input_of(filter_: SampleFilter) -> Callable[..., Array]:
    """The function that makes the filter's input from a batch."""
    return samples if filter_.of_samples else gradients


def gradients(problem: HasLoss, theta: Theta, batch: Batch, weights: Array) -> Array:
    """grad l(theta; z_j) of every sample: (n, d)."""
    return jax.vmap(lambda z: trees.ravel(jax.grad(problem.loss)(theta, z)))(batch)


def samples(problem: HasLoss, theta: Theta, batch: Batch, weights: Array) -> Array:
    """The numbers of every sample, (n, numbers); a zero says nothing: what is ``Family.ordinary``, no other.

    Whole numbers are labels, unless the family takes them for amounts.

    Where the family takes exact zeros for ordinary, as by default, these are the samples themselves.
    """
    batch, family = _amounts(problem.family, batch), problem.family
    points = _numbers(batch, batch)
    if getattr(family.ordinary, "__func__", None) is Family.ordinary:
        return points
    other = jnp.where(points == 0, LEAST.astype(points.dtype), points)
    return jnp.where(_numbers(family.ordinary(batch), batch), 0, other)


def _amounts(family: Family, batch: Batch) -> Batch:
    """The batch with floating numbers for whole ones that the family takes for amounts."""
    if not family.amounts:
        return batch
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf * 1.0, batch)


def _numbers(tree: Any, batch: Batch) -> Array:
    """The leaves of a tree, of a batch's structure, where the batch has floating numbers, one row per sample."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(batch), strict=True)
    leaves = [leaf for leaf, own in pairs if jnp.issubdtype(own.dtype, jnp.floating)]
    if not leaves:
        return jnp.zeros((trees.rows(batch), 0))
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
