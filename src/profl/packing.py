"""Many small arrays as one: what a compiled loop carries, a vector per dtype instead of an array per field.

Every array that a loop carries costs a program some fifteen instructions: it enters and leaves each loop around it, is
chosen or kept, and is looked at for NaN. A packed one costs three, a slice, a shape and its part of a concatenation.
Large arrays stay by themselves: copying them costs more than an instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LARGEST_PACKED = 2**10  # entries of the largest array that is copied into a vector


class Layout(NamedTuple):
    """The structure of what is packed, and of every array of one row its shape and the vector that it is in."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[str, ...]


@partial(jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["layout"])
@dataclass(frozen=True)
class Packed:
    """A pytree as few vectors, (..., entries); leading axes are those of rows."""

    vectors: dict[str, Any]
    layout: Layout

    def unpack(self, wanted: list[bool] | None = None) -> Any:
        """The pytree, with the leading axes of the vectors before the shape of every leaf; zeros for unwanted ones."""
        leaves, used = [], dict.fromkeys(self.vectors, 0)
        for i, (shape, group) in enumerate(zip(self.layout.shapes, self.layout.groups, strict=True)):
            vector, start = self.vectors[group], used[group]
            used[group] = start + math.prod(shape)
            if wanted is not None and not wanted[i]:
                leaves.append(np.zeros((*vector.shape[:-1], *shape), vector.dtype))
                continue
            part = vector if used[group] - start == vector.shape[-1] else vector[..., start : used[group]]
            leaves.append(part.reshape((*vector.shape[:-1], *shape)))
        return jax.tree.unflatten(self.layout.structure, leaves)


def pack(tree: Any, axes: int = 0) -> Packed:
    """The pytree packed; the first ``axes`` axes of every leaf are those of rows.

    >>> packed = pack({"a": jnp.ones(2), "b": jnp.zeros(()), "c": jnp.int32(3)})
    >>> {name: vector.shape for name, vector in packed.vectors.items()}, int(packed.unpack()["c"])
    ({'float32': (3,), 'int32': (1,)}, 3)
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in leaves]
    shapes = tuple(leaf.shape[axes:] for leaf in leaves)
    groups = tuple(
        str(leaf.dtype) if math.prod(shape) <= LARGEST_PACKED and isinstance(leaf.dtype, np.dtype) else f"leaf {i}"
        for i, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True))
    )
    vectors: dict[str, Any] = {}
    for group in dict.fromkeys(groups):
        rows = [leaf.reshape(*leaf.shape[:axes], -1) for leaf, own in zip(leaves, groups, strict=True) if own == group]
        vectors[group] = jnp.concatenate(rows, -1) if len(rows) > 1 else rows[0]
    return Packed(vectors, Layout(structure, shapes, groups))


def unpack(tree: Any) -> Any:
    """What is packed, unpacked; anything else as it is."""
    return tree.unpack() if isinstance(tree, Packed) else tree


def apply_unpacked(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function(unpack(tree))``, and only what the function reads is unpacked: the rest would stay in the program."""
    if not isinstance(tree, Packed):
        return function(tree)
    jaxpr = jax.make_jaxpr(function)(jax.eval_shape(tree.unpack)).jaxpr
    read = {id(v) for v in (*jaxpr.outvars, *(v for equation in jaxpr.eqns for v in equation.invars))}
    return function(tree.unpack([id(v) in read for v in jaxpr.invars]))


def pack_as(old: Any, new: Any) -> Any:
    """``new``, packed if ``old`` is."""
    return pack(new) if isinstance(old, Packed) else new
