"""Small operations on pytrees that jax.tree has no single name for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl.typing import Array


def ravel(tree: Any) -> Array:
    """All leaves as one vector.

    >>> ravel({"a": jnp.ones(2), "b": jnp.zeros((1, 2))})
    Array([1., 1., 0., 0.], dtype=float32)
    """
    return ravel_pytree(tree)[0]


def take(tree: Any, index: Any) -> Any:
    """Row(s) ``index`` of every leaf of a stacked pytree."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def row_shape(tree: Any) -> Any:
    """The shapes of one row of a stacked pytree."""
    return jax.eval_shape(partial(take, index=0), tree)


def copies(tree: Any, count: int) -> Any:
    """A pytree as the rows of a stacked one, ``count`` times the same.

    >>> copies(jnp.arange(2), 3).shape
    (3, 2)
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def rows(tree: Any) -> int:
    """How many rows a stacked pytree has."""
    return int(jax.tree.leaves(tree)[0].shape[0])


def stack(trees: list[Any]) -> Any:
    """Pytrees of one structure as the rows of one stacked pytree."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def joined(batches: Any) -> Any:
    """Stacked batches, leaves (k, n, ...), as one: (k n, ...), samples innermost in memory, as ``random.normal`` draws.

    >>> joined(jnp.arange(6).reshape(2, 3)).tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def join(leaf: Array) -> Array:
        inner = jnp.moveaxis(leaf, (0, 1), (-2, -1))
        return jnp.moveaxis(inner.reshape(*inner.shape[:-2], -1), -1, 0)

    return jax.tree.map(join, batches)


def merged(size: int, batched: Any, given: Any) -> Any:
    """For a rule of ``custom_vmap`` of functions of stacks: the stacks of all ``size`` batches as one stack.

    >>> [leaf.shape for leaf in merged(2, (True, False), (jnp.zeros((2, 3, 4)), jnp.zeros((3, 5))))]
    [(6, 4), (6, 5)]
    """

    def flat(leaf: Array, own: bool) -> Array:
        full = leaf if own else jnp.broadcast_to(leaf, (size, *leaf.shape))
        return full.reshape(-1, *full.shape[2:])

    return jax.tree.map(flat, given, batched)


def over_stacks(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule of ``custom_vmap`` for a function of stacks: one call with the stacks of all batches as one."""

    def rule(size: int, batched: Any, *given: Any) -> tuple[Any, Any]:
        found = function(*merged(size, tuple(batched), given))
        apart = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), found)
        return apart, jax.tree.map(lambda _: True, found)

    return rule


def where(condition: Array, new: Any, old: Any) -> Any:
    """``new`` where ``condition`` holds, else ``old``; a condition of shape (k,) chooses rows."""

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(choose, new, old)


def all_finite(tree: Any) -> Array:
    """Whether every number in a pytree is finite: a scalar bool.

    One after the other: put in one array first, XLA compiles every leaf again for every other.
    """
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return reduce(jnp.logical_and, leaves, jnp.asarray(True))


def norm(tree: Any) -> Array:
    """Euclidean length of all leaves together."""
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def cast(tree: Any, dtype: Any = float) -> Any:
    """Floating leaves in another precision (by default JAX's current one); integer leaves and keys as they are.

    NumPy converts what is NumPy's: JAX would compile a small program for every shape.
    """
    wanted = jnp.result_type(dtype)

    def convert(leaf: Any) -> Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.floating) and array.dtype != wanted:
            array = array.astype(wanted)
        return jnp.asarray(array)

    return jax.tree.map(convert, tree)


def map_chunks(function: Callable[..., Any], chunk: int, *stacked: Any) -> Any:
    """``vmap(function)`` over rows, at most ``chunk`` of them at a time, so that memory is bounded by the chunk."""
    if rows(stacked) == 1:  # a leading axis of length 1 makes XLA's CPU reductions five times slower
        return jax.tree.map(lambda leaf: leaf[None], function(*take(stacked, 0)))
    if chunk >= rows(stacked):
        return jax.vmap(function)(*stacked)
    return jax.lax.map(lambda row: function(*row), stacked, batch_size=chunk if chunk > 1 else None)


def where_needed(needed: Array, make: Callable[[Any], Any], given: Any) -> Any:
    """``make(given)`` where ``needed``, else zeros of its shapes, at no cost."""
    shapes = jax.eval_shape(make, given)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.cond(needed, make, lambda _: nothing, given)


def once(needed: Array, make: Callable[..., Any], old: Any, *given: Any) -> Any:
    """``make(*given)`` where ``needed``, else ``old``: a loop that goes round once or not at all.

    Unlike a conditional, which computes both sides for all rows once it is mapped over rows, this costs something only
    while a row needs it. XLA moves out of a loop what does not change in it, and then computes that every time: what
    is ``given`` is made to depend on the loop (a network of a million parameters: without it a step takes 5 times as
    long).

    >>> jax.vmap(lambda need, old: once(need, lambda: old + 1.0, old))(jnp.array([True, False]), jnp.zeros(2))
    Array([1., 0.], dtype=float32)
    """

    def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        inside = jax.tree.map(lambda leaf: jnp.where(carry[0], leaf, jnp.zeros_like(leaf)), given)
        return jnp.zeros_like(carry[0]), make(*inside)

    return jax.lax.while_loop(lambda c: c[0], body, (needed, old))[1]


def written(make: Callable[[], Any], yes: Array) -> Any:
    """``make()``, a batch with samples first, written to memory once; ``yes`` is true, but traced.

    XLA fuses what makes the samples into everything that reads them, so that they would be drawn again for each of the
    filter's passes (it ignores optimization_barrier on a CPU). What comes out of a conditional lies in memory, if XLA
    does not know how it goes. The samples lie innermost there.
    """
    inner = partial(jax.tree.map, lambda leaf: jnp.moveaxis(leaf, 0, -1))
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: inner(make())))
    made = jax.lax.cond(yes, lambda: inner(make()), lambda: empty)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), made)
