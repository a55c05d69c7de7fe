"""Small numerical routines: inverses inside loops and of singular matrices, short loops, exact weighted quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from profl.typing import Array

State = TypeVar("State")

ROUNDING = 64
"""Sums of weights closer than this many machine epsilons of the total are equal. Sums of 10 to 20,000 equal weights
were off by at most 5 of them; weights that differ on purpose differ by more than 64."""


def short_loop(turns: int, body: Callable[[int, State], State], start: State) -> State:
    """The state after a ``fori_loop`` of a few turns, unrolled on an accelerator, which waits for the host at each.

    A CPU does not wait, and would only compile more slowly.

    >>> int(short_loop(3, lambda i, total: total + i, 0))
    3
    """
    return jax.lax.fori_loop(0, turns, body, start, unroll=jax.default_backend() != "cpu")


def inverse_logdet(matrix: Array) -> tuple[Array, Array]:
    """(the inverse, the logarithm of the determinant) of a symmetric positive definite matrix, by the sweep operator.

    Not LAPACK's Cholesky: jaxlib 0.10 hands the matrices of a batch to the thread pool that it runs in, and waits. Two
    batches of 64 x 64 matrices on two cores then wait for each other for ever.

    >>> inverse_logdet(jnp.array([[2.0, 1.0], [1.0, 2.0]]))[0].round(4)
    Array([[ 0.6667, -0.3333],
           [-0.3333,  0.6667]], dtype=float32)
    """
    eye = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)

    def sweep(carry: tuple[Array, Array], here: Array) -> tuple[tuple[Array, Array], None]:
        a, logdet = carry
        column = a @ here
        pivot, others = column @ here, 1 - here
        column = column * others - here
        return (a * (others[:, None] * others) - column[:, None] * (column / pivot), logdet + jnp.log(pivot)), None

    (swept, logdet), _ = jax.lax.scan(sweep, (matrix, jnp.zeros((), matrix.dtype)), eye)
    return -swept, logdet


def pseudo_inverse(matrix: Array) -> Array:
    """The pseudo-inverse of a symmetric matrix: directions that it lacks stay zero.

    >>> pseudo_inverse(jnp.diag(jnp.array([2.0, 0.0])))
    Array([[0.5, 0. ],
           [0. , 0. ]], dtype=float32)
    """
    axes, values = jax.lax.linalg.eigh((matrix + matrix.T) / 2, symmetrize_input=False)
    sizes = jnp.abs(values)
    there = sizes > rounding(values) * jnp.max(sizes)
    return (axes * jnp.where(there, 1 / jnp.where(there, values, 1.0), 0.0)) @ axes.T


def exact_quantile(values: Array, weights: Array, level: float = 0.5) -> Array:
    """The weighted quantile of every column of (k, m) values, shape (m,), exact by sorting.

    It is the least value with at least ``level`` of the weight at or below it; midway where two values qualify.

    >>> exact_quantile(jnp.array([[1.0], [2.0], [9.0], [4.0]]), jnp.full(4, 0.25))
    Array([3.], dtype=float32)
    """
    ordered, upto = ordered_weights(values, weights)
    edge, slack = level * upto[-1], rounding(values) * upto[-1]
    at = jnp.stack([jnp.argmax(upto >= edge - slack, axis=0), jnp.argmax(upto > edge + slack, axis=0)])
    low, high = jnp.take_along_axis(ordered, at, axis=0)
    return low / 2 + high / 2  # the sum of two huge ones would overflow


def ordered_weights(values: Array, weights: Array) -> tuple[Array, Array]:
    """Every column of (k, m) values sorted, and the weight up to and including each entry."""
    repeated = jnp.broadcast_to(weights[:, None], values.shape)
    ordered, own = jax.lax.sort((values, repeated), dimension=0, num_keys=1)
    return ordered, jnp.cumsum(own, axis=0)


def rounding(values: Array) -> float:
    """The difference below which two shares of a total are equal but for rounding."""
    return ROUNDING * float(jnp.finfo(values.dtype).eps)
