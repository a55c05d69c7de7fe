"""Searching only the batches that need it, though many are filtered at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from profl import trees
from profl.typing import Array

FEWEST, PARTS = 8, (16, 512)
"""Batches searched at a time, at least, and as parts of all: vmap would search all of them. At first all need it, later
one in some hundreds. (A CPU's blocks are so small that both are the least.)"""


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
        def search_some(size: int, state: tuple[Any, Array]) -> tuple[Any, Array]:
            found, left = state
            chosen = jnp.argsort(~left)[:size]
            own = jax.tree.map(lambda leaf: jnp.take(leaf, chosen, axis=0, mode="clip"), batches)
            chosen = jnp.where(jnp.take(left, chosen, mode="clip"), chosen, needed.size)  # beyond the end: not set
            put = jax.tree.map(lambda leaf, rows: _set(leaf, chosen, rows), found, search(*own))
            return put, _set(left, chosen, False)

        def more_than(least: int, state: tuple[Any, Array]) -> Array:
            return jnp.sum(state[1]) > least

        state, sizes = (known, needed), {min(needed.size, max(FEWEST, needed.size // part)) for part in PARTS}
        for size in sorted(sizes, reverse=True):
            least = 0 if size == min(sizes) else size // 2
            state = jax.lax.while_loop(partial(more_than, least), partial(search_some, size), state)
        return state[0]

    several.def_vmap(trees.stacked_vmap_rule(several))
    return several


def _set(leaf: Array, rows: Array, values: Any) -> Array:
    """The leaf with its rows set, but for those beyond the end."""
    return leaf.at[rows].set(values, mode="drop", wrap_negative_indices=False)
