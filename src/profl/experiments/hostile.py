"""Hostile clients: what each attack does to a run with a robust rule, and with the plain mean."""

from __future__ import annotations

from typing import Any

from profl.algorithms import profl
from profl.cases import pricing
from profl.engines.compiled.simulate import simulate
from profl.experiments import sharing
from profl.experiments.claims import Part, at_most
from profl.experiments.groups import three_groups
from profl.problem.problem import Problem

ATTACKS = ("sign_flip", "scaled", "drift", "nan", "stale", "f_hat")
HOSTILE = 0.2
"""The share of clients that attack: two of ten."""
SAMPLES = 500
CLIENTS = {"different clients": 0.5, "equal clients": 0.0}
"""Name -> heterogeneity."""
TIMES, MORE = 2, 0.01
"""At most TIMES the excess that the plain mean has without an attack plus MORE: a rule that drops clients also drops
honest ones, and an excess near zero leaves no room of its own."""


def hostile(settings: dict[str, Any], rule: str) -> Part:
    """Every attack, with the rule that fits and with the plain mean; then poisoned Jacobians where they are shared."""
    rows: list[dict[str, Any]] = []
    claims = []
    for name, heterogeneity in CLIENTS.items():
        case = pricing(heterogeneity=heterogeneity)
        free = _excess(case, settings, "mean", None)
        rows.append(_row(name, "none", "mean", free))
        for attack in ATTACKS:
            found = {each: _excess(case, settings, each, attack) for each in ("mean", rule)}
            rows += [_row(name, attack, each, excess) for each, excess in found.items()]
            # Nobody can tell a colluder one deviation off from an honest client with another sensitivity.
            if attack != "drift" or heterogeneity == 0:
                claim = f"hostile, {name}, {attack}: tail excess with {rule}"
                claims.append(at_most(claim, found[rule], TIMES * free + MORE))
    case = three_groups()
    shared: dict[str, Any] = {"samples": sharing.SAMPLES, "share": "auto"}
    free, excess = (_excess(case, settings, "mean", attack, **shared) for attack in (None, "jacobian"))
    rows += [_row(case.name, "none", "shared J", free), _row(case.name, "jacobian", "shared J", excess)]
    claims.append(at_most("hostile, shared Jacobians, poisoned: tail excess", excess, TIMES * free + MORE))
    return Part(rows, claims)


def _excess(
    case: Problem, settings: dict[str, Any], rule: str, attack: str | None, samples: int = SAMPLES, share: Any = None
) -> float:
    method = profl(filter="none", aggregate=rule, share=share)
    run = simulate(case, method, samples=samples, attack=attack, hostile=HOSTILE, **settings)
    return float(run.tail_excess().mean())


def _row(clients: str, attack: str, rule: str, excess: float) -> dict[str, Any]:
    return {"part": "hostile", "clients": clients, "attack": attack, "rule": rule, "excess": excess}
