"""The gate before deployment: no model that is not finite or outside its space reaches people, whoever computed it.

    at the server   a report is used only if none of its numbers is absurd, its model lies in the space and has not
                    moved absurdly far, and no other entry is absurdly large; the aggregate of the reports is projected
    at a client     what is deployed is projected, after exploration and after the noise of privacy; where people are
                    real, a client that came to a model that is not finite deploys nothing and says so

A model lies in its space where projecting it moves it by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.server import entries  # noqa: F401  (the example of ``accept``)
from profl.server.entries import Entry, Report
from profl.typing import Array, Theta

LARGEST_SIZE_RATIO = 1e4  # times the median size of a round's reports: no honest client sends a larger one
LARGEST_NUMBER = 1e15  # in a report: sums of squares of larger ones overflow in single precision
REST_MOVE = 1e-3  # of one plus the model's size: the move to compare with where clients have never moved
PROJECTION_EPSILONS = 100.0  # machine epsilons by which projecting twice may change a number


def inside(
    project: Callable[[Theta], Theta], theta: Theta, judged: Callable[[Theta], Any] = lambda theta: theta
) -> Array:
    """Whether a model is finite and in its space; ``judged`` is the part of it that is looked at.

    >>> points = [jnp.array([2.0, x]) for x in (0.0, 5.0000005, 5.01, jnp.nan, jnp.inf)]
    >>> [bool(inside(lambda theta: jnp.clip(theta, 0.0, 5.0), point)) for point in points]
    [True, True, False, False, False]
    """
    return trees.all_finite(theta) & stays(project, theta, judged)


def stays(project: Callable[[Theta], Theta], theta: Theta, judged: Callable[[Theta], Any]) -> Array:
    """Whether a finite model hardly moves where it is projected, a scalar bool."""

    def near(own: Array, there: Array) -> Array:
        slack = PROJECTION_EPSILONS * jnp.finfo(own.dtype).eps if jnp.issubdtype(own.dtype, jnp.floating) else 0
        return jnp.all(jnp.abs(own - there) <= slack * jnp.max(jnp.abs(own), initial=1.0))

    leaves = jax.tree.leaves(jax.tree.map(near, judged(theta), judged(project(theta))))
    return reduce(jnp.logical_and, leaves) if leaves else jnp.asarray(True)


def accept(
    reports: Report,
    sent: Theta,
    lies_inside: Callable[[Theta], Array] = trees.all_finite,
    usual: Array | float = 0.0,
) -> tuple[Array, Array]:
    """(which reports may be used (k,) bool, the usual size of a move).

    A model's size is how far it moved from ``sent``; ``usual`` is the median when clients last moved, which counts
    where most of them rest: a single client must not go anywhere for that. Other entries are compared with the median
    over clients (``is_sized``).

    >>> models = jnp.array([[1.0], [1.1], [1e9], [jnp.inf]])
    >>> accept({"theta": entries.model(models)}, jnp.zeros(1))[0]
    Array([ True,  True, False, False], dtype=bool)
    >>> accept({"theta": entries.model(9e9 * models[:3])}, models[0])[0]
    Array([ True,  True, False], dtype=bool)
    """
    finite = jax.vmap(partial(trees.all_finite, largest=LARGEST_NUMBER))(reports)
    accepted = finite
    for name, entry in reports.items():
        if entry.kind == "model":
            accepted &= jax.vmap(lies_inside)(entry.value)
        if not is_sized(entry):
            continue
        differences = jax.tree.map(jnp.subtract, entry.value, sent) if entry.kind == "model" else entry.value
        sizes = jax.vmap(trees.norm)(differences)
        median_size = _median(sizes, finite)
        if entry.kind == "model":
            before = jnp.where(median_size > 0, median_size, usual).astype(sizes.dtype)
            compared = jnp.where(before > 0, before, REST_MOVE * (1 + trees.norm(sent)))
            usual = before if name == "theta" else usual
        else:
            compared = jnp.where(median_size > 0, median_size, 1.0)
        accepted &= sizes <= LARGEST_SIZE_RATIO * compared
    return accepted, jnp.asarray(usual)


def _median(sizes: Array, counts: Array) -> Array:
    """The median of the sizes (k,) that count, (); 0 where none does."""
    ordered, count = jax.lax.sort(jnp.where(counts, sizes, jnp.inf)), jnp.sum(counts, dtype=jnp.int32)
    middle = jnp.abs(2 * np.arange(sizes.shape[0]) - (count - 1)) <= 1  # one place of an odd count, two of an even one
    median = jnp.sum(jnp.where(middle, ordered, 0.0)) * jnp.where(count & 1, 1.0, 0.5)
    return jnp.where(median < jnp.inf, median, 0.0)


def is_sized(entry: Entry) -> bool:
    """Whether the size of an entry, with one row per client, is compared with that of the others.

    Counts, single numbers and Jacobians, which may well be nothing at most clients, are only asked to be finite.
    """
    if entry.kind == "model":
        return True
    return entry.kind not in ("count", "jacobian") and any(leaf.ndim > 1 for leaf in jax.tree.leaves(entry.value))
