"""What a client has observed so far: signals that were deployed, and f that came in. Of fixed size, whatever the run.

Once the buffer is full, the two observations that lie nearest to each other are merged: signal and f become their
means, weighted by their samples. So everything that was observed still counts, where it was observed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array


class ObservationBuffer(NamedTuple):
    """N observations of the signal and f."""

    signal: Array  # (N, s), or (N, memories, s)
    f: Array  # (N, p)
    samples: Array  # (N,): how many samples stand behind f; zero for an empty row

    @property
    def filled(self) -> Array:
        """Which rows hold an observation: (N,) bool."""
        return self.samples > 0


def empty_buffer(size: int, signal: tuple[int, ...], f: int) -> ObservationBuffer:
    """A buffer of ``size`` empty rows for signals of shape ``signal`` and f of size ``f``."""
    return ObservationBuffer(jnp.zeros((size, *signal)), jnp.zeros((size, f)), jnp.zeros(size))


def add_observation(buffer: ObservationBuffer, signal: Array, f: Array, samples: Array) -> ObservationBuffer:
    """The buffer with one more observation.

    >>> buffer = empty_buffer(2, (1,), 1)
    >>> for signal, f in [(0.0, 1.0), (5.0, 2.0), (0.2, 3.0)]:
    ...     buffer = add_observation(buffer, jnp.array([signal]), jnp.array([f]), jnp.ones(()))
    >>> buffer.signal.ravel(), buffer.f.ravel(), buffer.samples
    (Array([0.1, 5. ], dtype=float32), Array([2., 2.], dtype=float32), Array([2., 1.], dtype=float32))
    """
    size, new = buffer.signal.shape[0], (signal, f, samples)
    longer = ObservationBuffer(*(jnp.concatenate([old, row[None]]) for old, row in zip(buffer, new, strict=True)))
    first, second = _nearest_pair(longer)
    full = jnp.all(buffer.filled)
    merged = _merge(longer, first, second)
    place = jnp.where(full, first, jnp.argmin(buffer.filled))
    chosen = [jnp.where(full, a, b) for a, b in zip(merged, new, strict=True)]
    longer = ObservationBuffer(*(leaf.at[place].set(row) for leaf, row in zip(longer, chosen, strict=True)))
    # the newest takes the place of the second of the merged pair, unless it is that second one itself
    vacant = jnp.where(full & (second < size), second, size)
    refilled = (leaf.at[vacant].set(leaf[size]) for leaf in longer)
    return ObservationBuffer(*(leaf[:size] for leaf in refilled))


def _nearest_pair(buffer: ObservationBuffer) -> tuple[Array, Array]:
    """Rows of the two observations whose signals are nearest to each other, the smaller row first."""
    places = buffer.signal.reshape(buffer.signal.shape[0], -1)
    squares = jnp.sum((places[:, None] - places[None]) ** 2, -1)
    filled = buffer.filled
    upper = jnp.triu(filled[:, None] & filled, 1)
    flat = jnp.argmin(jnp.where(upper, squares, jnp.inf))
    return flat // filled.size, flat % filled.size


def _merge(buffer: ObservationBuffer, first: Array, second: Array) -> tuple[Array, ...]:
    """Signal, f and samples of two observations as one."""
    total = buffer.samples[first] + buffer.samples[second]
    share = buffer.samples[first] / jnp.where(total > 0, total, 1.0)
    signal, f = (share * leaf[first] + (1 - share) * leaf[second] for leaf in (buffer.signal, buffer.f))
    return signal, f, total
