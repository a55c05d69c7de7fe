"""Each client's df/dtheta, shrunk towards the mean of similar clients as far as its error suggests (empirical Bayes).

Not in the paper, whose lines 18-20 of Algorithm 1 it can replace. An entry of J is b_i at client i; clients differ by
b_i ~ N(m, tau^2), and a client knows b_i as J_i with variance E_i:

    m      <- mean of J_i over the n clients, winsorised WINSOR_DEVIATIONS from the median
    tau^2  <- sum of (J_i - m)^2 / (n - 1) - mean of E_i, squares winsorised at WINSOR_DEVIATIONS^2
    B_i    <- (n - 3) / (n - 1) E_i / (tau^2 + E_i), at most 1
    s_i    <- mean of (J_i - m)^2 / (tau^2 + E_i), at least 1: for a client that differs more than others do
    J_i    <- m + (1 - B_i / s_i) (J_i - m)

Every entry has its own m and tau^2, so that entries that are zero everywhere are estimated as zero; means over entries
are over two sets, those in which clients surely differ and the others. (n - 3) / (n - 1) is James and Stein's: of three
clients nobody can say how much they differ. Where there are groups (``profl.server.clusters``) each has its own m,
tau^2 is common, and n - 1 and n - 3 lose one more for every group. Clients that state larger errors than the data show
(Kalman filters in doubt: twice as large, one unlike the others six times) have their errors reduced to those.

All clients count alike: that one matters more to the risk (alpha_i) says nothing about how another's people react. But
the risk follows Y = sum_i alpha_i J_i, and what helps most clients may harm there: a client with most of the weight
that differs from the rest. So all are moved back towards their own estimates by one share, as far as that sum suggests:

    D      <- the change of Y by sharing;   V <- variance of Y without sharing
    share  <- 1 - (ALLOWED_MOVE + (1 - 2 / m) mean of cov(Y, D) / V) / mean of D^2 / V   over a set of m entries; 0 to 1

D is noise and bias. The noise that it has in common with Y is what sharing saves; a D beyond that is bias. (Stein's
estimate of the best mixture of an unbiased estimate and another; ALLOWED_MOVE is what rounding may cost.)

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

MEDIAN_CHI2 = 0.455  # the median of a squared standard normal
WINSOR_DEVIATIONS = 3.0  # standard deviations beyond which a difference counts as no larger
POOLED_ENTRIES = 8  # weight, in entries, of all clients' ratio beside a client's own when stated errors are checked
DIFFERENCE_FACTOR = 2.0  # clients differ in an entry whose variance is this many times what their errors explain
ERROR_SLACK = (
    1.3  # times the errors that the data show, which stated ones may be: medians of few entries are off by 1/3
)
LARGEST_SQUARE_RATIO = 1e12  # times its variance, which a square counts as at most: stated errors may be zero
CLIPPING = CentredClipping()  # for clients without a usable report: more robust than the mean, and noisier
ALLOWED_MOVE = 0.01  # squared change of Y, as a share of its variance, that sharing needs no reason for


@dataclass(frozen=True)
class Shrinkage(Sharing):
    """Shrinks every client's J towards the mean of all, for ``share=``; clients need not form groups. See the module.

    >>> import jax
    >>> reports = -jnp.array([1.0, 1.2, 0.8, 1.1, 0.9, 5.0]).reshape(6, 1, 1)
    >>> share = jax.jit(Shrinkage().share)
    >>> shared, _ = share(None, reports, jnp.full(6, 1 / 6), jnp.ones(6, bool), jnp.full((6, 1, 1), 0.05))
    >>> [round(j, 2) for j in shared.ravel().tolist()]  # the last is unlike the others, and known well
    [-1.01, -1.2, -0.82, -1.1, -0.91, -5.0]
    """

    entrywise = True  # wants the error of every entry

    def share(self, key: Key, jacobians: Array, weights: Array, accepted: Array, errors: Array) -> tuple[Array, Array]:
        """(the Jacobian of each client (k, p, s), 0 for each whose report was used and -1 for the others)."""
        k = weights.shape[0]
        rows, variances = jacobians.reshape(k, -1), errors.reshape(k, -1)
        used = accepted & (weights > 0) & jnp.all(jnp.isfinite(rows) & valid_variance(variances), 1)
        rows = jnp.where(used[:, None], rows, 0.0)
        one = used.astype(rows.dtype)
        own = shrink_rows(rows, variances, winsorised_mean(rows, one), weights, used, used[None])
        shared = jnp.where(used[:, None], own, CLIPPING(rows, one, used, exact_quantile(rows, one)))
        return jnp.where(jnp.any(used), shared, jnp.nan).reshape(jacobians.shape), jnp.where(used, 0, -1).astype(
            jnp.int32
        )


def winsorised_mean(rows: Array, one: Array) -> Array:
    """The mean of every entry, (m,), with rows winsorised at WINSOR_DEVIATIONS from the median.

    Where no row lies farther it is the plain mean, and shrinking all rows towards it keeps their mean.
    """
    middle = exact_quantile(rows, one)
    reach = WINSOR_DEVIATIONS * jnp.sqrt(exact_quantile((rows - middle) ** 2, one) / MEDIAN_CHI2)
    return middle + one @ jnp.clip(rows - middle, -reach, reach) / jnp.maximum(jnp.sum(one), 1)


def valid_variance(variances: Array) -> Array:
    """Which stated variances are finite and not negative."""
    return jnp.isfinite(variances) & (variances >= 0)


def shrink_rows(rows: Array, variances: Array, means: Array, weights: Array, used: Array, members: Array) -> Array:
    """Rows (k, m) shrunk towards their means (k, m), those of ``members`` (groups, k); the means where not ``used``."""
    rows, variances = (jnp.where(used[:, None], each, 0.0) for each in (rows, variances))
    members = (members & used).astype(rows.dtype)
    one, tiny = jnp.max(members, 0), jnp.finfo(rows.dtype).tiny
    sizes = jnp.sum(members, 1, keepdims=True)
    count, freedom = jnp.sum(one), jnp.sum(one) - jnp.sum(sizes > 0)
    off = rows - means
    variances = _visible_share(off, variances, one) * variances
    most = WINSOR_DEVIATIONS**2 * exact_quantile(off**2, one) / MEDIAN_CHI2
    varies = one @ jnp.minimum(off**2, most) / jnp.maximum(freedom, 1)
    usual = one @ variances / jnp.maximum(count, 1)
    tau2 = varies - usual
    differ = used @ off**2 > DIFFERENCE_FACTOR * usual * jnp.sum(used)
    sets = jnp.stack([differ, ~differ]).astype(rows.dtype)
    many = jnp.maximum(jnp.sum(sets, 1), 1.0)

    def mean(values: Array) -> Array:
        """Over the entries of each set."""
        return values @ sets.T / many

    times = jnp.minimum(off**2 / (jnp.maximum(tau2, 0.0) + variances + tiny), LARGEST_SQUARE_RATIO)
    unlike = jnp.maximum(mean(times), 1.0) @ sets
    sure = jnp.maximum(1 - 2 / jnp.maximum(freedom, 1), 0.0) * variances
    part = jnp.where(used[:, None], sure / (jnp.maximum(tau2 + variances, sure) + tiny) / unlike, 1.0)

    alpha = jnp.where(used, weights, 0.0)[:, None]
    errors = jnp.minimum(
        variances, exact_quantile(variances, one)
    )  # one uncertain client must not hide the change of Y
    common = members.T @ (members @ (alpha * errors) / jnp.maximum(sizes, 1))  # cov(Y, m of the row)
    unit = jnp.sum(alpha**2 * errors, 0) + tiny
    move = mean(jnp.sum(alpha * part * off, 0) ** 2 / unit)
    saved = mean(jnp.sum(alpha * part * (alpha * errors - common), 0) / unit)
    reason = ALLOWED_MOVE + jnp.maximum(1 - 2 / many, 0.0) * jnp.maximum(saved, 0.0)
    applied = jnp.minimum(reason / jnp.maximum(move, tiny), 1.0) @ sets
    return rows - jnp.where(used[:, None], applied * part, 1.0) * off


def _visible_share(off: Array, variances: Array, one: Array) -> Array:
    """The share (k, 1) of the stated variances that the data show, by the median of off^2 / E; at most 1.

    Clients cannot differ by less than their errors. In most entries they hardly differ, and the other entries hardly
    move the median: so it also works for a client that is unlike the others.
    """
    m = off.shape[1]
    ratio = off**2 / jnp.where(variances > 0, variances, 1.0)
    every = exact_quantile(ratio.reshape(-1, 1), jnp.repeat(one, m))
    own = exact_quantile(ratio.T, jnp.ones(m, off.dtype))
    return jnp.minimum(ERROR_SLACK * (m * own + POOLED_ENTRIES * every) / (m + POOLED_ENTRIES) / MEDIAN_CHI2, 1.0)[
        :, None
    ]
