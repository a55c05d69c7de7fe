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
            own = jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="promise_in_bounds"), batches)
            chosen = chosen + needed.size * ~left.at[chosen].get(mode="promise_in_bounds")  # beyond the end: not set
            put = jax.tree.map(lambda leaf, rows: leaf.at[chosen].set(rows, mode="drop"), found, search(*own))
            return put, left.at[chosen].set(False, mode="drop")

        return jax.lax.while_loop(lambda state: jnp.any(state[1]), search_some, (known, needed))[0]

    several.def_vmap(trees.stacked_vmap_rule(several))
    return several
