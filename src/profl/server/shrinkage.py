"""Each client's df/dtheta, drawn towards that of all clients as far as the errors say (empirical Bayes).

An entry of J is b_i at client i; clients differ by b_i ~ N(m, tau^2), and a client knows b_i as J_i with variance E_i:

    m      <- mean of J_i, far rows clipped
    tau^2  <- mean of (J_i - m)^2 - E_i, none of the squares counted for more than FAR^2 times what half of them show
    s_i    <- mean over entries of (J_i - m)^2 / (tau^2 + E_i), at least 1: who differs by more than others do
    J_i    <- m + (1 - E_i / (s_i (tau^2 + E_i))) (J_i - m)

Every entry has its own m and tau^2, so that entries that are zero everywhere are learned to be zero. Nobody loses what
it knows by itself: where clients differ, tau^2 is large; a client unlike all others keeps its own J, by s_i. All
clients count alike: that one matters more to the risk (alpha_i) says nothing of how another's people react.

Mean squared error of J over that without sharing, of all clients and of the one that gains least (100 draws of ten
clients with J_i = -gamma_i I_3 + noise of sd 0.15): all alike 0.17, 0.18; gamma spread over [0, 3] 0.45, 0.54; nine
alike and one that does not react 0.32, 0.97.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from profl.quantiles import exact_quantile
from profl.server.rules import CentredClipping
from profl.typing import Array, Key

HALF = 0.455  # the median of a squared standard normal
FAR = 3.0  # standard deviations from which on a difference counts for no more
FEWEST = 3  # clients: of fewer nobody can say how much they differ
CLIPPED = CentredClipping()


@dataclass(frozen=True)
class Shrinkage:
    """See the module: a way for ``share=``. Clients need not form groups.

    >>> reports = -jnp.array([1.0, 1.2, 0.8, 1.1, 0.9, 5.0]).reshape(6, 1, 1)
    >>> found, _ = Shrinkage().share(None, reports, jnp.full(6, 1 / 6), jnp.ones(6, bool), jnp.full((6, 1, 1), 0.05))
    >>> [round(float(j), 2) for j in found.ravel()]  # the last is unlike the others, and known well
    [-1.03, -1.12, -0.93, -1.07, -0.98, -4.99]
    """

    entrywise = True  # wants the error of every entry

    def check(self, clients: int) -> None:
        """Any number will do."""

    def share(self, key: Key, jacobians: Array, weights: Array, accepted: Array, errors: Array) -> tuple[Array, Array]:
        """(what each client gets (k, p, s), 0 for each whose report was used and -1 for the others)."""
        k = weights.shape[0]
        rows, variances = jacobians.reshape(k, -1), errors.reshape(k, -1)
        used = accepted & (weights > 0) & jnp.all(jnp.isfinite(rows) & (variances >= 0) & jnp.isfinite(variances), 1)
        rows, variances = (jnp.where(used[:, None], each, 0.0) for each in (rows, variances))
        one, count, tiny = used.astype(rows.dtype), jnp.sum(used), jnp.finfo(rows.dtype).tiny
        mean = CLIPPED(rows, one, used, exact_quantile(rows, one))
        squares = (rows - mean) ** 2
        most = FAR**2 * exact_quantile(squares, one) / HALF
        tau2 = jnp.maximum(one @ (jnp.minimum(squares, most) - variances) / jnp.maximum(count, 1), 0.0)
        total = tau2 + variances + tiny
        unlike = jnp.maximum(jnp.mean(squares / total, 1, keepdims=True), 1.0)
        own = mean + (1 - variances / (unlike * total)) * (rows - mean)
        shared = jnp.where(used[:, None], jnp.where(count < FEWEST, rows, own), mean)
        return jnp.where(count > 0, shared, jnp.nan).reshape(jacobians.shape), jnp.where(used, 0, -1).astype(jnp.int32)
