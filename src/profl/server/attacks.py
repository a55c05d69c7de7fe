"""Hostile clients, for tests and for those who want to know what theirs could do.

An attack changes what hostile clients report, or the f_hat they work with. It sees all reports of the round. **It
changes every entry of a report, whatever its kind, in every turn of a round**; ``jacobian`` and ``f_hat`` are the
exceptions. Below, m is an entry of client i and s what it is compared with: the model that was sent, for an entry of
kind model; zero, for all others. Where nobody has moved from s, most attacks have nothing to change, and m stays s.

* sign_flip: s - scale (m - s): backwards.
* scaled: s + scale (m - s): too far.
* drift: mean - z sd of the honest reports in every coordinate, z = 1.5: no report stands out.
* alie: the same with the z that "a little is enough" takes from the n reports and f hostile ones (Baruch et al. 2019):
  Phi(z) = (n - f - s) / (n - f), s = floor(n / 2 + 1) - f. With 10 clients and 2 hostile ones z is 0.
* ipm: s - scale mean of the honest m - s, inner-product manipulation (Xie et al. 2020): the mean slows down,
  and what drops rows that lie apart drops honest ones in their place.
* min_max: mean - g sd with the largest g that keeps it as near to every honest report as these are to one another
  (Shejwalkar and Houmansadr 2021).
* mimic: all copy one honest client, the one furthest along the direction in which honest clients differ most
  (Karimireddy et al. 2022); entry by entry.
* nan: not a number; for whole numbers, the largest. The server refuses it.
* stale: the model that the run began with, and zero for everything else: as before anything was learned.
* jacobian: scale m in place of m for entries of kind jacobian, errors included. It leaves all other entries as they
  are, and matters where Jacobians are shared.
* f_hat: the client's own estimates are turned around, so that its J_i has the wrong sign and its model follows it. It
  acts before the report, which is then an honest account of wrong estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri

from profl import checks, trees
from profl.problem.families import Family
from profl.server.entries import Entry, Report
from profl.typing import Array, Batch, Theta


class Attack:
    """Base class: an attack that does nothing. Subclasses are frozen dataclasses.

    ``reports`` gets what all clients of the round would send, in each of its turns: ``profl.server.entries`` by name,
    whose values have one row per client. It returns entries with the same names, kinds and shapes. A hostile client
    controls everything that it sends: change every entry (``each_entry`` helps), or say in the docs which ones stay.
    """

    def __post_init__(self) -> None:
        stated: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        for field in stated:
            if isinstance(field.default, float) and (value := getattr(self, field.name)) is not None:
                checks.real(field.name, value)

    def f_hat(self, f: Array) -> Array:
        """The estimate of f, (p,), that a hostile client works with."""
        return f

    def estimate(self, f: Array, hostile: Array) -> Array:
        """The estimate of f, (p,), that a client works with; ``hostile`` () bool says whether it is hostile."""
        return jnp.where(hostile, self.f_hat(f), f)

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        """All reports of a turn as a hostile client would have sent them; only the ``hostile`` rows are used.

        ``sent`` is the model that the turn began with, ``first`` the one that the run began with.
        """
        return reports


def apply(attack: Attack, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
    """The reports that reach the server."""
    attacked = attack.reports(reports, sent, first, hostile)
    structure: Any = jax.tree.structure(reports)
    if jax.tree.structure(attacked) != structure:
        raise checks.InputError(
            f"the attack {type(attack).__name__} must return the entries that it got, with the same names and kinds: "
            f"{_kinds(reports)}; got {_kinds(attacked)}"
        )
    return trees.where(hostile, jax.tree.map(_as_sent, attacked, reports), reports)


def _kinds(reports: Any) -> Any:
    if not isinstance(reports, dict):
        return type(reports).__name__
    return {name: entry.kind if isinstance(entry, Entry) else type(entry).__name__ for name, entry in reports.items()}


def _as_sent(changed: Array, own: Array) -> Array:
    """``changed`` as an array of the type of ``own``: whole numbers are rounded to the nearest that there is."""
    if jnp.issubdtype(own.dtype, jnp.floating) or changed.dtype == own.dtype:
        return jnp.asarray(changed, own.dtype)
    if own.dtype == bool:
        return changed > 0.5
    limits = jnp.iinfo(own.dtype)
    whole = jnp.clip(jnp.round(changed), limits.min, limits.max)
    return jnp.where(whole >= limits.max, limits.max, whole.astype(own.dtype))


def _real(leaf: Array) -> Array:
    """Whole numbers as real ones."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(float)


def each_entry(reports: Report, sent: Theta, change: Callable[[Any, Any], Any]) -> Report:
    """Every entry with the value ``change(value, start)``; ``start``, without a row for each client, is what the value
    is compared with: the model that was ``sent``, for a model; zero, for all others."""

    def start(entry: Entry) -> Any:
        return sent if entry.kind == "model" else jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), entry.value)

    return {name: entry.replace(change(entry.value, start(entry))) for name, entry in reports.items()}


@dataclass(frozen=True)
class ScaledMove(Attack):
    """start + scale (value - start), for every entry."""

    scale: float = 10.0

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def scale_move(value: Any, start: Any) -> Any:
            return jax.tree.map(lambda own, old: old + self.scale * (_real(own) - old), value, start)

        return each_entry(reports, sent, scale_move)


class CollusiveAttack(Attack):
    """Base class: all hostile clients send the same report, computed from the honest ones."""

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def same(value: Any, start: Any) -> Any:
            value, start = jax.tree.map(_real, (value, start))
            rows, origin = jax.vmap(trees.ravel)(value), trees.ravel(start)
            row = origin + self.move(rows - origin, ~hostile)
            return trees.repeat(ravel_pytree(trees.take(value, 0))[1](row), len(hostile))

        return each_entry(reports, sent, same)

    def move(self, moves: Array, honest: Array) -> Array:
        """The move from the start (m,) that all hostile clients report, from the moves of all clients (k, m)."""
        raise NotImplementedError


def moments(moves: Array, honest: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the honest rows, (m,) each."""
    share = (honest / jnp.maximum(jnp.sum(honest), 1)).astype(moves.dtype)[:, None]
    mean = jnp.sum(share * moves, axis=0)
    return mean, jnp.sqrt(jnp.sum(share * (moves - mean) ** 2, axis=0))


@dataclass(frozen=True)
class Drift(CollusiveAttack):
    """mean - z sd of the honest reports, in every coordinate; z None: that of ``alie_deviations``."""

    z: float | None = 1.5

    def move(self, moves: Array, honest: Array) -> Array:
        mean, sd = moments(moves, honest)
        return mean - (alie_deviations(len(honest), jnp.sum(~honest)) if self.z is None else self.z) * sd


def alie_deviations(n: int, f: Array | int) -> Array:
    """z of "a little is enough": s honest reports that lie further out make, with the f hostile ones, a majority.

    >>> [round(float(alie_deviations(50, f)), 4) for f in (10, 20)]
    [0.2533, 0.8416]
    """
    s = jnp.maximum(n // 2 + 1 - f, 1)
    return ndtri((n - f - s) / jnp.maximum(n - f, 1))


@dataclass(frozen=True)
class InnerProduct(CollusiveAttack):
    """-scale times the mean of the honest moves."""

    scale: float = 1.5

    def move(self, moves: Array, honest: Array) -> Array:
        return -self.scale * moments(moves, honest)[0]


@dataclass(frozen=True)
class MinMax(CollusiveAttack):
    """mean - g sd, as far as no honest report is further from it than two honest ones are from each other.

    |mean - g sd - x_i|^2 = D^2, D the largest distance of two: a quadratic in g for every i, of which the least counts.
    """

    def move(self, moves: Array, honest: Array) -> Array:
        mean, sd = moments(moves, honest)
        apart = jnp.where(honest[:, None], mean - moves, 0.0)
        gram = jnp.matmul(apart, apart.T, precision="highest")
        squares = jnp.diagonal(gram)
        pairs = jnp.where(honest[:, None] & honest, squares[:, None] + squares - 2 * gram, 0.0)
        along, length = apart @ sd, jnp.maximum(jnp.sum(sd**2), jnp.finfo(sd.dtype).tiny)
        room = jnp.sqrt(jnp.maximum(along**2 + length * (jnp.max(pairs) - squares), 0.0))
        return mean - jnp.min(jnp.where(honest, (along + room) / length, jnp.inf)) * sd


@dataclass(frozen=True)
class Mimic(CollusiveAttack):
    """The honest client furthest along the direction of the largest variance, found by power iteration.

    Of its two ends the one at which the coordinates have the larger sum, so that it stays the same client.
    """

    iterations: int = 50

    def move(self, moves: Array, honest: Array) -> Array:
        apart = jnp.where(honest[:, None], moves - moments(moves, honest)[0], 0.0)

        def step(_: Any, v: Array) -> Array:
            v = apart.T @ (apart @ v)
            return v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)

        start = apart[jnp.argmax(jnp.sum(apart**2, axis=1))]
        v = jax.lax.fori_loop(0, self.iterations, step, start)
        along = jnp.where(jnp.sum(v) < 0, -1.0, 1.0) * (apart @ v)
        return moves[jnp.argmax(jnp.where(honest, along, -jnp.inf))]


@dataclass(frozen=True)
class NotANumber(Attack):
    """NaN in every entry; the largest number where these are whole."""

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def worst(leaf: Array) -> Array:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                return jnp.full_like(leaf, jnp.nan)
            return ~leaf if leaf.dtype == bool else jnp.full_like(leaf, jnp.iinfo(leaf.dtype).max)

        return jax.tree.map(worst, reports)


@dataclass(frozen=True)
class Stale(Attack):
    """The model that the run began with, zero for every other entry."""

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def replay(value: Any, start: Any) -> Any:
            return jax.tree.map(lambda own, old: jnp.broadcast_to(old, own.shape), value, start)

        return each_entry(reports, first, replay)


@dataclass(frozen=True)
class PoisonedJacobian(Attack):
    """Entries of kind jacobian times ``scale``, and no others."""

    scale: float = -50.0

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def poisoned(entry: Entry) -> Entry:
            return jax.tree.map(lambda leaf: self.scale * _real(leaf), entry) if entry.kind == "jacobian" else entry

        return {name: poisoned(entry) for name, entry in reports.items()}


@dataclass(frozen=True)
class PoisonedEstimate(Attack):
    """The client's estimate of f times ``scale``; its report is then honest."""

    scale: float = -1.0

    def f_hat(self, f: Array) -> Array:
        return self.scale * f


@dataclass(frozen=True, eq=False)
class Poisoned(Family):
    """A family as a client has it that may be ``hostile``: its estimate is what the attack makes of it."""

    family: Family
    attack: Attack
    hostile: Array

    def estimate(self, batch: Batch, weights: Array) -> Array:
        return self.attack.estimate(self.family.estimate(batch, weights), self.hostile)

    def __getattribute__(self, name: str) -> Any:
        own, get = ("family", "attack", "hostile", "estimate"), object.__getattribute__
        return get(self, name) if name in own or name.startswith("__") else getattr(get(self, "family"), name)


ATTACKS: dict[str, Attack] = {
    "sign_flip": ScaledMove(-1.0),
    "scaled": ScaledMove(10.0),
    "drift": Drift(),
    "nan": NotANumber(),
    "stale": Stale(),
    "jacobian": PoisonedJacobian(),
    "f_hat": PoisonedEstimate(),
    "ipm": InnerProduct(),
    "alie": Drift(None),
    "min_max": MinMax(),
    "mimic": Mimic(),
}


def get(spec: Any) -> Attack:
    """An attack by name, or one of one's own as it is."""
    if isinstance(spec, type):
        raise checks.InputError(f"attack must be an object, got a class; try {spec.__name__}()")
    return spec if isinstance(spec, Attack) else ATTACKS[checks.one_of("attack", spec, ATTACKS)]
