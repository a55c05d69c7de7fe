"""Each client's df/dtheta, drawn towards what those like it have in common as far as the errors say (empirical Bayes).

An entry of J is b_i at client i; clients differ by b_i ~ N(m, tau^2), and a client knows b_i as J_i with variance E_i:

    m      <- mean of J_i over the n clients, what lies FAR from the median brought that near
    tau^2  <- sum of (J_i - m)^2 / (n - 1) - mean of E_i, no square counted for more than FAR^2 times what half show
    B_i    <- (n - 3) / (n - 1) E_i / (tau^2 + E_i), at most 1
    s_i    <- mean of (J_i - m)^2 / (tau^2 + E_i), at least 1: who differs by more than others do
    J_i    <- m + (1 - B_i / s_i) (J_i - m)

Every entry has its own m and tau^2, so that entries that are zero everywhere are learned to be zero; means over entries
are over two sets, those in which clients surely differ and the others. (n - 3) / (n - 1) is James and Stein's: of three
clients nobody can say how much they differ. Where there are groups (``profl.server.clusters``) each has its m, tau^2 is
common, and n - 1 and n - 3 lose one more for every group. Clients that state larger errors than can be seen (Kalman
filters in doubt: twice as large, one unlike the others six times) are held to what is seen.

All clients count alike: that one matters more to the risk (alpha_i) says nothing of how another's people react. But
the risk follows Y = sum_i alpha_i J_i, and there what helps most clients may harm: a client with most of the weight
that differs from the rest. So all go back towards their own by one part, as far as that sum says:

    D      <- by how much sharing moves Y;   V <- variance of Y without sharing
    part   <- 1 - (ALLOWED + (1 - 2 / m) mean of cov(Y, D) / V) / mean of D^2 / V     over a set of m entries, in [0, 1]

D is noise and what sharing falsifies. The noise of it that Y has as well is what sharing saves; a D beyond that is
false. (Stein's estimate of the best mixture of an unbiased estimate and another; ALLOWED is what rounding may cost.)

Mean squared error of J over that without sharing, of all clients and of the one that gains least (100 draws of ten
clients with J_i = -gamma_i I_3 + noise of sd 0.15): all alike 0.33, 0.35; gamma spread over [0, 3] 0.56, 0.58; nine
alike and one that does not react 0.57, 0.60.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from profl.numerics import exact_quantile
from profl.server.rules import CentredClipping
from profl.server.sharing import Sharing
from profl.typing import Array, Key

HALF = 0.455  # the median of a squared standard normal
FAR = 3.0  # standard deviations from which on a difference counts for no more
ENTRIES = 8  # of all clients, that count beside a client's own where its stated errors are held against what is seen
DIFFER = 2.0  # times the variance of an entry that errors explain: from there on clients are said to differ in it
CHANCE = 1.3  # times what is seen, that errors may be: medians of few entries are off by a third
FINITE = 1e12  # times the variance that a square counts for at most: errors may be stated to be zero
CLIPPED = CentredClipping()  # for those who sent nothing of use: it stands more, and its noise is higher
ALLOWED = 0.01  # of the variance of Y: the square of what sharing may move it by without a reason


@dataclass(frozen=True)
class Shrinkage(Sharing):
    """See the module: a way for ``share=``. Clients need not form groups.

    >>> reports = -jnp.array([1.0, 1.2, 0.8, 1.1, 0.9, 5.0]).reshape(6, 1, 1)
    >>> found, _ = Shrinkage().share(None, reports, jnp.full(6, 1 / 6), jnp.ones(6, bool), jnp.full((6, 1, 1), 0.05))
    >>> [round(float(j), 2) for j in found.ravel()]  # the last is unlike the others, and known well
    [-1.01, -1.2, -0.82, -1.1, -0.91, -5.0]
    """

    entrywise = True  # wants the error of every entry

    def share(self, key: Key, jacobians: Array, weights: Array, accepted: Array, errors: Array) -> tuple[Array, Array]:
        """(what each client gets (k, p, s), 0 for each whose report was used and -1 for the others)."""
        k = weights.shape[0]
        rows, variances = jacobians.reshape(k, -1), errors.reshape(k, -1)
        used = accepted & (weights > 0) & jnp.all(jnp.isfinite(rows) & known(variances), 1)
        rows = jnp.where(used[:, None], rows, 0.0)
        one = used.astype(rows.dtype)
        own = drawn(rows, variances, near_mean(rows, one), weights, used, used[None])
        shared = jnp.where(used[:, None], own, CLIPPED(rows, one, used, exact_quantile(rows, one)))
        return jnp.where(jnp.any(used), shared, jnp.nan).reshape(jacobians.shape), jnp.where(used, 0, -1).astype(int)


def near_mean(rows: Array, one: Array) -> Array:
    """Of every entry, what lies FAR from the median brought that near.

    Where nothing lies far it is the plain mean, and drawing all towards it leaves their mean where it was.
    """
    middle = exact_quantile(rows, one)
    reach = FAR * jnp.sqrt(exact_quantile((rows - middle) ** 2, one) / HALF)
    return middle + one @ jnp.clip(rows - middle, -reach, reach) / jnp.maximum(jnp.sum(one), 1)


def known(variances: Array) -> Array:
    return jnp.isfinite(variances) & (variances >= 0)


def drawn(rows: Array, variances: Array, means: Array, weights: Array, used: Array, members: Array) -> Array:
    """Rows (k, m) drawn towards their means (k, m), of which ``members`` (groups, k) were made; not used: the means."""
    rows, variances = (jnp.where(used[:, None], each, 0.0) for each in (rows, variances))
    members = (members & used).astype(rows.dtype)
    one, tiny = jnp.max(members, 0), jnp.finfo(rows.dtype).tiny
    sizes = jnp.sum(members, 1, keepdims=True)
    count, free = jnp.sum(one), jnp.sum(one) - jnp.sum(sizes > 0)
    off = rows - means
    variances = _seen(off, variances, one) * variances
    most = FAR**2 * exact_quantile(off**2, one) / HALF
    varies = one @ jnp.minimum(off**2, most) / jnp.maximum(free, 1)
    usual = one @ variances / jnp.maximum(count, 1)
    tau2 = varies - usual
    differ = used @ off**2 > DIFFER * usual * jnp.sum(used)
    sets = jnp.stack([differ, ~differ]).astype(rows.dtype)
    many = jnp.maximum(jnp.sum(sets, 1), 1.0)

    def mean(values: Array) -> Array:
        """Over the entries of each set."""
        return values @ sets.T / many

    times = jnp.minimum(off**2 / (jnp.maximum(tau2, 0.0) + variances + tiny), FINITE)
    unlike = jnp.maximum(mean(times), 1.0) @ sets
    sure = jnp.maximum(1 - 2 / jnp.maximum(free, 1), 0.0) * variances
    part = jnp.where(used[:, None], sure / (jnp.maximum(tau2 + variances, sure) + tiny) / unlike, 1.0)

    alpha = jnp.where(used, weights, 0.0)[:, None]
    errors = jnp.minimum(variances, exact_quantile(variances, one))  # one that knows little must not hide what is moved
    common = members.T @ (members @ (alpha * errors) / jnp.maximum(sizes, 1))  # cov(Y, m of the row)
    unit = jnp.sum(alpha**2 * errors, 0) + tiny
    moved = mean(jnp.sum(alpha * part * off, 0) ** 2 / unit)
    saved = mean(jnp.sum(alpha * part * (alpha * errors - common), 0) / unit)
    reason = ALLOWED + jnp.maximum(1 - 2 / many, 0.0) * jnp.maximum(saved, 0.0)
    kept = jnp.minimum(reason / jnp.maximum(moved, tiny), 1.0) @ sets
    return rows - jnp.where(used[:, None], kept * part, 1.0) * off


def _seen(off: Array, variances: Array, one: Array) -> Array:
    """(k, 1): the part of the stated variances that can be seen, by the median of off^2 / E; at most 1.

    Clients cannot differ by less than their errors. In most entries they hardly differ, and the rest leaves the median
    alone: so one that is unlike the others is seen to know better than it says, too.
    """
    m = off.shape[1]
    ratio = off**2 / jnp.where(variances > 0, variances, 1.0)
    every = exact_quantile(ratio.reshape(-1, 1), jnp.repeat(one, m))
    own = exact_quantile(ratio.T, jnp.ones(m, off.dtype))
    return jnp.minimum(CHANCE * (m * own + ENTRIES * every) / (m + ENTRIES) / HALF, 1.0)[:, None]
