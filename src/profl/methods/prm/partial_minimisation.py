"""Minimising a risk that the client can compute, where a part o of theta = (s, o) is its own.

    o    <- where L_i(s, .) is least inside a trust region           at the client: ``nearer``
    phi  =  L_i(s, o) + (o - o_0)' D (o - o_0) / 2,  o = o(s)        what the server minimises over s: ``of_shared``

When s moves, o follows it with the slope T (``follows``): -(H_oo + D)^-1 H_os where it is free (the implicit function
theorem), as the model space says where that holds it. With M = [1; T], g the slope of L_i and H its curvature, phi has
the slope M' (g + D (o - o_0)) and the curvature M' (H + D) M.

D is small and decides only where nothing else does: of a model that is the sum of a common part and one's own, the
common part becomes a mean of what clients have, and o what each does differently. It does not hold a client's own part
back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.methods.prm.newton import least_inside, upright
from profl.typing import Array

LIGHT = 1e-3  # D, as a share of the curvature: single precision leaves it three digits
SHARES = 0.0, 0.25, 1.0  # of a Newton step that are tried


def nearer(risk: Callable[[Array], Array], curvature: Array, y: Array, inside: Callable[[Array], Array]) -> Array:
    """One Newton step, or a part of it: never to where the risk is higher.

    >>> risk = lambda y: jnp.sum((y - 3.0) ** 2)
    >>> nearer(risk, 2 * jnp.eye(2), jnp.zeros(2), lambda y: jnp.clip(y, -1.0, 5.0))
    Array([3., 3.], dtype=float32)
    """
    y = inside(y)  # the shared part has moved since
    step = least_inside(curvature, jax.grad(risk)(y), y, inside) - y
    tried = y + jnp.asarray(SHARES, y.dtype)[:, None] * step
    risks = jax.vmap(risk)(tried)
    return tried[jnp.argmin(jnp.where(jnp.isfinite(risks), risks, jnp.inf))]


def light(curvature: Array, mine: np.ndarray) -> Array:
    """D (d, d), of what is one's own; ``mine`` (d,) bool says what that is."""
    return jnp.diag(jnp.where(mine, LIGHT * jnp.abs(jnp.diagonal(curvature)), 0.0))


def follows(curvature: Array, mine: np.ndarray, held: Any, carried: Array) -> Array:
    """M (d, d): what all parameters do when a shared one moves; columns of one's own are zero.

    ``held`` (d,) says what of one's own cannot move by itself, and the rows of ``carried`` (d, d) what it then does.
    """
    loose, eye = mine & ~held, jnp.eye(held.size)
    moves = jnp.where(held[:, None], carried, eye) * ~mine  # the shared ones, and those that are carried along
    whole = jnp.where(loose[:, None] & loose, curvature + light(curvature, mine), eye)
    wanted = jnp.where(loose[:, None], curvature @ moves, 0.0)
    return moves - jnp.linalg.solve(upright(whole, jnp.zeros(held.size)), wanted)


def of_shared(
    slope: Array, bends: tuple[Array, ...], off: Array, mine: np.ndarray, moves: Array
) -> tuple[Array, list[Array]]:
    """The slope of phi; and of ``bends``, its curvature and the covariances of the slope. Zero at what is one's own.

    ``off`` (d,) is o - o_0, zero at what is shared.
    """
    curvature, *doubts = bends
    pull = light(curvature, mine)
    return moves.T @ (slope + pull @ off), [moves.T @ square @ moves for square in (curvature + pull, *doubts)]
