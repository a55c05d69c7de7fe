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
    """Row(s) ``index`` of every leaf of a stacked pytree.

    >>> take({"a": jnp.arange(3), "b": np.zeros((3, 2))}, 1)["a"]
    Array(1, dtype=int32)
    """
    whole = index if isinstance(index, tuple) else (index,)
    known = not any(isinstance(part, jax.core.Tracer) for part in whole)

    def rows_of(leaf: Any) -> Any:
        if known and _in_host_memory(leaf):
            return jax.device_put(np.array(np.asarray(leaf)[index]))
        return leaf[index]

    return jax.tree.map(rows_of, tree)


def _in_host_memory(leaf: Any) -> bool:
    """Whether JAX would compile a small program for what NumPy does to this array as it lies: not while tracing."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or not leaf.is_fully_addressable:
        return False
    return all(device.platform == "cpu" for device in leaf.devices())


def row_shape(tree: Any) -> Any:
    """The shapes of one row of a stacked pytree."""
    return jax.eval_shape(partial(take, index=0), tree)


def repeat(tree: Any, count: int) -> Any:
    """A stacked pytree with ``count`` rows, each of them ``tree``.

    >>> repeat(jnp.arange(2), 3).shape
    (3, 2)
    """

    def copies(leaf: Any) -> Array:
        shape = (count, *jnp.shape(leaf))
        if _in_host_memory(leaf):
            return jax.device_put(np.array(np.broadcast_to(np.asarray(leaf), shape)))
        return jnp.broadcast_to(leaf, shape)

    return jax.tree.map(copies, tree)


def rows(tree: Any) -> int:
    """The number of rows of a stacked pytree."""
    return int(jax.tree.leaves(tree)[0].shape[0])


def stack(trees: list[Any]) -> Any:
    """Pytrees of one structure as the rows of one stacked pytree."""

    def stacked(*leaves: Any) -> Array:
        if all(map(_in_host_memory, leaves)):
            return jax.device_put(np.stack([np.asarray(leaf) for leaf in leaves]))
        return jnp.stack(leaves)

    return jax.tree.map(stacked, *trees)


def concatenate_batches(batches: Any) -> Any:
    """One batch, leaves (k n, ...), from stacked ones, (k, n, ...); samples lie innermost in memory.

    >>> concatenate_batches(jnp.arange(6).reshape(2, 3)).tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def join(leaf: Array) -> Array:
        inner = jnp.moveaxis(leaf, (0, 1), (-2, -1))
        return jnp.moveaxis(inner.reshape(*inner.shape[:-2], -1), -1, 0)

    return jax.tree.map(join, batches)


def merge_stacks(size: int, batched: Any, arguments: Any) -> Any:
    """The stacks of all ``size`` batches as one stack.

    >>> [leaf.shape for leaf in merge_stacks(2, (True, False), (jnp.zeros((2, 3, 4)), jnp.zeros((3, 5))))]
    [(6, 4), (6, 5)]
    """

    def flat(leaf: Array, own: bool) -> Array:
        full = leaf if own else jnp.broadcast_to(leaf, (size, *leaf.shape))
        return full.reshape(-1, *full.shape[2:])

    return jax.tree.map(flat, arguments, batched)


def stacked_vmap_rule(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule of ``custom_vmap`` for a function of stacks: one call with the stacks of all batches as one."""

    def rule(size: int, batched: Any, *arguments: Any) -> tuple[Any, Any]:
        result = function(*merge_stacks(size, tuple(batched), arguments))
        apart = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), result)
        return apart, jax.tree.map(lambda _: True, result)

    return rule


def where(condition: Array, new: Any, old: Any) -> Any:
    """``new`` where ``condition`` holds, else ``old``; a condition of shape (k,) chooses rows.

    A leaf that both have in common costs nothing.
    """

    def choose(a: Array, b: Array) -> Array:
        if a is b:
            return a
        if not condition.ndim and jnp.shape(a) == jnp.shape(b) and jnp.result_type(a) == jnp.result_type(b):
            return jax.lax.select(condition, a, b)
        return jnp.where(condition.reshape(condition.shape + (1,) * (jnp.ndim(a) - condition.ndim)), a, b)

    return jax.tree.map(choose, new, old)


@partial(jax.jit, inline=True)
def all_finite(tree: Any, largest: float | None = None) -> Array:
    """Whether every number in a pytree is finite, or no larger than ``largest``: a scalar bool.

    Leaf by leaf: concatenated first, XLA would compile every leaf again for every other one.
    """

    def fine(leaf: Array) -> Array:
        return jnp.isfinite(leaf) if largest is None else jnp.abs(leaf) <= largest  # not so for NaN

    leaves = [jnp.all(fine(leaf)) for leaf in jax.tree.leaves(tree)]
    return reduce(jnp.logical_and, leaves, jnp.asarray(True))


def flat_rows(tree: Any, axes: int = 1) -> np.ndarray:
    """The numbers of a pytree behind its first ``axes`` axes as one vector, with NumPy.

    >>> flat_rows({"a": np.ones((2, 3)), "b": np.zeros(2)}).shape
    (2, 4)
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], axis=axes)


@partial(jax.jit, inline=True)
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
        return array if isinstance(array, jax.Array) else jax.device_put(array)

    return jax.tree.map(convert, tree)


def to_device(tree: Any, dtype: Any = float) -> Any:
    """``cast``, outside of compiled code: NumPy's arrays are copied there without a program."""
    wanted = np.dtype(jnp.result_type(dtype))

    def convert(leaf: Any) -> Array:
        array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        return jax.device_put(array.astype(wanted) if jnp.issubdtype(array.dtype, jnp.floating) else array)

    return jax.tree.map(convert, tree)


def map_blocks(function: Callable[[Any], Any], rows_: Any, block: int = 16) -> Any:
    """``function`` of stacked NumPy arrays, a block of rows at a time, as NumPy arrays; outside of compiled code.

    The last block is filled up with the last row, so that any number of rows takes the same programs.

    >>> map_blocks(lambda leaf: leaf + 1, np.arange(3)).tolist()
    [1, 2, 3]
    """
    count, parts = rows(rows_), []
    for first in range(0, count, block):
        part = function(take(rows_, np.minimum(np.arange(first, first + block), count - 1)))
        parts.append(jax.tree.map(lambda leaf, left=count - first: np.asarray(leaf)[:left], part))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def map_chunks(function: Callable[..., Any], chunk: int, *stacked: Any) -> Any:
    """``vmap(function)`` over rows, at most ``chunk`` of them at a time, so that memory is bounded by the chunk."""
    if rows(stacked) == 1:  # a leading axis of length 1 makes XLA's CPU reductions five times slower
        return jax.tree.map(lambda leaf: leaf[None], function(*take(stacked, 0)))
    if chunk >= rows(stacked):
        return jax.vmap(function)(*stacked)
    return jax.lax.map(lambda row: function(*row), stacked, batch_size=chunk if chunk > 1 else None)


def cond_or_zeros(condition: Array, make: Callable[[Any], Any], argument: Any) -> Any:
    """``make(argument)`` where ``condition`` holds, else zeros of its shapes, at no cost."""
    shapes = jax.eval_shape(make, argument)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.cond(condition, make, lambda _: zeros, argument)


def cond_or_keep(condition: Array, make: Callable[..., Any], old: Any, *arguments: Any) -> Any:
    """``make(*arguments)`` where ``condition`` holds, else ``old``: a loop of one turn or none.

    A conditional that is mapped over rows computes both sides for all of them; this loop runs only while some row needs
    it. XLA moves what does not change out of a loop and then computes it every time, so the arguments are made to
    depend on the loop (with a network of a million parameters a step takes 5 times as long without that).

    >>> jax.vmap(lambda need, old: cond_or_keep(need, lambda: old + 1.0, old))(jnp.array([True, False]), jnp.zeros(2))
    Array([1., 0.], dtype=float32)
    """

    def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        inside = jax.tree.map(lambda leaf: jnp.where(carry[0], leaf, jnp.zeros_like(leaf)), arguments)
        return jnp.zeros_like(carry[0]), make(*inside)

    return jax.lax.while_loop(lambda c: c[0], body, (condition, old))[1]


def materialise(make: Callable[[], Any], true: Array) -> Any:
    """``make()``, a batch with samples first, written to memory once; ``true`` is a traced True.

    XLA fuses the draws into everything that reads them, so samples would be drawn again for each pass of the filter
    (it ignores optimization_barrier on a CPU). The result of a conditional with an unknown condition is written to
    memory. The samples lie innermost there. For an accelerator XLA writes them by itself.
    """
    if jax.default_backend() != "cpu":
        return make()
    inner = partial(jax.tree.map, lambda leaf: jnp.moveaxis(leaf, 0, -1))
    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: inner(make())))
    batch = jax.lax.cond(true, lambda: inner(make()), lambda: empty)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), batch)
