"""Hostile clients: what each attack does to a run with a robust rule, and with the plain mean; and what the rule costs
where all are honest.

Attacks that all hostile clients carry out alike have noise in common, by which the rule knows them. ``Jittered`` ones
have noise of their own: nobody could tell them from honest clients with other data, and the rule does no better against
them than the mean. That is measured, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import coded, sharing
from benchmarks.bench import Row
from profl.cases import pricing
from profl.methods import profl
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl.server import attacks
from profl.server.entries import Report
from profl.server.rules import History
from profl.typing import Array, Theta
from profl_papers.claims import Claim, Part, at_most
from profl_papers.groups import three_groups

SHARED = "jacobian"
"""The attack that matters where Jacobians are shared, and is tried there."""
ATTACKS = tuple(name for name in attacks.ATTACKS if name != SHARED)
HOSTILE, MORE_HOSTILE, MOST_HOSTILE = 0.2, 0.3, 0.4
"""Shares of clients that attack: two, three and four of ten."""
FIFTH = f"{HOSTILE:.0%} hostile"
STRONGER = f"history, {MORE_HOSTILE}"
RULES = {STRONGER: History(MORE_HOSTILE)}
"""What is tried against more hostile clients than the rule withstands by itself: told that there may be so many."""
SAMPLES = 500
CLIENTS = {"different clients": 0.5, "equal clients": 0.0}
"""Name -> heterogeneity."""
DIFFERENT, EQUAL = CLIENTS
HONEST = {**CLIENTS, "somewhat different clients": 0.25}
MANY, OF_MANY = 20, ("drift", "min_max", "mimic", "f_hat")
"""A larger federation, and the attacks on it that lie within the honest spread or do most harm."""
TIMES, MORE = 2, {DIFFERENT: 0.05, EQUAL: 0.01}
"""At most TIMES the excess that the plain mean has without an attack plus MORE: a rule that drops clients also drops
honest ones, and an excess near zero leaves no room of its own."""
OF_GAP = 0.05
"""With MORE_HOSTILE, of the gap between the stable point and the optimum: what retraining leaves."""
HONEST_TIMES = 1.2
"""The same where all are honest: at rest the excess is noise, and over eight of ten clients there is 1.25 times it."""
JITTER = 0.02
"""About the noise of one client's move in a round."""


@dataclass(frozen=True)
class Jittered(attacks.Attack):
    """An attack on all entries, with noise of its own on every hostile client's model: normal, drawn with a key from
    what the client has."""

    attack: str
    scale: float = JITTER

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Array) -> Report:
        def noise(own: Array) -> Array:
            key = jax.random.key(jax.lax.bitcast_convert_type(jnp.float32(own.ravel()[0]), jnp.uint32))
            return self.scale * jax.random.normal(key, own.shape)

        found = attacks.get(self.attack).reports(reports, sent, first, hostile)
        jitter = jax.tree.map(jax.vmap(noise), reports["theta"])
        return {**found, "theta": jax.tree.map(jnp.add, found["theta"], jitter)}


NAMES = ("clients", "attack", "rule", "hostile")
Found = dict[tuple[str, str, str, float], dict[str, float]]
"""(clients, attack, rule, share of hostile ones) -> tail excess, as a share of the gap, and how far outside its space
the model ever was."""


def of_all(rows: Sequence[Row], rule: str) -> Part:
    """The claims, from the rows of all parts."""
    found = {tuple(row[name] for name in NAMES): row for row in rows if row.get("part") == "hostile"}
    return Part([], [*_at_a_fifth(found, rule), *_at_more(found), *_honest(found, rule)])


def attacked(rule: str, settings: dict[str, Any]) -> Part:
    """Every attack on ten clients and one rule, which share a program, and where all are honest."""
    found: Found = {}
    for name, heterogeneity in HONEST.items():
        tried = [(attack, HOSTILE) for attack in ATTACKS] if name in CLIENTS else []
        tried.append(("none", 0.0))
        if rule == STRONGER:
            more = MORE_HOSTILE, MOST_HOSTILE
            tried = [(attack, share) for share in more for attack in ATTACKS] if name == DIFFERENT else []
        found |= _runs(pricing(heterogeneity=heterogeneity), name, rule, tried, settings)
    return _part(found)


def many(rule: str, settings: dict[str, Any]) -> Part:
    """Some attacks on a larger federation."""
    case = pricing(clients=MANY, heterogeneity=CLIENTS[DIFFERENT])
    return _part(_runs(case, _of(MANY), rule, [(attack, HOSTILE) for attack in OF_MANY], settings))


def jittered(rule: str, settings: dict[str, Any]) -> Part:
    """Attackers with noise of their own, against the mean and a rule."""
    found: Found = {}
    case = pricing(heterogeneity=CLIENTS[DIFFERENT])
    for each in ("mean", rule):
        method, attack = profl(filter="none", aggregate=each), Jittered("drift")
        run = simulate(case, method, samples=SAMPLES, attack=attack, hostile=HOSTILE, **settings)
        found[DIFFERENT, "drift, jittered", each, HOSTILE] = _figures(case, run)
    return _part(found)


def shared(settings: dict[str, Any]) -> Part:
    """Poisoned Jacobians where they are shared."""
    case, method = three_groups(), profl(filter="none", share="auto")
    runs = coded.attacked(case, method, NEVER_AND_SOME, samples=sharing.SAMPLES, **settings)
    return _part({(case.name, name, "shared J", share): _figures(case, run) for (name, share), run in runs.items()})


def _at_a_fifth(found: Found, rule: str) -> list[Claim]:
    claims = []
    tried = [(name, attack) for name in CLIENTS for attack in ATTACKS] + [(_of(MANY), attack) for attack in OF_MANY]
    for name, attack in tried:
        like = name if name in CLIENTS else DIFFERENT
        free = found[like, "none", "mean", 0.0]["excess"]
        excess = found[name, attack, rule, HOSTILE]["excess"]
        claims.append(
            at_most(f"{HOSTILE:.0%} hostile, {name}, {attack}: tail excess", excess, TIMES * free + MORE[like])
        )
    three = three_groups().name
    free, poisoned = (found[three, attack, "shared J", share]["excess"] for attack, share in NEVER_AND_SOME)
    claims.append(
        at_most(f"{HOSTILE:.0%} hostile, {three}, {SHARED}: tail excess", poisoned, TIMES * free + MORE[EQUAL])
    )
    jittered = [found[DIFFERENT, "drift, jittered", each, HOSTILE]["excess"] for each in (rule, "mean")]
    claim = f"{FIFTH}, {DIFFERENT}, drift with noise of its own: tail excess over the mean's"
    return [*claims, at_most(claim, jittered[0] / jittered[1], HONEST_TIMES)]


def _at_more(found: Found) -> list[Claim]:
    claims = []
    for attack in ATTACKS:
        part = found[DIFFERENT, attack, STRONGER, MORE_HOSTILE]["of gap"]
        claims.append(at_most(f"{MORE_HOSTILE:.0%} hostile, {DIFFERENT}, {attack}: of the PFL gap", part, OF_GAP))
    most = [found[DIFFERENT, attack, STRONGER, MOST_HOSTILE] for attack in ATTACKS]
    name = f"{MOST_HOSTILE:.0%} hostile, {DIFFERENT}, worst attack: "
    claims.append(at_most(name + "of the PFL gap (bounded)", max(run["of gap"] for run in most), 1.0))
    outside = max(run["outside"] for run in found.values())
    return [*claims, at_most("hostile, every run: how far a model lies outside its space", outside, 0.0)]


def _honest(found: Found, rule: str) -> list[Claim]:
    claims = []
    for name in HONEST:
        own, mean = (found[name, "none", each, 0.0]["excess"] for each in (rule, "mean"))
        claims.append(at_most(f"honest, {name}: tail excess with {rule} over the mean's", own / mean, HONEST_TIMES))
    return claims


def _of(clients: int) -> str:
    return f"{clients} {DIFFERENT}"


NEVER_AND_SOME = ("none", 0.0), (SHARED, HOSTILE)


def _runs(case: Problem, name: str, rule: str, tried: Any, settings: dict[str, Any]) -> Found:
    method = profl(filter="none", aggregate=RULES.get(rule, rule))
    runs = coded.attacked(case, method, tried, samples=SAMPLES, **settings)
    return {(name, attack, rule, share): _figures(case, run) for (attack, share), run in runs.items()}


def _part(found: Found) -> Part:
    return Part(
        [{"part": "hostile", **dict(zip(NAMES, key, strict=True)), **value} for key, value in found.items()], []
    )


def _figures(case: Problem, run: Run) -> dict[str, float]:
    excess = float(run.tail_excess().mean())
    return {"excess": excess, "of gap": excess / (run.stable_risk - run.optimum_risk), "outside": _outside(case, run)}


def _outside(case: Problem, run: Run) -> float:
    """The largest distance of a model in the run from the space that the problem states; Inf where it is not finite."""
    models = np.asarray(run.theta, np.float64).reshape(-1, run.theta.shape[-1])
    inside = np.asarray(jax.vmap(case.project)(jnp.asarray(models, jnp.float32)), np.float64)
    return float(np.max(np.abs(np.where(np.isfinite(models), models - inside, np.inf))))
