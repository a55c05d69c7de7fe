"""Order statistics without sorting: XLA takes 73 us to sort 500 numbers on a CPU, and 3 us for this."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from profl.typing import Array


def order_statistic(values: Array, present: Array, rank: Array) -> Array:
    """The value of that rank (1 for the least) among those present, along the last axis; exact in single precision.

    Bit by bit, from the first: the largest number with fewer than ``rank`` values below it.

    >>> order_statistic(jnp.array([3.0, -1.0, 2.0, 9.0]), jnp.array([True, True, True, False]), 2)
    Array(2., dtype=float32)
    """
    sign = jnp.uint32(1 << 31)
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32)
    keys = jnp.where(present, jnp.where(bits >= sign, ~bits, bits | sign), jnp.uint32(2**32 - 1))  # in order

    def turn(i: Array, low: Array) -> Array:
        ahead = low | (sign >> i.astype(jnp.uint32))
        return jnp.where(jnp.sum(keys < ahead[..., None], axis=-1) < rank, ahead, low)

    key = jax.lax.fori_loop(0, 32, turn, jnp.zeros(values.shape[:-1], jnp.uint32))
    return jax.lax.bitcast_convert_type(jnp.where(key >= sign, key ^ sign, ~key), jnp.float32)
