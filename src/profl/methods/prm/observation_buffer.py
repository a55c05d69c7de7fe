"""What a client has observed so far: signals that were deployed, and f that came in. Of fixed size, whatever the run.

Once the buffer is full, the two observations that lie nearest to each other are merged: signal and f become their
means, weighted by their samples. So everything that was observed still counts, where it was observed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
    rows = jnp.column_stack([leaf.reshape(leaf.shape[0], -1) for leaf in buffer])
    new = jnp.hstack([leaf.ravel() for leaf in (signal, f, samples)])
    rows = jnp.vstack([rows, new])
    kept, merged = _pair_to_merge(rows[:, : signal.size], rows[:, -1] > 0)
    pair = rows[jnp.stack([kept, merged])]
    share = pair[:, -1:] / jnp.sum(pair[:, -1])
    mean = jnp.append(jnp.sum(share * pair, 0)[:-1], jnp.sum(pair[:, -1]))
    # the newest takes the place of the second of the merged pair, unless it is that second one itself
    place = np.arange(rows.shape[0])[:, None]
    rows = jnp.where(place == kept, mean, jnp.where(place == merged, new, rows))[:-1]
    signals, values, counts = jnp.split(rows, (signal.size, new.size - 1), 1)
    return ObservationBuffer(signals.reshape(buffer.signal.shape), values, counts[:, 0])


def _pair_to_merge(places: Array, filled: Array) -> tuple[Array, Array]:
    """Rows of the two observations that lie nearest to each other, the smaller row first; while there is an empty row,
    the first of these and the last observation, the new one."""
    squares = jnp.sum((places[:, None] - places) ** 2, -1)
    last = np.arange(filled.size) == filled.size - 1
    squares = jnp.where(filled[:, None], jnp.where(filled, squares, jnp.inf), jnp.where(last, -1.0, jnp.inf))
    flat = jnp.argmin(jnp.where(np.triu(np.ones(squares.shape, bool), 1), squares, jnp.inf))
    count = jnp.full_like(flat, filled.size)
    return jax.lax.div(flat, count), jax.lax.rem(flat, count)
