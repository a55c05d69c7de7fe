"""Order statistics without sorting: XLA takes 73 us to sort 500 numbers on a CPU, and 3 us for this."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array

LEAST, MOST = np.int32(-(2**31)), np.int32(2**31 - 1)  # of all keys


def order_statistic(values: Array, present: Array, rank: Array) -> Array:
    """The value of that rank (1 for the least) among those present, along the last axis; exact in single precision.

    On a CPU bit by bit, from the first: the largest number with fewer than ``rank`` values below it. An accelerator
    sorts: it waits for the host at every turn of a loop.

    >>> order_statistic(jnp.array([3.0, -1.0, 2.0, 9.0]), jnp.array([True, True, True, False]), 2)
    Array(2., dtype=float32)
    """
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    keys = jnp.where(present, jnp.where(bits < 0, bits ^ MOST, bits), MOST)  # in the order of the values

    def turn(i: Array, low: Array) -> Array:
        ahead = low + (jnp.int32(1) << (31 - i))  # the first one wraps around, from the least key to zero
        return jnp.where(jnp.sum(keys < ahead[..., None], axis=-1) < rank, ahead, low)

    if jax.default_backend() == "cpu":
        key = jax.lax.fori_loop(0, 32, turn, jnp.full(values.shape[:-1], LEAST))
    else:
        place = jnp.maximum(jnp.ceil(rank).astype(jnp.int32) - 1, 0)
        places = jnp.broadcast_to(place, values.shape[:-1])[..., None]
        key = jnp.take_along_axis(jax.lax.sort(keys, is_stable=False), places, axis=-1)[..., 0]
    return jax.lax.bitcast_convert_type(jnp.where(key < 0, key ^ MOST, key), jnp.float32)
