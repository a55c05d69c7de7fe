"""What the filter dropped at each client over a whole run: two numbers per client, whatever the number of rounds."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.typing import Array


class Dropped(NamedTuple):
    """One row per client. Only accepted reports that state a share count."""

    total: Array  # the share of the weight that was dropped, a mean over a round's batches, summed over rounds
    rounds: Array


def nothing_dropped(clients: int) -> Dropped:
    return Dropped(jnp.zeros(clients), jnp.zeros(clients, jnp.int32))


def add_round(dropped: Dropped, clients: Array, kept: Array, accepted: Array) -> Dropped:
    """With one more round, of which these clients state what they kept; one that stands there twice counts once."""
    counts = accepted & jnp.isfinite(kept)
    before = trees.take(dropped, clients)
    share = jnp.where(counts, jnp.clip(1.0 - kept, 0.0, 1.0), 0.0)
    after = Dropped(before.total + share, before.rounds + counts)
    return jax.tree.map(lambda all_, own: all_.at[clients].set(own), dropped, after)


def mean_share(dropped: Dropped) -> np.ndarray:
    """The mean share dropped at each client, NaN where nothing counted."""
    total, rounds = np.asarray(dropped.total, float), np.asarray(dropped.rounds)
    return np.divide(total, rounds, out=np.full(total.shape, np.nan), where=rounds > 0)
