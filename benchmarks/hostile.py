"""Hostile clients: what each attack does to a run with a robust rule, and with the plain mean; and what the rule costs
where all are honest.

Attacks that all hostile clients carry out alike have noise in common, by which the rule knows them. ``Jittered`` ones
have noise of their own: nobody could tell them from honest clients with other data, and the rule does no better against
them than the mean. That is measured, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import sharing
from benchmarks.together import together
from profl.cases import pricing
from profl.methods import profl
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl.server import attacks
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
    """An attack with noise of its own on every hostile report: normal, drawn with a key from what the client has."""

    attack: str
    scale: float = JITTER

    def reports(self, reports: attacks.Reports, sent: Theta, first: Theta, hostile: Array) -> attacks.Reports:
        def noise(own: Array) -> Array:
            key = jax.random.key(jax.lax.bitcast_convert_type(jnp.float32(own.ravel()[0]), jnp.uint32))
            return self.scale * jax.random.normal(key, own.shape)

        found = attacks.get(self.attack).reports(reports, sent, first, hostile)
        jitter = jax.tree.map(jax.vmap(noise), reports["theta"])
        return {**found, "theta": jax.tree.map(jnp.add, found["theta"], jitter)}


Found = dict[tuple[str, str, str, float], dict[str, float]]
"""(clients, attack, rule, share of hostile ones) -> tail excess, as a share of the gap, and how far outside its space
the model ever was."""


def hostile(settings: dict[str, Any], rule: str) -> Part:
    """Every attack, with the rule that fits and with the plain mean; then poisoned Jacobians where they are shared."""
    runs = [partial(_attacked, settings, attack, each) for attack in ATTACKS for each in ("mean", rule, STRONGER)]
    runs += [partial(_many, settings, attack, rule) for attack in OF_MANY]
    runs += [partial(_jittered, settings, each) for each in ("mean", rule)]
    found: Found = reduce(or_, together([*runs, partial(_shared, settings)]))
    names = ("clients", "attack", "rule", "hostile")
    rows = [{"part": "hostile", **dict(zip(names, key, strict=True)), **value} for key, value in found.items()]
    return Part(rows, [*_at_a_fifth(found, rule), *_at_more(found), *_honest(found, rule)])


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


def _attacked(settings: dict[str, Any], attack: str, rule: str) -> Found:
    """One attack; with the first of them also the runs without any, which share its compiled code."""
    found = {}
    tried = [(name, HOSTILE) for name in CLIENTS] + [(name, 0.0) for name in HONEST if attack == ATTACKS[0]]
    if rule == STRONGER:
        tried = [(DIFFERENT, MORE_HOSTILE), (DIFFERENT, MOST_HOSTILE)]
    for name, share in tried:
        case, key = pricing(heterogeneity=HONEST[name]), (name, attack if share else "none", rule, share)
        found[key] = _run(case, settings, RULES.get(rule, rule), attack, share, SAMPLES)
    return found


def _many(settings: dict[str, Any], attack: str, rule: str) -> Found:
    case = pricing(clients=MANY, heterogeneity=CLIENTS[DIFFERENT])
    return {(_of(MANY), attack, rule, HOSTILE): _run(case, settings, rule, attack, HOSTILE, SAMPLES)}


def _of(clients: int) -> str:
    return f"{clients} {DIFFERENT}"


def _jittered(settings: dict[str, Any], rule: str) -> Found:
    case = pricing(heterogeneity=CLIENTS[DIFFERENT])
    found = _run(case, settings, rule, Jittered("drift"), HOSTILE, SAMPLES)
    return {(DIFFERENT, "drift, jittered", rule, HOSTILE): found}


NEVER_AND_SOME = ("none", 0.0), (SHARED, HOSTILE)


def _shared(settings: dict[str, Any]) -> Found:
    case = three_groups()
    return {
        (case.name, name, "shared J", share): _run(case, settings, "mean", SHARED, share, sharing.SAMPLES, "auto")
        for name, share in NEVER_AND_SOME
    }


def _run(
    case: Problem, settings: dict[str, Any], rule: Any, attack: Any, hostile: float, samples: int, share: Any = None
) -> dict[str, float]:
    method = profl(filter="none", aggregate=rule, share=share)
    run = simulate(case, method, samples=samples, attack=attack, hostile=hostile, **settings)
    excess = float(run.tail_excess().mean())
    return {"excess": excess, "of gap": excess / (run.stable_risk - run.optimum_risk), "outside": _outside(case, run)}


def _outside(case: Problem, run: Run) -> float:
    """The largest distance of a model in the run from the space that the problem states; Inf where it is not finite."""
    models = np.asarray(run.theta, np.float64).reshape(-1, run.theta.shape[-1])
    inside = np.asarray(jax.vmap(case.project)(jnp.asarray(models, jnp.float32)), np.float64)
    return float(np.max(np.abs(np.where(np.isfinite(models), models - inside, np.inf))))
