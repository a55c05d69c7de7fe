"""Clusters of clients that react alike, and the df/dtheta that each shares (paper, Algorithm 1, lines 18-20).

    1. rows     which reports can be used, and
    2. scores   what they are compared by: ``profl.server.scores``
    3. k-means  ``profl.server.kmeans``
    4. count    "auto" takes the C in 2..largest with the best simplified silhouette, the mean of 1 - a_i / b_i (a_i:
                distance to the own centre, b_i: to the next), and divides at all only where log(variance / inertia)
                exceeds that of NULL_CLOUDS Gaussian clouds of the same covariance, divided likewise, by NULL_DEVIATIONS
                of their standard deviations. The silhouette alone cannot tell: it is 0.67 to 0.73 for one group, and
                0.62 or more for three.
    5. share    the cluster's mean with far rows clipped, or another rule. One hostile client moves the paper's plain
                mean at will; here none pulls harder than the median distance. The coordinate median is more robust, but
                its own noise is a quarter higher, and the errors of a shared Jacobian, being common to the cluster, do
                not cancel when models are averaged. Where clients state the error of their J_i, each gets J_i shrunk
                towards the aggregate as far as its error suggests: ``profl.server.shrinkage``.

Clients count alike here, whatever they weigh in the risk; those of no weight do not count. With weights the median and
the clipping follow whoever has most of it, and so its noise: 2.7 times the excess of not sharing at 0.6 of the weight.

A cluster of fewer than LEAST_MEMBERS clients, or under LEAST_CLUSTER_SHARE of them, is small: its clients get the
aggregate of the nearest large cluster. A lone client has nobody to share with, and a lone attacker must not set its own
aggregate. Hostile rows within OUTSIDE_DISTANCE that agree with one another cannot be told from a group; "auto" gives
them a cluster of their own.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import trees
from profl.checks import InputError, function, positive_int
from profl.numerics import exact_quantile
from profl.server.kmeans import (
    OUTLIER_PASSES,
    RESTARTS,
    Groups,
    distances,
    kmeans,
    kmeans_without_outliers,
    random_like,
    silhouette,
)
from profl.server.rules import CentredClipping
from profl.server.scores import ScoredRows, score_rows
from profl.server.sharing import Sharing
from profl.server.shrinkage import Shrinkage, shrink_rows, valid_variance
from profl.typing import Array, Key

NULL_CLOUDS = 24
"""Gaussian clouds that a division is compared with: their standard deviation is known to a seventh. With 6 one group is
left whole in 0.83 of 24 draws, with 24 in all."""

NULL_DEVIATIONS = 3.5
"""Clients are divided where the gain is this many standard deviations above the clouds' mean gain. Of 24 draws one
group is left whole in 0.75 with 2, in all with 3.5 and 6; groups of 70 : 20 : 10 are found in 0.92, 0.92 and 0.88."""

Rule = Callable[[Array, Array, Array, Array], Array]
CLIPPING = CentredClipping()


@dataclass(frozen=True)
class Clusters(Sharing):
    """Groups of clients that react alike, and the robust aggregate of each.

    ``count`` is the number of groups C, or "auto": found among 1..``largest`` from the Jacobians themselves.
    ``rule(vectors (k, m), weights (k,), accepted (k,) bool, centre (m,)) -> (m,)`` aggregates the cluster that
    ``accepted`` marks; ``centre`` is its coordinate median.

    Measured (200 draws; k = 100, J_i = -gamma_i I_5 + noise of sd sigma per entry; Rand: adjusted, mean):

        groups                          sigma        "auto" finds C   Rand          Rand, C given
        one                             0.3          0.97
        one, 20 % send -50 J_i          0.3          0.98
        two, gamma 0.75 apart           0.3          1.00             0.99          0.99
        two, gamma 0.5 / 0.375 apart    0.3          0.98 / 0.30      0.85 / 0.21   0.86 / 0.63
        three, gamma 0.75 apart         0.05, 0.15   1.00             1.00          1.00
        three, gamma 0.75 apart         0.3 / 0.4    1.00 / 0.98      0.99 / 0.92   0.99 / 0.93
        three, 70 : 20 : 10             0.3          0.97             0.99          0.99
        three, 20 % send -50 J_i        0.3          1.00             0.99          0.99
        three, k = 24                   0.3          0.76             0.78          0.98

    Sharing cuts the error of J about 4 times with three groups, 8 times with one. Where there are no groups (gamma
    spread evenly over [0.75, 2.25], k = 30), the plain aggregate raises the error 4 times at sigma = 0.05 and 1.4 times
    at 0.15; with ``shrink``, for which clients state the errors of their J_i, it cuts it 1.02 and 1.2 times.

    >>> reports = -jnp.array([1.0, 1.1, 1.0, 0.9, 3.1, 3.0, 2.9, jnp.nan]).reshape(8, 1, 1)
    >>> share = jax.jit(Clusters(2).share)
    >>> shared, labels = share(jax.random.key(0), reports, jnp.full(8, 1 / 8), jnp.arange(8) < 7)
    >>> labels.tolist(), shared.ravel().tolist()
    ([0, 0, 0, 0, 1, 1, 1, -1], [-1.0, -1.0, -1.0, -1.0, -3.0, -3.0, -3.0, -1.0])
    """

    count: int | str = "auto"
    largest: int = 6  # each count that is tried costs a k-means; with 100 clients six groups have 17 members
    rule: Rule = CLIPPING
    shrink: bool = True

    def __post_init__(self) -> None:
        positive_int("largest", self.largest)
        function("rule", "such as a rule of profl.server.rules", self.rule)
        whole = isinstance(self.count, numbers.Integral) and not isinstance(self.count, bool)
        if self.count != "auto" and not (whole and self.count >= 1):  # type: ignore[operator]
            raise InputError(f'count must be a whole number of at least 1 or "auto", got {self.count!r}; try "auto"')

    def check(self, clients: int) -> None:
        """Refuse more clusters than clients."""
        if not isinstance(self.count, str) and self.count > clients:
            raise InputError(f'count must be at most {clients}, one per client, got {self.count}; try "auto"')

    def assign(self, key: Key, jacobians: Array, weights: Array, accepted: Array) -> Array:
        """Labels (k,) int32: 0 is the heaviest large cluster, -1 a row that belongs to none."""
        return self.share(key, jacobians, weights, accepted)[1]

    def share(
        self, key: Key, jacobians: Array, weights: Array, accepted: Array, errors: Array | None = None
    ) -> tuple[Array, Array]:
        """(the Jacobian of each client (k, p, s), labels (k,)); label -1 gets cluster 0's; NaN without usable rows.

        ``errors`` (k,) is the mean squared error of an entry that each client states of its J, NaN where it does not.
        """
        rows = score_rows(jacobians, (weights > 0).astype(float), accepted)
        groups = self._group(key, rows)
        slot = jnp.arange(groups.large.shape[0])
        members = groups.in_centre & (groups.labels == slot[:, None])
        undivided = ~jnp.any(groups.large) & (slot == 0)  # too few clients to divide: one aggregate for all
        members = jnp.where(undivided[:, None], rows.weights > 0, members)
        medians = jax.vmap(exact_quantile, (None, 0))(rows.vectors, rows.weights * members)
        aggregates = jax.vmap(self.rule, (None, None, 0, 0))(rows.vectors, rows.weights, members, medians)
        between = jnp.where(groups.large | undivided, distances(groups.centres, groups.centres, slot.size), jnp.inf)
        labels = jnp.where(rows.inside, groups.labels, -1).astype(jnp.int32)
        shared = aggregates[jnp.argmin(between, 1)[jnp.maximum(labels, 0)]]
        if self.shrink and errors is not None:
            variances = jnp.broadcast_to(errors.reshape(len(errors), -1), rows.vectors.shape)
            used = rows.inside & jnp.all(valid_variance(variances), 1)
            shared = shrink_rows(rows.vectors, variances, shared, weights, used, members & (rows.weights > 0))
        return jnp.where(jnp.any(rows.weights > 0), shared.reshape(jacobians.shape), jnp.nan), labels

    def _group(self, key: Key, rows: ScoredRows) -> Groups:
        clients = rows.weights.shape[0]
        self.check(clients)
        if isinstance(self.count, str):
            groups = choose_division(key, rows.scores, rows.weights, min(self.largest, clients))
        else:
            draws = random_like(rows.scores, jax.random.uniform, key, (OUTLIER_PASSES + 1, RESTARTS, self.count))
            groups, _ = kmeans_without_outliers(draws, rows.scores, rows.weights, self.count)
        order = jnp.argsort(-(groups.mass + groups.large))
        return Groups(jnp.argsort(order)[groups.labels], groups.in_centre, *trees.take(groups[2:], order))


def choose_division(key: Key, x: Array, weights: Array, slots: int) -> Groups:
    """The best division into 2..slots clusters, or one cluster where that gains no more than in a Gaussian."""
    first = jnp.arange(slots) == 0
    centres = jnp.zeros((slots, x.shape[1]), x.dtype)
    whole = Groups(jnp.zeros(x.shape[0], int), weights > 0, first.astype(x.dtype), first, centres)
    if slots == 1:
        return whole
    seed_key, cloud_key, null_key = jax.random.split(key, 3)
    draws = random_like(x, jax.random.uniform, seed_key, (slots - 1, OUTLIER_PASSES + 1, RESTARTS, slots))
    counts = jnp.arange(2, slots + 1)
    groups, fits = jax.vmap(kmeans_without_outliers, (0, None, None, 0))(draws, x, weights, counts)
    quality = jax.vmap(silhouette, (None, None, 0, 0))(x, weights, groups, counts)
    best = jnp.argmax(jnp.where(fits, quality, -jnp.inf))
    division, count = trees.take(groups, best), counts[best]
    used, tiny = weights * division.in_centre, jnp.finfo(x.dtype).tiny

    def variance(x: Array) -> Array:
        total = jnp.maximum(jnp.sum(used), tiny)
        return used @ (x - used @ x / total) ** 2 / total

    def gain(x: Array, inertia: Array) -> Array:
        return jnp.log(jnp.maximum(jnp.sum(variance(x)), tiny)) - jnp.log(jnp.maximum(inertia, tiny))

    clouds = jnp.sqrt(variance(x)) * random_like(x, jax.random.normal, cloud_key, (NULL_CLOUDS, *x.shape))
    draws = random_like(x, jax.random.uniform, null_key, (NULL_CLOUDS, RESTARTS, slots))
    nulls = jax.vmap(gain)(clouds, jax.vmap(kmeans, (0, 0, None, None))(draws, clouds, used, count)[1])
    own = gain(x, jnp.sum(used * jnp.min(distances(x, division.centres, count), 1)))
    split = fits[best] & (own > jnp.mean(nulls) + NULL_DEVIATIONS * jnp.std(nulls))
    return trees.where(split, division, whole)


def get(spec: Any) -> Sharing | None:
    """How Jacobians are shared: None, a number of clusters, "auto", "shrink", or a ``Sharing`` as it is.

    >>> get(2).count, get(None), get("shrink")
    (2, None, Shrinkage())
    """
    if isinstance(spec, str) and spec == "shrink":
        return Shrinkage()
    return spec if spec is None or isinstance(spec, Sharing) else Clusters(spec)
