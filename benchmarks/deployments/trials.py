"""Parts of ``python -m benchmarks deployments`` that only the method of the claims goes through.

Few samples, junk among them and hostile clients; the same problem in other units; and whether the method knows when it
is done, and how far from the optimum it then is.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import coded, hostile
from benchmarks.deployments.methods import SAMPLES, SUBJECT, Followed, run, subject
from benchmarks.deployments.outcome import NONE, Outcome, outcome
from benchmarks.deployments.problems import PROBLEMS
from benchmarks.junk import DISTANCE
from profl.methods import pofl
from profl.methods.method import Forecast
from profl.methods.stopping import StopWhenSettled
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
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


def few_samples(name: str, problem: Problem, clean: Outcome, settings: dict[str, Any]) -> Part:
    """A tenth of the samples."""
    stable = gap(problem)
    many = clean.share(stable).mean()
    few = run(problem, subject(problem), **settings | {"samples": FEW}).share(stable).mean()
    claim = at_most(f"{name}, n = {FEW}: share left over that of n = {SAMPLES}", few / many, FEW_TIMES)
    return Part([{"part": "few samples", "row": name, f"share left, n = {SAMPLES}": many, f"n = {FEW}": few}], [claim])


def bad_data(name: str, problem: Problem, clean: Outcome, settings: dict[str, Any]) -> Part:
    """Junk against the filter, then every attack against the robust rule."""
    stable = gap(problem)
    dirty = contaminate(problem, JUNK, "blob", distance=DISTANCE)
    shares = {f"{JUNK:.0%} junk": run(dirty, subject(problem, filter="robust"), **settings)}
    tried = [(attack, hostile.HOSTILE) for attack in ATTACKS]
    method, known = subject(problem, aggregate=RULE), {"local_steps": 1, "samples": SAMPLES}
    for (attack, _), made in coded.attacked(problem, method, tried, **settings | known).items():
        shares[attack] = outcome(problem, made)
    bar = TIMES * clean.share(stable).mean() + MORE
    table, claims = [{"part": "bad data", "row": name, "what": "clean", "share left": clean.share(stable).mean()}], []
    for what, each in shares.items():
        left = each.share(stable).mean()
        table.append({"part": "bad data", "row": name, "what": what, "share left": left})
        claims.append(at_most(f"{name}, {what}: share left", left, bar))
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


def settled(name: str, problem: Problem, long: Followed) -> Part:
    """When a run would stop by itself, and how near its forecast of what is left then comes."""
    ends = rounds_until_settled(StopWhenSettled(), long.forecast, LATEST)
    last = np.where(np.isnan(ends), LATEST, ends).astype(int)[:, None]
    expected = np.take_along_axis(np.asarray(long.forecast.excess), last - 1, axis=1)[:, 0]
    left = np.take_along_axis(long.run.excess, last, axis=1)[:, 0]
    forecast, true = np.maximum(expected, NONE), np.maximum(left, NONE)
    near = float(np.mean(np.abs(np.log(forecast / true)) <= np.log(FACTOR)))
    figures = {"first": ends.min(), "last": ends.max(), f"forecasts within {FACTOR} times": near}
    seeds = {"settled": ends, "forecast": forecast, "excess": true}
    claims = [
        at_least(f"{name}: first seed to settle", ends.min(), SOONEST),
        at_most(f"{name}: last seed to settle", ends.max(), LATEST),
        at_least(f"{name}: seeds whose forecast is within {FACTOR} times", near, OFTEN),
    ]
    return Part([{"part": "settled", "row": name, **figures, "per seed": seeds}], claims)


def rounds_until_settled(rule: StopWhenSettled, forecast: Forecast, latest: int) -> np.ndarray:
    """After how many of ``latest`` deployments a run with this ``stop`` ends, per seed; NaN where it does not.

    A run without it makes the same deployments until then, in the program of the other rows.

    >>> never, soon = Forecast(0.5, 0.1, 1.0, 0.1), Forecast(0.5, 0.1, 0.0, 0.1)
    >>> by_deployment = Forecast(*(np.array([[a, a, b], [a, a, a]]) for a, b in zip(never, soon)))
    >>> rounds_until_settled(StopWhenSettled(least=2), by_deployment, 3).tolist()
    [3.0, nan]
    """
    why = jax.vmap(jax.vmap(rule.why), (0, None))(
        Forecast(*(jnp.asarray(each)[:, :latest] for each in forecast)), jnp.arange(1, latest + 1)
    )
    over = np.asarray(why) > 0
    return np.where(over.any(1), over.argmax(1) + 1.0, np.nan)
