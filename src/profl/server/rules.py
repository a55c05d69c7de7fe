"""Robust aggregation: many clients' vectors become one, although some of the clients may be hostile.

    rule(vectors (k, m), weights (k,), accepted (k,) bool, centre (m,)) -> (m,)

Rows x_i are models (or Jacobians), raveled; the weights w_i are renormalised over the n rows that are accepted and
weigh something. The others do not count and may hold NaN or Inf; where none is left, the result is NaN. ``centre`` is
the previous global value. Where a rule assumes a share ``hostile`` of the rows, f = ceil(hostile n).

* mean: sum_i w_i x_i. Best where nobody is hostile; one row can move it anywhere (breakdown point 0).
* median: Q(1/2) of every coordinate, Q the weighted quantile function. Nothing to tune; breakdown 1/2 of the weight.
* trimmed_mean: mean of Q(u) over share < u < 1 - share, per coordinate. Costs little where all are honest; ``share``.
* geometric_median: argmin_v sum_i w_i |x_i - v|. Does not depend on the axes, good for large m; 1/2 of the weight.
* krum: the x_i with the least sum of |x_i - x_j|^2 over its n - f - 2 nearest others. The result is a model that some
  client really has, so more clients hardly make it better; ``hostile`` of the rows, and it wants n > 2 f + 2.
* multi_krum: the weighted mean of the n - f rows with the least such sums. For few, far outliers; as krum.
* centred_clipping: v <- v + sum_i w_i (x_i - v) min(1, radius / |x_i - v|), from ``centre``. Cheap, for many rounds.
  radius None takes the weighted median of |x_i - v|: 1/2 of the weight, and a hostile share e leaves (2e)^iterations
  of the distance from ``centre`` to honest rows that agree. A given radius walks at most iterations * radius.
* nnm+RULE: x_i <- the weighted mean of the n - f rows nearest to x_i, then RULE. For honest clients that differ much;
  the lesser of ``hostile`` and RULE's own. Not before the mean: hostile rows stay far from the others. Not as
  published: where nobody pulls to one side, the mean of the rows stands in for v, what RULE found. With u the median
  distance of a row from v, that is the mean of the rows within 3 u, taken if it lies within ``hostile`` u of v, which
  is what so many rows at a usual distance could do. On pricing with honest clients (heterogeneity 0, 0.25, 0.5) the
  tail excess of nnm+trimmed_mean is 1.1, 1.0 and 1.0 times the mean's, without this 1.2, 2.6 and 2.8 times.
* reweighted_mean: the mean, in which a client whose reports lie farther from the others' than ``reach`` (1.75) times
  the distance of the nearest n - f counts less, by the square of that (``profl.server.distances``); ``hostile`` of the
  clients. The default of ``profl.profl``: where no client stands out it is the mean to the bit, and it looks at every
  entry of the reports.
* history: the reweighted mean, without reports whose noise is not their own (``profl.server.history``). For attackers
  who copy or compute what they send from honest reports. Hostile ones with noise of their own, within the reach, move
  the result as far as as many honest clients with other data would: nobody could tell them apart.

``profl.server.rule_base`` has the contract of a rule, also of one with a memory of the clients, such as history.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.numerics import exact_quantile, ordered_weights, rounding
from profl.server import distances, history
from profl.server.history import honest_count
from profl.server.rule_base import FunctionRule, MaskedRule, Rule, weighted_mean
from profl.typing import Array, Theta

MIX = "nnm+"
FAR, NOT_ITS_OWN = "far from the others'", "copied or computed from the others'"
"""Why a client is distrusted."""

MOST_TRIMMED = 0.499  # largest share trimmed at each end: beyond it the remainder is lost in rounding
MIXING_REACH = 3.0  # median distances beyond which mixing leaves a row out: evenly spread rows lie within 2.3 of them
SMOOTHING_SHARE = 1e-3  # of the median distance, below which |.| is smoothed: Weiszfeld's step divides by it at a row


def _below_half(name: str, value: Any) -> None:
    if not 0 <= checks.real(name, value) < 0.5:
        raise checks.InputError(f"{name} must lie in [0, 0.5), got {value!r}; no rule survives a hostile half")


def _mean(rows: Array, share: Array) -> Array:
    return jnp.matmul(share, rows, precision="highest")


def _median_length(offsets: Array, share: Array) -> Array:
    return exact_quantile(jnp.linalg.norm(offsets, axis=1, keepdims=True), share)[0]


def _square_distances(rows: Array, share: Array, usable: Array) -> Array:
    """|x_i - x_j|^2 = |x_i|^2 + |x_j|^2 - 2 x_i.x_j around the median, (k, k); Inf towards unusable rows."""
    offsets = jnp.where(usable[:, None], rows - exact_quantile(rows, share), 0.0)
    gram = jnp.matmul(offsets, offsets.T, precision="highest")
    length = jnp.diagonal(gram)
    squares = length[:, None] + length[None, :] - (gram + gram.T)
    squares = jnp.where(jnp.isnan(squares), jnp.inf, jnp.maximum(squares, 0.0))  # Inf - Inf where rows are huge
    return jnp.where(jnp.eye(len(rows), dtype=bool), 0.0, jnp.where(usable, squares, jnp.inf))


def _smallest(scores: Array, count: Array | int) -> Array:
    """Which of the last axis are among the ``count`` smallest, with all that tie with the last of them."""
    last = jnp.take(jnp.sort(scores, axis=-1), jnp.asarray(count) - 1, axis=-1)[..., None]
    return scores <= last * (1 + rounding(scores))


@dataclass(frozen=True)
class WeightedMean(MaskedRule):
    """sum_i w_i x_i.

    >>> rows, weights = jnp.array([[1.0], [5.0], [jnp.nan]]), jnp.array([3.0, 1.0, 1.0])
    >>> WeightedMean()(rows, weights, jnp.array([True, True, False]), jnp.zeros(1))
    Array([2.], dtype=float32)
    """

    by_coordinate = True

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        return _mean(rows, share)

    def aggregate_models(self, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
        """The mean leaf by leaf: a large model is not written out as rows."""
        return weighted_mean(models, weights, accepted)


@dataclass(frozen=True)
class Median(MaskedRule):
    """The weighted median of every coordinate; the middle of the lower and the upper one where they differ."""

    by_coordinate = True

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        return exact_quantile(rows, share)


@dataclass(frozen=True)
class TrimmedMean(MaskedRule):
    """The mean of every coordinate without the ``share`` of weight at each end; a row at the edge is cut in part."""

    share: float = 0.2

    by_coordinate = True

    def __post_init__(self) -> None:
        _below_half("share", self.share)

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        ordered, upper = ordered_weights(rows, share)
        lower = jnp.concatenate([jnp.zeros_like(upper[:1]), upper[:-1]])
        trim = min(self.share, MOST_TRIMMED)
        left = jnp.minimum(upper, 1 - trim) - jnp.maximum(lower, trim)
        left = jnp.where(left > rounding(rows), left, 0.0)  # a rounding error times a row at 1e30 is not small
        return jnp.sum(left * jnp.where(left > 0, ordered, 0.0), axis=0) / jnp.sum(left, axis=0)


@dataclass(frozen=True)
class GeometricMedian(MaskedRule):
    """argmin_v sum_i w_i |x_i - v| by Weiszfeld's steps, |.| smoothed below a thousandth of the median distance."""

    iterations: int = 32

    def __post_init__(self) -> None:
        checks.positive_int("iterations", self.iterations)

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        start = exact_quantile(rows, share)
        offsets = rows - start  # around 0, so that what all rows have in common costs no digits
        least = float(np.sqrt(jnp.finfo(rows.dtype).tiny))
        smooth = jnp.maximum(SMOOTHING_SHARE * _median_length(offsets, share), least)

        def step(_: Any, v: Array) -> Array:
            pull = share * smooth / jnp.sqrt(jnp.sum((offsets - v) ** 2, axis=1) + smooth**2)
            return _mean(offsets, pull / jnp.sum(pull))

        return start + jax.lax.fori_loop(0, self.iterations, step, jnp.zeros_like(start))


@dataclass(frozen=True)
class Krum(MaskedRule):
    """The row nearest to its n - f - 2 nearest others; ``keep="multi"`` averages the n - f best, as it does ties."""

    hostile: float = 0.2
    keep: int | str = 1

    def __post_init__(self) -> None:
        _below_half("hostile", self.hostile)
        if self.keep not in (1, "multi"):
            raise checks.InputError(f"keep must be 1 (Krum) or 'multi' (multi-Krum), got {self.keep!r}")

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        honest = honest_count(self.hostile, usable)
        others = jnp.minimum(jnp.maximum(honest - 2, 1), jnp.sum(usable) - 1)
        near = jnp.sort(_square_distances(rows, share, usable), axis=1)  # first in each line: the row itself, at 0
        score = jnp.sum(jnp.where(jnp.arange(len(rows)) <= others, near, 0.0), axis=1)
        best = _smallest(jnp.where(usable, score, jnp.inf), honest if self.keep == "multi" else 1)
        own = jnp.where(best, share, 0.0)
        return _mean(rows, own / jnp.sum(own))


@dataclass(frozen=True)
class CentredClipping(MaskedRule):
    """Steps from ``centre`` towards the rows, each of them pulling by at most ``radius`` (None: median distance)."""

    radius: float | None = None
    iterations: int = 5

    def __post_init__(self) -> None:
        checks.positive_int("iterations", self.iterations)
        if self.radius is not None:
            checks.positive("radius", self.radius)

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        def step(_: Any, v: Array) -> Array:
            offsets = rows - v
            radius = _median_length(offsets, share) if self.radius is None else self.radius
            length = jnp.maximum(jnp.linalg.norm(offsets, axis=1), jnp.finfo(rows.dtype).tiny)
            return v + _mean(offsets, share * jnp.minimum(1.0, radius / length))

        return jax.lax.fori_loop(0, self.iterations, step, centre.astype(rows.dtype))


@dataclass(frozen=True)
class NearestNeighbourMixing(MaskedRule):
    """Each row becomes the weighted mean of the n - f rows nearest to it; then ``rule``, or the mean if both agree."""

    rule: Rule
    hostile: float = 0.2

    def __post_init__(self) -> None:
        _below_half("hostile", self.hostile)
        object.__setattr__(self, "rule", get(self.rule))

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        near = _smallest(_square_distances(rows, share, usable), honest_count(self.hostile, usable))
        mix = jnp.where(near, share, 0.0)
        mix = mix / jnp.sum(mix, axis=1, keepdims=True)
        centre = self.rule(jnp.matmul(mix, rows, precision="highest"), share, usable, centre)
        return self._or_mean(centre, rows, share)

    def _or_mean(self, centre: Array, rows: Array, share: Array) -> Array:
        """The mean of the rows around ``centre`` where it is near, else ``centre``, (m,)."""
        length = jnp.linalg.norm(rows - centre, axis=1)
        usual = exact_quantile(length[:, None], share)[0]
        near = jnp.where(length <= MIXING_REACH * usual, share, 0.0)
        mean = _mean(jnp.where(near[:, None] > 0, rows, 0.0), near / jnp.sum(near))
        return jnp.where(jnp.linalg.norm(mean - centre) <= self.hostile * usual, mean, centre)


@dataclass(frozen=True)
class ReweightedMean(MaskedRule):
    """The mean in which a report that lies far from the others counts less; it withstands a share ``hostile``.

    Without a memory, as a plain rule, it compares the distances of this round alone.
    """

    hostile: float = 0.2
    reach: float = distances.REACH

    has_memory = True

    def __post_init__(self) -> None:
        _below_half("hostile", self.hostile)
        if checks.positive("reach", self.reach) < 1:
            raise checks.InputError(f"reach must be at least 1, got {self.reach!r}")

    def open(self, clients: int, size: int) -> Any:
        return distances.no_distances(clients)

    def weigh(
        self, memory: Any, vectors: Array, weights: Array, accepted: Array, centre: Array, client_ids: Array
    ) -> tuple[Array, Any]:
        usable = accepted & (weights > 0)
        shares, memory = distances.weigh_rows(memory, vectors, weights, usable, client_ids, self.hostile, self.reach)
        return weights * shares, memory

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        nothing, everyone = distances.no_distances(len(rows)), jnp.arange(len(rows))
        share = share * distances.weigh_rows(nothing, rows, share, usable, everyone, self.hostile, self.reach)[0]
        return _mean(rows, share / jnp.sum(share))

    def aggregate_weighed(self, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
        return weighted_mean(models, weights, accepted)

    def distrusted(self, memory: Any) -> dict[str, Array]:
        return {FAR: memory.since}


class Remembered(NamedTuple):
    """What ``history`` remembers of the clients."""

    distances: distances.ClientDistances
    noise: history.ReportHistory
    since: Array  # (clients,) int32: the round from which on a client's noise is not its own, -1 where it is


@dataclass(frozen=True)
class History(ReweightedMean):
    """The reweighted mean of clients whose noise is their own; it withstands a share ``hostile``.

    Without a memory, as a plain rule, it is the reweighted mean. So it is of entries that are not models.
    """

    reach: float = 1.5  # it is for federations that expect attackers

    @property
    def of_entries(self) -> Rule:
        return ReweightedMean(self.hostile, self.reach)

    def open(self, clients: int, size: int) -> Any:
        near = super().open(clients, size)
        return Remembered(near, history.empty_history(clients, size), near.since)

    def weigh(
        self, memory: Any, vectors: Array, weights: Array, accepted: Array, centre: Array, client_ids: Array
    ) -> tuple[Array, Any]:
        usable = accepted & (weights > 0)
        noise = history.add_round(memory.noise, vectors - centre, usable, centre, client_ids)
        shares, computed = history.compare_noise(noise, weights, usable, client_ids, self.hostile)
        copied = computed | (shares < distances.DISTRUSTED)
        since = distances.distrusted_since(memory.since, memory.distances.round, copied, usable, client_ids)
        weights = jnp.where(computed, 0.0, weights * shares)
        left, near = super().weigh(memory.distances, vectors, weights, accepted, centre, client_ids)
        return left, Remembered(near, noise, since)

    def distrusted(self, memory: Any) -> dict[str, Array]:
        return {**super().distrusted(memory.distances), NOT_ITS_OWN: memory.since}


RULES: dict[str, Rule] = {
    "mean": WeightedMean(),
    "median": Median(),
    "trimmed_mean": TrimmedMean(),
    "geometric_median": GeometricMedian(),
    "krum": Krum(),
    "multi_krum": Krum(keep="multi"),
    "centred_clipping": CentredClipping(),
    "reweighted_mean": ReweightedMean(),
    "history": History(),
}


def get(spec: Any) -> Rule:
    """A rule by its name; a rule as it is; a plain function as a rule.

    A name may have ``nnm+`` before it for mixing, and after it the share that it withstands or trims.

    >>> get("nnm+median")
    NearestNeighbourMixing(rule=Median(), hostile=0.2)
    >>> get("history:0.3")
    History(hostile=0.3, reach=1.5)
    >>> get("median:0.3")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: median takes no share; these do: trimmed_mean, krum, multi_krum, reweighted_mean, ...
    """
    if isinstance(spec, type):
        raise checks.InputError(f"an aggregation rule must be an object, got the class; try {spec.__name__}()")
    if isinstance(spec, Rule):
        return spec
    if callable(spec):
        return FunctionRule(spec)
    mixed = [MIX + name for name, rule in RULES.items() if not rule.has_memory]
    stated, colon, share = spec.partition(":") if isinstance(spec, str) else (spec, "", "")
    name = checks.one_of("aggregation rule", stated, [*RULES, *mixed])
    rule = RULES[name.removeprefix(MIX)]
    rule = NearestNeighbourMixing(rule) if name.startswith(MIX) else rule
    return with_share(rule, _share_in(spec, share), name) if colon else rule


def with_share(rule: Rule, share: float, name: str) -> Rule:
    """The rule called ``name`` that withstands or trims ``share``, a mixed one in both of its steps.

    >>> with_share(NearestNeighbourMixing("trimmed_mean"), 0.3, "nnm+trimmed_mean")
    NearestNeighbourMixing(rule=TrimmedMean(share=0.3), hostile=0.3)
    """
    if isinstance(rule, NearestNeighbourMixing):
        inner = rule.rule
        return NearestNeighbourMixing(with_share(inner, share, name) if _share_field(inner) else inner, share)
    field = _share_field(rule)
    if field is None:
        able = [each for each, other in RULES.items() if _share_field(other)]
        raise checks.InputError(f"{name} takes no share; these do: {', '.join(able)}, and all with {MIX!r} before them")
    return replace(rule, **{field: share})  # type: ignore[type-var]


def _share_field(rule: Any) -> str | None:
    return next((name for name in ("hostile", "share") if hasattr(rule, name)), None)


def _share_in(spec: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 0.5:
        raise checks.InputError(f"the share in {spec!r} must be a number in [0, 0.5), such as {spec.split(':')[0]}:0.1")
    return share
