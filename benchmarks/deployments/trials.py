"""Parts of ``python -m benchmarks deployments`` that only the method of the claims goes through.

Few samples, junk among them and hostile clients; the same problem in other units; and whether the method knows when it
is done, and how far from the optimum it then is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import hostile
from benchmarks.deployments.methods import SAMPLES, SUBJECT, run, subject
from benchmarks.deployments.outcome import NONE, Outcome
from benchmarks.deployments.problems import PROBLEMS
from benchmarks.junk import DISTANCE
from profl.methods import pofl
from profl.problem.contamination import contaminate
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most
from profl_papers.measures import gap

FEW, FEW_TIMES = 50, 5
"""Samples, and how many times the share may be left with a tenth of them: half of what noise alone would do."""
HARMED, JUNK, TIMES, MORE = ("pricing", "housing", "strategic", "asymmetric 0"), 0.2, 2, 0.001
"""Rows with junk and with hostile clients, the share of junk, and how much may then be left: TIMES the clean share plus
MORE, for a clean share near zero."""
ATTACKS, RULE = ("sign_flip", "scaled", "nan", "stale", "f_hat"), "nnm+trimmed_mean"
"""What hostile clients do, and the rule for reports that are no models and of which there are few: it looks at one
message alone. The attacks that know the rules are for one that remembers (``hostile``)."""
OTHER, SAME = ("pricing, shifted", "pricing, mixed units"), 0.1
"""Rows that are pricing in other units, and how much shares and regrets may differ from it."""
SOONEST, LATEST = 10, 60
"""Deployments between which a run is to find that it is done."""
FACTOR, OFTEN = 3, 0.8
"""How near the forecast of the excess is to be, and in which share of the seeds."""

Found = dict[str, dict[str, Outcome]]


def few_samples(name: str, found: Found, settings: dict[str, Any]) -> Part:
    """A tenth of the samples."""
    if name not in found:
        return Part([], [])
    problem = PROBLEMS[name]()
    stable = gap(problem)
    many = found[name][SUBJECT].share(stable).mean()
    few = run(problem, subject(problem), **settings | {"samples": FEW}).share(stable).mean()
    claim = at_most(f"{name}, n = {FEW}: share left over that of n = {SAMPLES}", few / many, FEW_TIMES)
    return Part([{"part": "few samples", "row": name, f"share left, n = {SAMPLES}": many, f"n = {FEW}": few}], [claim])


def bad_data(name: str, found: Found, settings: dict[str, Any]) -> Part:
    """Junk against the filter, then every attack against the robust rule."""
    problem = PROBLEMS[name]()
    stable = gap(problem)
    clean = found[name][SUBJECT].share(stable).mean()
    dirty = contaminate(problem, JUNK, "blob", distance=DISTANCE)
    shares = {f"{JUNK:.0%} junk": run(dirty, subject(problem, filter="robust"), **settings)}
    for attack in ATTACKS:
        method = subject(problem, aggregate=RULE)
        shares[attack] = run(problem, method, **settings | {"attack": attack, "hostile": hostile.HOSTILE})
    table, claims = [{"part": "bad data", "row": name, "what": "clean", "share left": clean}], []
    for what, each in shares.items():
        left = each.share(stable).mean()
        table.append({"part": "bad data", "row": name, "what": what, "share left": left})
        claims.append(at_most(f"{name}, {what}: share left", left, TIMES * clean + MORE))
    return Part(table, claims)


def other_units(settings: dict[str, Any]) -> Part:
    """Pricing shifted, and every price in another unit, with the defaults of two methods."""
    cases = {name: PROBLEMS[name]() for name in ("pricing", *OTHER)}
    table, claims = [], []
    for label in (SUBJECT, "pofl"):
        figures = {}
        for name, problem in cases.items():
            found = run(problem, pofl() if label == "pofl" else subject(problem), **settings)
            figures[name] = np.array([found.share(gap(problem)).mean(), found.regret.mean()])
            shown = dict(zip(("share left", "regret"), figures[name], strict=True))
            table.append({"part": "other units", "row": name, "method": label, **shown})
        for name in OTHER:
            off = np.max(np.abs(figures[name] / figures["pricing"] - 1))
            claims.append(at_most(f"{name}, {label}: share left and regret off from pricing's", off, SAME))
    return Part(table, claims)


def settled(name: str, found: Found, settings: dict[str, Any]) -> Part:
    """A run that stops by itself: when it does, and how near its forecast of what is left then comes."""
    import profl

    rule = getattr(profl, "StopWhenSettled", None)
    if rule is None or name not in found:
        return Part([], [])
    problem = PROBLEMS[name]()
    known = {"local_steps": 1, "samples": SAMPLES, "stop": rule()}
    ended: Any = simulate(problem, subject(problem), **settings | known | {"rounds": LATEST})
    rounds = np.asarray(ended.settled, float)
    forecast, true = (np.maximum(values[:, -1], NONE) for values in (ended.expected_excess, ended.excess))
    near = float(np.mean(np.abs(np.log(forecast / true)) <= np.log(FACTOR)))
    figures = {"first": rounds.min(), "last": rounds.max(), f"forecasts within {FACTOR} times": near}
    seeds = {"settled": rounds, "forecast": forecast, "excess": true}
    claims = [
        at_least(f"{name}: first seed to settle", rounds.min(), SOONEST),
        at_most(f"{name}: last seed to settle", rounds.max(), LATEST),
        at_least(f"{name}: seeds whose forecast is within {FACTOR} times", near, OFTEN),
    ]
    return Part([{"part": "settled", "row": name, **figures, "per seed": seeds}], claims)
