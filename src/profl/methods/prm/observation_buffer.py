"""What a client has tried so far: signals that were deployed, and what came in. Of fixed size, however long the run.

Once there is no room for another, the two that lie nearest to each other become one: its signal and f are their means,
weighed by their samples. So everything that was seen still counts, where it was seen.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array


class Trials(NamedTuple):
    signal: Array  # (N, s), or (N, memories, s)
    f: Array  # (N, p)
    samples: Array  # (N,): how many stand behind f; zero where there is nothing yet

    @property
    def known(self) -> Array:
        """Which places are taken: (N,) bool."""
        return self.samples > 0


def no_trials(room: int, signal: tuple[int, ...], f: int) -> Trials:
    """Nothing yet, and room for so many."""
    return Trials(jnp.zeros((room, *signal)), jnp.zeros((room, f)), jnp.zeros(room))


def add(trials: Trials, signal: Array, f: Array, samples: Array) -> Trials:
    """The trials with one more.

    >>> trials = no_trials(2, (1,), 1)
    >>> for signal, f in [(0.0, 1.0), (5.0, 2.0), (0.2, 3.0)]:
    ...     trials = add(trials, jnp.array([signal]), jnp.array([f]), jnp.ones(()))
    >>> trials.signal.ravel(), trials.f.ravel(), trials.samples
    (Array([0.1, 5. ], dtype=float32), Array([2., 2.], dtype=float32), Array([2., 1.], dtype=float32))
    """
    size, new = trials.signal.shape[0], (signal, f, samples)
    longer = Trials(*(jnp.concatenate([old, row[None]]) for old, row in zip(trials, new, strict=True)))
    first, second = _nearest(longer)
    full = jnp.all(trials.known)
    merged = _merged(longer, first, second)
    place = jnp.where(full, first, jnp.argmin(trials.known))
    chosen = [jnp.where(full, a, b) for a, b in zip(merged, new, strict=True)]
    longer = Trials(*(leaf.at[place].set(row) for leaf, row in zip(longer, chosen, strict=True)))
    # the newest takes the place of the second of the pair that became one, unless it is that second one itself
    taken = jnp.where(full & (second < size), second, size)
    moved = (leaf.at[taken].set(leaf[size]) for leaf in longer)
    return Trials(*(leaf[:size] for leaf in moved))


def _nearest(trials: Trials) -> tuple[Array, Array]:
    """The two that lie nearest to each other, the first of them before the second."""
    places = trials.signal.reshape(trials.signal.shape[0], -1)
    squares = jnp.sum((places[:, None] - places[None]) ** 2, -1)
    known = trials.known
    upper = jnp.triu(known[:, None] & known, 1)
    flat = jnp.argmin(jnp.where(upper, squares, jnp.inf))
    return flat // known.size, flat % known.size


def _merged(trials: Trials, first: Array, second: Array) -> tuple[Array, ...]:
    total = trials.samples[first] + trials.samples[second]
    share = trials.samples[first] / jnp.where(total > 0, total, 1.0)
    signal, f = (share * leaf[first] + (1 - share) * leaf[second] for leaf in (trials.signal, trials.f))
    return signal, f, total
