"""How far each client's reports lie from the others', and how much the reports of a far client count; not in the paper.

    d_i  = |x_i - median|                         of this round; the median of every coordinate, by weight
    D_i  <- MEMORY D_i + (1 - MEMORY) d_i         the mean distance of each client, over its own reports
    reach = REACH times the largest D_i of the nearest n - f of all n clients, f = floor(hostile n)
    share of its weight that a client keeps = min(1, (reach / D_i)^2), and nothing beyond FARTHEST times the reach

A client within the reach counts as it does in the mean. Beyond it, it pulls less the farther away it is: f of n clients
move the aggregate by at most f reach / n, and one that sends something absurd by next to nothing. The distances of all
clients count, not those of one round: of five that were drawn, two may be hostile although two of ten are.

Positions alone cannot tell a hostile client from an honest one that differs as much. Where fewer than ``hostile`` of
the clients differ from all others by more than REACH, they count less although they are honest; the run names them.

With fewer than 1 / ``hostile`` clients nobody can be outvoted, and the aggregate is the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from profl.numerics import exact_quantile
from profl.typing import Array

REACH = 1.75
"""Times the distance of the nearest n - f clients. On ``pricing`` two of ten clients whose estimates are turned around
leave 4.6 % of the gap with 2, 2.7 % with 1.75 and 1.4 % with 1.5; where all are honest, ``strategic`` ends at 1.0 times
the mean's excess with 2 and at 1.5 times with 1.5."""

MEMORY = 0.9
"""Share of a client's mean distance that one more report leaves: it averages about ten."""

FARTHEST = 100.0
"""Times the reach beyond which a report does not count at all: the square of what is left is less than rounding."""

LONGEST_MEMORY = 10.0
"""A mean distance is kept as no more than this many times the reach: 22 reports like the others' make up for one."""

DISTRUSTED = 0.5
"""A client is distrusted while its reports keep less than this share of their weight."""

ROUNDING = 1e-9
"""0.14 * 50 is off 7 by less than this: a share of the clients is rounded up or down only beyond it."""


class ClientDistances(NamedTuple):
    """What the server remembers of each client."""

    round: Array  # () int32: rounds so far
    mean: Array  # (clients,): D_i, -1 before the first report
    since: Array  # (clients,) int32: the round from which on it is distrusted, -1 where it is not


def no_distances(clients: int) -> ClientDistances:
    """The memory before the first round."""
    return ClientDistances(jnp.int32(0), jnp.full(clients, -1.0), jnp.full(clients, -1, jnp.int32))


def kept_shares(distances: Array, reach: Array) -> Array:
    """The share of its weight that a client at each distance keeps, (k,).

    >>> kept_shares(jnp.array([0.0, 1.0, 2.0, 1e9]), jnp.array(1.0)).round(2)
    Array([1.  , 1.  , 0.25, 0.  ], dtype=float32)
    """
    beyond = distances > reach
    share = jnp.where(beyond, (reach / jnp.where(beyond, distances, 1.0)) ** 2, 1.0)
    return jnp.where(distances <= FARTHEST * reach, share, 0.0)


def honest_counts(hostile: float, most: int, rounded: np.ufunc) -> np.ndarray:
    """n - f, at least 1, for n = 0 ... ``most``; f = ``rounded``(hostile n), ``np.ceil`` or ``np.floor``.

    >>> honest_counts(0.14, 50, np.ceil)[50], honest_counts(0.14, 50, np.floor)[[3, 50]]
    (np.int32(43), array([ 3, 43], dtype=int32))
    """
    n = np.arange(most + 1)
    slack = -ROUNDING if rounded is np.ceil else ROUNDING
    return np.maximum(n - rounded(hostile * n + slack), 1).astype(np.int32)


def reach_of(distances: Array, counts: Array, hostile: float, times: float) -> Array:
    """``times`` the largest of the n - f least distances (k,) of those that count, ().

    >>> float(reach_of(jnp.array([1.0, 2.0, 9.0, 3.0, 4.0]), jnp.ones(5, bool), 0.2, 2.0))
    8.0
    """
    last = honest_counts(hostile, distances.shape[0], np.floor) - 1
    ordered = jnp.sort(jnp.where(counts, distances, jnp.inf))
    return times * ordered[jnp.asarray(last)[jnp.sum(counts)]]


def weigh_rows(
    memory: ClientDistances,
    rows: Array,
    weights: Array,
    usable: Array,
    client_ids: Array,
    hostile: float,
    times: float = REACH,
) -> tuple[Array, ClientDistances]:
    """The share of its weight that each row of (k, m) keeps, (k,), and the next memory."""
    rows, weights = jnp.where(usable[:, None], rows, 0.0), jnp.where(usable, weights, 0.0).astype(rows.dtype)
    before = memory.mean[client_ids]
    length = jnp.linalg.norm(rows - exact_quantile(rows, weights), axis=1)
    updated = jnp.where(before < 0, length, MEMORY * before + (1 - MEMORY) * length)
    now = jnp.where(usable, updated, before).astype(memory.mean.dtype)
    mean = memory.mean.at[client_ids].set(now)
    reach = reach_of(mean, mean >= 0, hostile, times)
    shares = kept_shares(now, reach)
    since = distrusted_since(memory.since, memory.round, shares < DISTRUSTED, usable, client_ids)
    mean = jnp.minimum(mean, LONGEST_MEMORY * reach)
    return shares.astype(rows.dtype), ClientDistances(memory.round + 1, mean, since)


def distrusted_since(since: Array, round_: Array, distrusted: Array, usable: Array, client_ids: Array) -> Array:
    """The round from which on each client is distrusted without a break, (clients,); -1 where it is not."""
    before = since[client_ids]
    now = jnp.where(distrusted, jnp.where(before < 0, round_, before), -1)
    return since.at[client_ids].set(jnp.where(usable, now, before))
