"""Searching only the batches that need it, though many are filtered at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from profl import trees
from profl.typing import Array

FEWEST, PARTS = 8, 64
"""Batches searched at a time, at least, and as a part of all: most need none, and vmap would search all of them."""


class Searcher(Protocol):
    """A filter that reads a whole batch, (d, n) points and (n,) weights, many times, and learns from it."""

    def search(self, points: Array, weights: Array, vetted: Any) -> Any: ...


@lru_cache
def where_needed(filter_: Searcher) -> Callable[..., Any]:
    """``filter_.search`` in those of B batches that are ``needed``; for the others, what is ``known``.

    Under vmap all batches make one B, and those to search are gathered some at a time.
    """
    search = jax.jit(jax.vmap(filter_.search))  # traced once, though vmap has ``several`` traced again at every level

    @custom_vmap
    def several(batches: Any, known: Any, needed: Array) -> Any:
        size = min(needed.size, max(FEWEST, needed.size // PARTS))

        def search_some(state: tuple[Any, Array]) -> tuple[Any, Array]:
            found, left = state
            chosen = jnp.argsort(~left)[:size]
            own = jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=0, mode="clip"), batches)
            chosen = jnp.where(jnp.take(left, chosen, mode="clip"), chosen, needed.size)  # beyond the end: not set
            put = jax.tree.map(lambda leaf, rows: _set(leaf, chosen, rows), found, search(*own))
            return put, _set(left, chosen, False)

        return jax.lax.while_loop(lambda state: jnp.any(state[1]), search_some, (known, needed))[0]

    several.def_vmap(trees.stacked_vmap_rule(several))
    return several


def _set(leaf: Array, rows: Array, values: Any) -> Array:
    """The leaf with its rows set, but for those beyond the end."""
    return leaf.at[rows].set(values, mode="drop", wrap_negative_indices=False)
