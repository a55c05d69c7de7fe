"""Linear algebra that a client may do in a loop, for many clients at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from profl.typing import Array


def inverse(matrix: Array) -> Array:
    """The inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination (the sweep operator).

    Not LAPACK's Cholesky: jaxlib 0.10 gives the matrices of a batch to the thread pool that it runs in, and waits. Two
    batches of 64 x 64 matrices on two cores then wait for each other for ever.

    >>> inverse(jnp.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    Array([[ 0.6667, -0.3333],
           [-0.3333,  0.6667]], dtype=float32)
    """
    return inverse_logdet(matrix)[0]


def inverse_logdet(matrix: Array) -> tuple[Array, Array]:
    """The same, and the logarithm of the determinant: the pivots' product."""
    size = matrix.shape[-1]

    def sweep(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        a, logdet = carry
        here = jnp.arange(size) == k
        row, column, pivot = a[k], a[:, k], a[k, k]
        rest = a - column[:, None] * row / pivot
        swept = jnp.where(here[:, None], row / pivot, jnp.where(here, -column[:, None] / pivot, rest))
        return jnp.where(here[:, None] & here, 1 / pivot, swept), logdet + jnp.log(pivot)

    return jax.lax.fori_loop(0, size, sweep, (matrix, jnp.zeros((), matrix.dtype)))
