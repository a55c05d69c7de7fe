"""Minimising a risk that the client can compute, where a part o of theta = (s, o) is personal and s is shared.

    o    <- where L_i(s, .) is least inside a trust region           at the client: ``newton_step``
    phi  =  L_i(s, o) + (o - o_0)' D (o - o_0) / 2,  o = o(s)        what the server minimises over s: ``profile``

When s moves, o follows with the slope T (``response_to_shared``): -(H_oo + D)^-1 H_os where nothing holds it (the
implicit function theorem), and as the model space moves it where that holds it. With M = [1; T], g the gradient of L_i
and H its curvature, phi has the gradient M' (g + D (o - o_0)) and the curvature M' (H + D) M.

D is small and matters only where nothing else decides: of a model that is the sum of a common and a personal part, the
common part becomes a mean over clients, and o each client's difference from it. D does not hold personal parts back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.methods.prm.newton import minimise_quadratic, positive_inverse
from profl.methods.prm.settings import NEWTON_SHARES, PERSONAL_PENALTY
from profl.typing import Array


def newton_step(risk: Callable[[Array], Array], curvature: Array, y: Array, project: Callable[[Array], Array]) -> Array:
    """``y`` (d,) after one Newton step or a share of it, never to where the risk is higher.

    >>> risk = lambda y: jnp.sum((y - 3.0) ** 2)
    >>> newton_step(risk, 2 * jnp.eye(2), jnp.zeros(2), lambda y: jnp.clip(y, -1.0, 5.0))
    Array([3., 3.], dtype=float32)
    """
    y = project(y)  # the shared part has moved since
    step = minimise_quadratic(curvature, jax.grad(risk)(y), y, project) - y
    candidates = y + jnp.asarray(NEWTON_SHARES, y.dtype)[:, None] * step
    risks = jax.vmap(risk)(candidates)
    return candidates[jnp.argmin(jnp.where(jnp.isfinite(risks), risks, jnp.inf))]


def penalty(curvature: Array, personal: np.ndarray) -> Array:
    """D (d, d), zero for shared parameters; ``personal`` (d,) bool says which are personal."""
    return jnp.diag(jnp.where(personal, PERSONAL_PENALTY * jnp.abs(jnp.diagonal(curvature)), 0.0))


def response_to_shared(curvature: Array, personal: np.ndarray, held: Any, carried: Array) -> Array:
    """M (d, d): how all parameters move with each shared one; columns of personal parameters are zero.

    ``held`` (d,) says which personal parameters cannot move by themselves; their rows of ``carried`` (d, d) say how
    the model space moves them.
    """
    movable, eye = personal & ~held, jnp.eye(held.size)
    moves = jnp.where(held[:, None], carried, eye) * ~personal  # of shared and of carried parameters
    inner = jnp.where(movable[:, None] & movable, curvature + penalty(curvature, personal), eye)
    right = jnp.where(movable[:, None], curvature @ moves, 0.0)
    return moves - positive_inverse(inner, jnp.zeros(held.size)) @ right


def profile(
    gradient: Array, matrices: tuple[Array, ...], offset: Array, personal: np.ndarray, moves: Array
) -> tuple[Array, list[Array]]:
    """The gradient of phi, its curvature and the covariances of that gradient; zero for personal parameters.

    ``matrices`` are the curvature of L_i and covariances of its gradient, ``offset`` (d,) is o - o_0 and zero for
    shared parameters, ``moves`` is M.
    """
    curvature, *covariances = matrices
    D = penalty(curvature, personal)
    return moves.T @ (gradient + D @ offset), [moves.T @ matrix @ moves for matrix in (curvature + D, *covariances)]
