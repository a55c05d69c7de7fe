"""The worst that one and two hostile clients of ten can do to every method, and what the rules cost honest clients.

``single`` has the attacks. Every method has a rule that remembers clients: ``profl`` its default, the others
``history``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import profl
from benchmarks import single
from benchmarks.bench import Row
from profl_papers.claims import Claim, Part, at_most

STEADY = {"rounds": 150, "local_steps": 5, "samples": 200}
RARE = {"rounds": 30, "local_steps": 1, "samples": 200}
QUICK = {"rounds": 5}
METHODS: dict[str, tuple[Any, dict[str, int]]] = {
    "profl": (partial(profl.profl, filter="none"), STEADY),
    "profl, sharing": (partial(profl.profl, filter="none", share="shrink"), STEADY),
    "profl, scaffold": (partial(profl.profl, filter="none", correction="scaffold"), STEADY),
    "profl, rate auto": (partial(profl.profl, "auto", filter="none"), STEADY),
    "profl, history": (partial(profl.profl, filter="none", aggregate="history"), STEADY),
    "pofl, history": (partial(profl.pofl, aggregate="history"), STEADY),
    "prm, history": (partial(profl.prm, aggregate="history"), RARE),
}
CASES: dict[str, tuple[Callable[[], profl.Problem], float]] = {
    "pricing": (profl.cases.pricing, 0.01),
    "different pricing": (partial(profl.cases.pricing, heterogeneity=0.5), 0.01),
    "housing": (partial(profl.cases.housing, heterogeneity=0.25), 0.01),
    "different housing": (profl.cases.housing, 0.01),
    "orange_juice": (partial(profl.cases.orange_juice, clients=10), 0.3),
}
"""Name -> a problem, and the learning rate that suits it."""
RULES = ("reweighted_mean", "history")
PARTICIPATION = (1.0, 0.5)
HONEST = {"rounds": 200, "local_steps": 5, "samples": 500}
HONEST_TIMES = 1.05
"""Times the mean's excess that honest clients may be left with."""


def attacked(name: str, settings: dict[str, Any], quick: bool) -> Part:
    """The share of the gap that is left under every attack on one method."""
    method, length = METHODS[name]
    wanted = {**length, **(QUICK if quick else {}), "seeds": settings["seeds"]}
    rows = single.worst(profl.cases.pricing(), method(), **wanted)
    return Part([{"part": "worst", "method": name, **row} for row in rows], [])


def honest(name: str, settings: dict[str, Any], quick: bool) -> Part:
    """The excess with each rule over the mean's, where all are honest."""
    make, rate = CASES[name]
    rows, case = [], make()
    wanted = {**HONEST, **(QUICK if quick else {}), "seeds": settings["seeds"], "progress": False}
    for participation in PARTICIPATION:
        excess = {
            rule: float(
                profl.simulate(case, profl.pofl(rate, aggregate=rule), participation=participation, **wanted)
                .tail_excess()
                .mean()
            )
            for rule in ("mean", *RULES)
        }
        rows += [
            {
                "part": "honest",
                "case": name,
                "participation": participation,
                "rule": rule,
                "excess": excess[rule],
                "times the mean's": excess[rule] / excess["mean"],
            }
            for rule in RULES
        ]
    return Part(rows, [])


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the rows of all parts must show."""
    found = []
    for name in METHODS:
        for share, most in single.LEFT.items():
            left = {
                row["attack"]: row["left"]
                for row in rows
                if row.get("part") == "worst" and row["method"] == name and row["hostile"] == share
            }
            if left:
                worst = max(left, key=lambda attack: left[attack])
                found.append(
                    at_most(
                        f"{name}, {share:.0%} hostile: share of the gap left, worst attack ({worst})", left[worst], most
                    )
                )
    for row in rows:
        if row.get("part") == "honest":
            what = f"{row['case']}, participation {row['participation']:g}: {row['rule']}"
            found.append(at_most(f"honest, {what}, excess over the mean's", row["times the mean's"], HONEST_TIMES))
    return found
