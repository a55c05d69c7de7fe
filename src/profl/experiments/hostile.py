"""Hostile clients: what each attack does to a run with a robust rule, and with the plain mean; and what the rule costs
where all are honest."""

from __future__ import annotations

from functools import partial, reduce
from operator import or_
from typing import Any

from profl.algorithms import profl
from profl.cases import pricing
from profl.engines.compiled.simulate import simulate
from profl.experiments import sharing
from profl.experiments.claims import Part, at_most
from profl.experiments.groups import three_groups
from profl.experiments.together import together
from profl.problem.problem import Problem

ATTACKS = ("sign_flip", "scaled", "drift", "nan", "stale", "f_hat")
HOSTILE = 0.2
"""The share of clients that attack: two of ten."""
SAMPLES = 500
CLIENTS = {"different clients": 0.5, "equal clients": 0.0}
"""Name -> heterogeneity."""
HONEST = {**CLIENTS, "somewhat different clients": 0.25}
TIMES, MORE = 2, 0.01
"""At most TIMES the excess that the plain mean has without an attack plus MORE: a rule that drops clients also drops
honest ones, and an excess near zero leaves no room of its own."""
HONEST_TIMES = 1.2
"""The same where all are honest: at rest the excess is noise, and over eight of ten clients there is 1.25 times it."""


Found = dict[tuple[str, str, str], float]
"""(clients, attack, rule) -> tail excess."""


def hostile(settings: dict[str, Any], rule: str) -> Part:
    """Every attack, with the rule that fits and with the plain mean; then poisoned Jacobians where they are shared."""
    runs = [partial(_attacked, settings, attack, each) for attack in ATTACKS for each in ("mean", rule)]
    excess: Found = reduce(or_, together([*runs, partial(_shared, settings)]))
    names = ("clients", "attack", "rule")
    rows = [{"part": "hostile", **dict(zip(names, key, strict=True)), "excess": value} for key, value in excess.items()]
    claims = []
    for name, heterogeneity in CLIENTS.items():
        free = excess[name, "none", "mean"]
        for attack in ATTACKS:
            # Nobody can tell a colluder one deviation off from an honest client with another sensitivity.
            if attack != "drift" or heterogeneity == 0:
                claim = f"hostile, {name}, {attack}: tail excess with {rule}"
                claims.append(at_most(claim, excess[name, attack, rule], TIMES * free + MORE))
    for name in HONEST:
        ratio = excess[name, "none", rule] / excess[name, "none", "mean"]
        claims.append(at_most(f"honest, {name}: tail excess with {rule} over the mean's", ratio, HONEST_TIMES))
    free, poisoned = (excess[three_groups().name, attack, "shared J"] for attack in ("none", "jacobian"))
    claims.append(at_most("hostile, shared Jacobians, poisoned: tail excess", poisoned, TIMES * free + MORE))
    return Part(rows, claims)


def _attacked(settings: dict[str, Any], attack: str, rule: str) -> Found:
    """One attack; with the first of them also the runs without any, which share its compiled code."""

    def excess(heterogeneity: float, hostile: float) -> float:
        return _excess(pricing(heterogeneity=heterogeneity), settings, rule, attack, hostile, SAMPLES)

    found = {(name, attack, rule): excess(heterogeneity, HOSTILE) for name, heterogeneity in CLIENTS.items()}
    if attack != ATTACKS[0]:
        return found
    return {(name, "none", rule): excess(heterogeneity, 0.0) for name, heterogeneity in HONEST.items()} | found


def _shared(settings: dict[str, Any]) -> Found:
    case = three_groups()
    return {
        (case.name, name, "shared J"): _excess(case, settings, "mean", "jacobian", share, sharing.SAMPLES, "auto")
        for name, share in (("none", 0.0), ("jacobian", HOSTILE))
    }


def _excess(
    case: Problem, settings: dict[str, Any], rule: str, attack: str, hostile: float, samples: int, share: Any = None
) -> float:
    method = profl(filter="none", aggregate=rule, share=share)
    run = simulate(case, method, samples=samples, attack=attack, hostile=hostile, **settings)
    return float(run.tail_excess().mean())
