"""Which clients react alike, and what each may use in place of its own noisy df/dtheta (paper, Algorithm 1, "Server
Aggregation").

    1. rows     the reported J_i, flattened. Refused rows, and rows further from the coordinate median than REACH times
                the larger of the 75 % distance and the median's own length (-50 J_i, say): in no cluster, label -1.
    2. scores   rows on their leading principal directions, since distances over 25 noisy numbers are mostly noise. Rows
                are pulled to the median distance first, so that a few far ones cannot turn the axes, and a direction
                loses the variance that noise explains. A row that lies APART times as far off these directions as usual
                counts in no centre and no aggregate; it gets the nearest label.
    3. k-means  k-means++ seeds, RESTARTS restarts, STEPS Lloyd steps. Where a cluster comes out small (below), or a row
                lies STRAY times as far from its centre as usual, such rows are set aside (if they are few) and the rest
                is divided anew: a stray client must neither use up a cluster nor hide how well the others fall into
                groups.
    4. count    "auto" takes the C in 2..largest with the best simplified silhouette, the mean of 1 - a_i / b_i (a_i:
                distance to the own centre, b_i: to the next), and divides at all only where log(variance / inertia)
                exceeds that of NULLS Gaussian clouds of the same covariance, divided likewise, by SIGMAS of their
                standard deviations. The silhouette alone cannot tell: 0.67 to 0.73 for one group, 0.62 up for three.
    5. share    the cluster's mean with far rows clipped, or another rule. One hostile client moves the paper's plain
                mean at will; here none pulls harder than the median distance. The coordinate median stands more, but
                its own noise is a quarter higher, and the errors of a shared Jacobian, being common to the cluster, do
                not cancel when models are averaged. Where clients state the error of their J_i and differ by more than
                that within a cluster, each gets J_i drawn towards the aggregate, as far as its own error says.

A cluster of fewer than MEMBERS clients, or under SHARE of the weight, is small: its clients get the aggregate of the
nearest large cluster. A lone client has nobody to share with, and a lone poisoner must not serve itself. Hostile rows
within REACH that agree with one another cannot be told from a group; "auto" gives them a cluster of their own.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import trees
from profl.checks import InputError, positive_int
from profl.server.rules import CentredClipping
from profl.typing import Array, Key

REACH, APART, STRAY = 5.0, 3.0, 8.0
DIRECTIONS, FLOOR = 5, 1.5
RESTARTS, STEPS, PEELS = 8, 20, 3
NULLS, SIGMAS = 24, 3.5
MEMBERS, SHARE = 3, 0.05
BOUND = 1e15  # the square of a longer row is not a number in single precision

Rule = Callable[[Array, Array, Array, Array], Array]
CLIPPED = CentredClipping()


class Rows(NamedTuple):
    vectors: Array  # (k, m), zero where outside
    weights: Array  # (k,), zero where the row must not count
    inside: Array  # (k,) bool: accepted, finite and within reach
    scores: Array  # (k, n) on the leading directions


class Groups(NamedTuple):
    labels: Array  # (k,) in 0..slots-1
    kept: Array  # (k,) bool: counts in its cluster's centre and aggregate
    mass: Array  # (slots,) weight of those kept
    large: Array  # (slots,) bool
    centres: Array  # (slots, n)


@dataclass(frozen=True)
class Clusters:
    """Groups of clients that react alike, and the robust aggregate of each.

    ``count`` is the number of groups C, or "auto": found among 1..``largest`` from the Jacobians themselves.
    ``rule(vectors (k, m), weights (k,), accepted (k,) bool, centre (m,)) -> (m,)`` aggregates the cluster that
    ``accepted`` marks; ``centre`` is its coordinate median.

    Measured (200 draws; k = 100, J_i = -gamma_i I_5 + noise of sd sigma per entry; Rand: adjusted, mean):

        groups                          sigma        "auto" finds C   Rand          Rand when told C
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
    >>> shared, labels = Clusters(2).share(jax.random.key(0), reports, jnp.full(8, 1 / 8), jnp.arange(8) < 7)
    >>> labels.tolist(), shared[:, 0, 0].tolist()
    ([0, 0, 0, 0, 1, 1, 1, -1], [-1.0, -1.0, -1.0, -1.0, -3.0, -3.0, -3.0, -1.0])
    """

    count: int | str = "auto"
    largest: int = 6
    rule: Rule = CLIPPED
    shrink: bool = True

    def __post_init__(self) -> None:
        positive_int("largest", self.largest)
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
        """(what each client gets (k, p, s), labels (k,)); label -1 gets cluster 0's; NaN where no row can be used.

        ``errors`` (k,) is the mean squared error of an entry that each client states of its J, NaN where it does not.
        """
        rows = prepare(jacobians, weights, accepted)
        groups = self._group(key, rows)
        slot = jnp.arange(groups.large.shape[0])
        members = groups.kept & (groups.labels == slot[:, None])
        undivided = ~jnp.any(groups.large) & (slot == 0)  # too few clients to divide: one aggregate for all
        members = jnp.where(undivided[:, None], rows.weights > 0, members)
        medians = jax.vmap(weighted_quantile, (None, 0))(rows.vectors, rows.weights * members)
        aggregates = jax.vmap(self.rule, (None, None, 0, 0))(rows.vectors, rows.weights, members, medians)
        between = jnp.where(groups.large | undivided, distances(groups.centres, groups.centres, slot.size), jnp.inf)
        labels = jnp.where(rows.inside, groups.labels, -1).astype(jnp.int32)
        shared = aggregates[jnp.argmin(between, 1)[jnp.maximum(labels, 0)]]
        if self.shrink and errors is not None:
            own = drawn_towards(rows.vectors, shared, rows.weights * members, errors)
            shared = jnp.where((rows.weights > 0)[:, None] & groups.kept[:, None], own, shared)
        return jnp.where(jnp.any(rows.weights > 0), shared.reshape(jacobians.shape), jnp.nan), labels

    def _group(self, key: Key, rows: Rows) -> Groups:
        clients = rows.weights.shape[0]
        self.check(clients)
        if isinstance(self.count, str):
            groups = choose(key, rows.scores, rows.weights, min(self.largest, clients))
        else:
            draws = draw(jax.random.uniform, key, (PEELS + 1, RESTARTS, self.count), rows.scores)
            groups, _ = peel(draws, rows.scores, rows.weights, self.count)
        order = jnp.argsort(-(groups.mass + groups.large))
        return Groups(jnp.argsort(order)[groups.labels], groups.kept, *trees.take(groups[2:], order))


def drawn_towards(vectors: Array, shared: Array, members: Array, errors: Array) -> Array:
    """Each row between its own value and what it shares, as its error and the true differences in its cluster say.

        row <- shared + tau^2 / (tau^2 + error) (row - shared)
        tau^2 = median over the cluster of the mean square of (row - shared), less error

    members: (slots, k) weights. A row whose error is not known takes what is shared.
    """
    known = jnp.isfinite(errors) & (errors >= 0)
    off = jnp.mean((vectors - shared) ** 2, axis=1)
    beyond = jnp.where(known, off - errors, 0.0)
    per_slot = jax.vmap(lambda weights: weighted_quantile(beyond[:, None], weights * known)[0])(members)
    tau2 = jnp.maximum(jnp.sum(jnp.where(members > 0, per_slot[:, None], 0.0), axis=0), 0.0)
    part = jnp.where(known, tau2 / jnp.maximum(tau2 + errors, jnp.finfo(vectors.dtype).tiny), 0.0)
    return shared + part[:, None] * (vectors - shared)


def prepare(jacobians: Array, weights: Array, accepted: Array) -> Rows:
    """Steps 1 and 2: which rows can be used, and their scores."""
    vectors = jacobians.reshape(jacobians.shape[0], -1)
    inside = accepted & jnp.all(jnp.abs(vectors) < BOUND, 1)
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0).astype(vectors.dtype)
    middle = weighted_quantile(vectors, weights)
    distance = jnp.linalg.norm(vectors - middle, axis=1)
    most = weighted_quantile(distance[:, None], weights, 0.75)
    inside &= distance <= REACH * jnp.maximum(most, jnp.linalg.norm(middle))
    vectors, weights = jnp.where(inside[:, None], vectors, 0.0), jnp.where(inside, weights, 0.0)
    tiny = jnp.finfo(vectors.dtype).tiny
    weights = weights / jnp.maximum(jnp.sum(weights), tiny)

    moves, distance = jnp.where(inside[:, None], vectors - middle, 0.0), jnp.where(inside, distance, 0.0)
    typical = jnp.maximum(weighted_quantile(distance[:, None], weights), 1e-3 * jnp.max(distance))
    pulled = jnp.minimum(1.0, typical / jnp.maximum(distance, tiny))[:, None] * moves
    _, singular, directions = jnp.linalg.svd(jnp.sqrt(weights)[:, None] * pulled, full_matrices=False)
    rank = singular.shape[0]
    variance, directions = singular**2, directions[:DIRECTIONS]
    noise = FLOOR * variance[min(DIRECTIONS, rank - 1)] if rank > 2 else 0.0
    factor = jnp.sqrt(jnp.maximum(variance - noise, 0.0) / jnp.maximum(variance, tiny)).at[0].set(1.0)[:DIRECTIONS]
    scores = moves @ directions.T
    rest = jnp.linalg.norm(moves - scores @ directions, axis=1)
    usual = weighted_quantile(rest[:, None], weights) + 0.01 * typical
    return Rows(vectors, jnp.where(rest <= APART * usual, weights, 0.0), inside, scores * factor)


def choose(key: Key, x: Array, weights: Array, slots: int) -> Groups:
    """Step 4: the best division into 2..slots clusters, or one cluster where that gains no more than in a Gaussian."""
    first = jnp.arange(slots) == 0
    centres = jnp.zeros((slots, x.shape[1]), x.dtype)
    whole = Groups(jnp.zeros(x.shape[0], int), weights > 0, first.astype(x.dtype), first, centres)
    if slots == 1:
        return whole
    seed_key, cloud_key, null_key = jax.random.split(key, 3)
    draws = draw(jax.random.uniform, seed_key, (slots - 1, PEELS + 1, RESTARTS, slots), x)
    counts = jnp.arange(2, slots + 1)
    groups, fits = jax.vmap(peel, (0, None, None, 0))(draws, x, weights, counts)
    quality = jax.vmap(silhouette, (None, None, 0, 0))(x, weights, groups, counts)
    best = jnp.argmax(jnp.where(fits, quality, -jnp.inf))
    found, count = trees.take(groups, best), counts[best]
    used, tiny = weights * found.kept, jnp.finfo(x.dtype).tiny

    def variance(x: Array) -> Array:
        total = jnp.maximum(jnp.sum(used), tiny)
        return used @ (x - used @ x / total) ** 2 / total

    def gain(x: Array, inertia: Array) -> Array:
        return jnp.log(jnp.maximum(jnp.sum(variance(x)), tiny)) - jnp.log(jnp.maximum(inertia, tiny))

    clouds = jnp.sqrt(variance(x)) * draw(jax.random.normal, cloud_key, (NULLS, *x.shape), x)
    draws = draw(jax.random.uniform, null_key, (NULLS, RESTARTS, slots), x)
    nulls = jax.vmap(gain)(clouds, jax.vmap(kmeans, (0, 0, None, None))(draws, clouds, used, count)[1])
    own = gain(x, jnp.sum(used * jnp.min(distances(x, found.centres, count), 1)))
    split = fits[best] & (own > jnp.mean(nulls) + SIGMAS * jnp.std(nulls))
    return trees.where(split, found, whole)


def silhouette(x: Array, weights: Array, groups: Groups, count: Array) -> Array:
    """Mean of 1 - (distance to the own centre) / (distance to the next one)."""
    table = jnp.sqrt(distances(x, groups.centres, count))
    own = jnp.arange(table.shape[1]) == groups.labels[:, None]
    next_one = jnp.min(jnp.where(own, jnp.inf, table), 1)
    values = 1 - jnp.min(table, 1) / jnp.maximum(next_one, jnp.finfo(x.dtype).tiny)
    used = weights * groups.kept
    return jnp.sum(used * values) / jnp.sum(used)


def peel(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Groups, Array]:
    """Step 3: the first division all of whose clusters are large and close, rows that are not set aside each time.

    Also whether there is one; the first division of all if there is none. draws: (PEELS + 1, RESTARTS, slots).
    """

    def divide(kept: Array, draws: Array) -> tuple[Array, tuple[Groups, Array]]:
        used = weights * kept
        centres, _ = kmeans(draws, x, used, count)
        labels = jnp.argmin(distances(x, centres, count), 1)
        member = (labels[:, None] == jnp.arange(draws.shape[1])) & kept[:, None]
        mass = used @ member
        large = (jnp.sum(member, 0) >= MEMBERS) & (mass >= SHARE)
        off = jnp.sqrt(jnp.min(distances(x, centres, count), 1))
        apart = member & (off > STRAY * weighted_quantile(off[:, None], used))[:, None]
        few = (jnp.sum(apart, 0) < MEMBERS) | (used @ apart < SHARE)  # more of them are a group, and no strays
        stray = jnp.any(apart & few, 1)
        fits = (jnp.sum(large) == count) & ~jnp.any(stray)
        return kept & large[labels] & ~stray, (Groups(labels, kept, mass, large, centres), fits)

    _, (groups, fits) = jax.lax.scan(divide, weights > 0, draws)
    return trees.take(groups, jnp.argmax(fits)), jnp.any(fits)


def kmeans(draws: Array, x: Array, weights: Array, count: Array | int) -> tuple[Array, Array]:
    """(centres, inertia) of the best restart; each is seeded by a row of draws (restarts, slots). count <= slots."""
    slot = jnp.arange(draws.shape[1])
    used = (slot < count)[:, None]

    def seed(near: Array, draw: Array) -> tuple[Array, Array]:
        total = jnp.cumsum(weights * jnp.where(jnp.isinf(near), 1.0, near))
        centre = x[jnp.argmax(total > draw * total[-1])]
        return jnp.minimum(near, jnp.sum((x - centre) ** 2, 1)), centre

    def step(_: int, centres: Array) -> Array:
        compare = jnp.where(used, jnp.sum(centres**2, 1)[:, None] - 2 * centres @ x.T, jnp.inf)
        member = weights * (jnp.argmin(compare, 0) == slot[:, None])
        mass = jnp.sum(member, 1)[:, None]
        return jnp.where(mass > 0, member @ x / jnp.where(mass > 0, mass, 1.0), centres)

    def restart(draws: Array) -> tuple[Array, Array]:
        centres = jax.lax.scan(seed, jnp.full(x.shape[0], jnp.inf, x.dtype), draws)[1]
        centres = jax.lax.fori_loop(0, STEPS, step, centres)
        return centres, jnp.sum(weights * jnp.min(distances(x, centres, count), 1))

    centres, inertia = jax.vmap(restart)(draws)
    return centres[jnp.argmin(inertia)], jnp.min(inertia)


def distances(x: Array, centres: Array, count: Array | int) -> Array:
    """Squared distances (k, slots) to the centres in use; infinite to the others."""
    return jnp.where(jnp.arange(centres.shape[0]) < count, jnp.sum((x[:, None] - centres) ** 2, -1), jnp.inf)


def weighted_quantile(vectors: Array, weights: Array, level: float = 0.5) -> Array:
    """Of each coordinate; the median by default. Midway where the weight on either side leaves a choice."""
    order = jnp.argsort(vectors, axis=0)
    total = jnp.cumsum(weights[order], axis=0)
    edge = level * total[-1]
    ends = jnp.stack([jnp.argmax(total >= edge * (1 - 1e-5), 0), jnp.argmax(total > edge * (1 + 1e-5), 0)])
    return jnp.mean(jnp.take_along_axis(jnp.take_along_axis(vectors, order, 0), ends, 0), 0)


def draw(sampler: Callable[..., Array], key: Key, shape: tuple[int, ...], like: Array) -> Array:
    """Random numbers drawn as one flat row: in several dimensions they take XLA's CPU compiler eight times as long."""
    return sampler(key, (math.prod(shape),), like.dtype).reshape(shape)


def get(spec: Any) -> Any:
    """How Jacobians are shared: None, a number of clusters, "auto", ``Clusters``, or an object of one's own.

    An object of one's own has ``check(clients)``, which refuses, and
    ``share(key, jacobians, weights, accepted, errors) -> (what each client gets, labels)``.

    >>> get(2).count, get(None)
    (2, None)
    """
    return spec if spec is None or callable(getattr(spec, "share", None)) else Clusters(spec)
