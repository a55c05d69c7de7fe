"""Hostile clients, for tests and for those who want to know what theirs could do.

An attack changes what hostile clients report, once their honest work is done, or the f_hat they work with. It sees all
reports of the round: the attackers know one another and the others.

* sign_flip: theta_sent - scale (theta_i - theta_sent): backwards.
* scaled: theta_sent + scale (theta_i - theta_sent): too far.
* drift: mean - z sd of the honest reports in every coordinate ("a little is enough"): no report stands out.
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


@dataclass(frozen=True)
class Drift(Attack):
    """mean - z sd of the honest reports, in every coordinate."""

    z: float = 1.5

    def reports(self, reports: Reports, sent: Theta, first: Theta, hostile: Array) -> Reports:
        share = (~hostile) / jnp.maximum(jnp.sum(~hostile), 1)

        def shifted(leaf: Array) -> Array:
            weight = share.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)
            mean = jnp.sum(weight * leaf, axis=0)
            sd = jnp.sqrt(jnp.sum(weight * (leaf - mean) ** 2, axis=0))
            return jnp.broadcast_to(mean - self.z * sd, leaf.shape)

        return {name: entry if is_jacobian(name) else jax.tree.map(shifted, entry) for name, entry in reports.items()}


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
