"""Hostile clients, for tests and for those who want to know what theirs could do.

An attack changes what hostile clients report, once their honest work is done, or the f_hat they work with. It sees all
reports of the round: the attackers know one another and the others.

* sign_flip: theta_sent - scale (theta_i - theta_sent): backwards.
* scaled: theta_sent + scale (theta_i - theta_sent): too far.
* drift: mean - z sd of the honest reports in every coordinate, z = 1.5: no report stands out.
* alie: the same with the z that "a little is enough" takes from the n reports and f hostile ones (Baruch et al. 2019):
  Phi(z) = (n - f - s) / (n - f), s = floor(n / 2 + 1) - f. With 10 clients and 2 hostile ones z is 0.
* ipm: theta_sent - scale mean of the honest moves, inner-product manipulation (Xie et al. 2020): the mean slows down,
  and what drops rows that lie apart drops honest ones in their place.
* min_max: mean - g sd with the largest g that keeps it as near to every honest report as these are to one another
  (Shejwalkar and Houmansadr 2021).
* mimic: all copy one honest client, the one furthest along the direction in which honest clients differ most
  (Karimireddy et al. 2022).
* nan: not a number. The server refuses it.
* stale: the model that the run began with.
* jacobian: scale J_i in place of J_i. It matters where Jacobians are shared.
* f_hat: the client's own estimates are turned around, so that its J_i has the wrong sign and its model follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri

from profl import checks, trees
from profl.problem.families import Family
from profl.typing import Array, Batch, Theta

Reports = dict[str, Any]
"""What crosses to the server, entries by name, one row per client: "theta", and whatever else a method reports."""


class Attack:
    """Base class: an attack that does nothing. Subclasses are frozen dataclasses."""

    def f_hat(self, f: Array) -> Array:
        """What a hostile client takes its estimate of f to be."""
        return f

    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        """All reports of a round as a hostile client would have sent them; only the ``hostile`` rows are used.

        ``sent`` is the model that the round began with, ``first`` the one that the run began with.
        """
        return reports


def apply(attack: Attack, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
    """The reports that reach the server."""
    return trees.where(hostile, attack.reports(reports, sent, first, hostile), reports)


def is_jacobian(name: str) -> bool:
    """Entries that the attacks on models leave alone: "jacobian" is the attack on those."""
    return name.startswith("jacobian")


@dataclass(frozen=True)
class Moved(Attack):
    """theta_sent + scale (theta_i - theta_sent); other entries times ``scale``."""

    scale: float = 10.0

    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        def moved(name: str, entry: Any) -> Any:
            if is_jacobian(name):
                return entry
            start = sent if name == "theta" else jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), entry)
            return jax.tree.map(lambda own, old: old + self.scale * (own - old), entry, start)

        return {name: moved(name, entry) for name, entry in reports.items()}


class Together(Attack):
    """All hostile clients send the same, made of what the honest ones sent."""

    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        def same(name: str, entry: Any) -> Any:
            if is_jacobian(name):
                return entry
            rows = jax.vmap(trees.ravel)(entry)
            start = trees.ravel(sent) if name == "theta" else jnp.zeros_like(rows[0])
            row = start + self.move(rows - start, ~hostile)
            return trees.repeat(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], entry))[1](row), len(hostile))

        return {name: same(name, entry) for name, entry in reports.items()}

    def move(self, moves: Array, honest: Array) -> Array:
        """(m,) from (k, m): how far from the start."""
        raise NotImplementedError


def _moments(moves: Array, honest: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the honest rows, (m,) each."""
    share = (honest / jnp.maximum(jnp.sum(honest), 1)).astype(moves.dtype)[:, None]
    mean = jnp.sum(share * moves, axis=0)
    return mean, jnp.sqrt(jnp.sum(share * (moves - mean) ** 2, axis=0))


@dataclass(frozen=True)
class Drift(Together):
    """mean - z sd of the honest reports, in every coordinate; z None: as large as n and f let it pass unseen."""

    z: float | None = 1.5

    def move(self, moves: Array, honest: Array) -> Array:
        mean, sd = _moments(moves, honest)
        return mean - (unseen(len(honest), jnp.sum(~honest)) if self.z is None else self.z) * sd


def unseen(n: int, f: Array | int) -> Array:
    """z of "a little is enough": s honest reports that lie further out make, with the f hostile ones, a majority.

    >>> [round(float(unseen(50, f)), 4) for f in (10, 20)]
    [0.2533, 0.8416]
    """
    s = jnp.maximum(n // 2 + 1 - f, 1)
    return ndtri((n - f - s) / jnp.maximum(n - f, 1))


@dataclass(frozen=True)
class InnerProduct(Together):
    """-scale times the mean of the honest moves."""

    scale: float = 1.5

    def move(self, moves: Array, honest: Array) -> Array:
        return -self.scale * _moments(moves, honest)[0]


@dataclass(frozen=True)
class MinMax(Together):
    """mean - g sd, as far as no honest report is further from it than two honest ones are from each other.

    |mean - g sd - x_i|^2 = D^2, D the largest distance of two: a quadratic in g for every i, of which the least counts.
    """

    def move(self, moves: Array, honest: Array) -> Array:
        mean, sd = _moments(moves, honest)
        apart = jnp.where(honest[:, None], mean - moves, 0.0)
        gram = jnp.matmul(apart, apart.T, precision="highest")
        squares = jnp.diagonal(gram)
        pairs = jnp.where(honest[:, None] & honest, squares[:, None] + squares - 2 * gram, 0.0)
        along, length = apart @ sd, jnp.maximum(jnp.sum(sd**2), jnp.finfo(sd.dtype).tiny)
        room = jnp.sqrt(jnp.maximum(along**2 + length * (jnp.max(pairs) - squares), 0.0))
        return mean - jnp.min(jnp.where(honest, (along + room) / length, jnp.inf)) * sd


@dataclass(frozen=True)
class Mimic(Together):
    """The honest client furthest along the direction of the largest variance, found by power iteration.

    Of its two ends the one at which the coordinates have the larger sum, so that it stays the same client.
    """

    iterations: int = 50

    def move(self, moves: Array, honest: Array) -> Array:
        apart = jnp.where(honest[:, None], moves - _moments(moves, honest)[0], 0.0)

        def step(_: Any, v: Array) -> Array:
            v = apart.T @ (apart @ v)
            return v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)

        start = apart[jnp.argmax(jnp.sum(apart**2, axis=1))]
        v = jax.lax.fori_loop(0, self.iterations, step, start)
        along = jnp.where(jnp.sum(v) < 0, -1.0, 1.0) * (apart @ v)
        return moves[jnp.argmax(jnp.where(honest, along, -jnp.inf))]


@dataclass(frozen=True)
class NotANumber(Attack):
    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        return {**reports, "theta": jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), reports["theta"])}


@dataclass(frozen=True)
class Stale(Attack):
    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        replay = jax.tree.map(lambda old, own: jnp.broadcast_to(old, own.shape), first, reports["theta"])
        return {**reports, "theta": replay}


@dataclass(frozen=True)
class PoisonedJacobian(Attack):
    scale: float = -50.0

    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        if "jacobian" not in reports:
            return reports
        return {**reports, "jacobian": self.scale * reports["jacobian"]}


@dataclass(frozen=True)
class PoisonedEstimate(Attack):
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
        f = self.family.estimate(batch, weights)
        return jnp.where(self.hostile, self.attack.f_hat(f), f)

    def __getattribute__(self, name: str) -> Any:
        own = ("family", "attack", "hostile", "estimate")
        get = object.__getattribute__
        return get(self, name) if name in own or name.startswith("__") else getattr(get(self, "family"), name)


ATTACKS: dict[str, Attack] = {
    "sign_flip": Moved(-1.0),
    "scaled": Moved(10.0),
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
    return spec if isinstance(spec, Attack) else ATTACKS[checks.one_of("attack", spec, ATTACKS)]


def hostile_clients(spec: Any, clients: int) -> np.ndarray:
    """Which clients are hostile: a share of them, spread evenly over their numbers, or a list of numbers. (k,) bool.

    >>> hostile_clients(0.2, 10).nonzero()[0].tolist(), hostile_clients([3], 4).tolist()
    ([2, 7], [False, False, False, True])
    """
    mask = np.zeros(clients, bool)
    if isinstance(spec, (int, float)) and not isinstance(spec, bool):
        if not 0 <= checks.real("hostile", spec) < 1:
            raise checks.InputError(f"hostile must be a share in [0, 1) or a list of client numbers, got {spec!r}")
        count = int(np.floor(spec * clients + 0.5))
        mask[(np.arange(count) * clients + clients // 2) // max(count, 1)] = True
        return mask
    numbers = [checks.positive_int("every hostile client", number, least=0) for number in spec]
    if any(number >= clients for number in numbers):
        raise checks.InputError(f"hostile clients must be numbered 0 to {clients - 1}, got {max(numbers)}")
    mask[numbers] = True
    return mask
