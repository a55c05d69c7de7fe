"""One hostile client of ten: what is the worst that it can do to each method, with every number that it sends?

The attacks are all of ``profl.server.ATTACKS``, and on every single entry of the method's reports: far too large, turned
around, a fixed number, honest work plus a bias of some deviations of the honest reports. ``ADDED`` is for the reader's.
Of a method there is one compiled program for all attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.coded import Coded, coded, run_of
from profl.results.record import Run
from profl.run.config import RunConfig
from profl.run.plan import make_plan
from profl.server import attacks
from profl.server.attacks import Attack
from profl.server.entries import Report
from profl.server.participation import hostile_clients
from profl.typing import Theta

ADDED: dict[str, Attack] = {}
"""More attacks by name: put yours here, as ``benchmarks.single.ADDED["mine"] = Mine()``."""

ONE, TWO = 0.1, 0.2
"""Shares of hostile clients: one and two of ten."""
LEFT = {ONE: 0.01, TWO: 0.05}
"""Share of the gap between the stable point and the optimum that may be left."""
BIASES = (2.0, 4.0, 8.0)
"""Deviations of the honest reports by which honest work is off: from what passes as honest to what stands out."""
FACTORS = (9000.0, -1.0)
"""Times its entry: as large as the gate lets through, and turned around."""
NUMBERS = (1e30, 9e14, 0.0)
"""Fixed numbers in place of an entry."""
SIDES = (5.0, 0.0)
"""Fixed models: two corners of the space of prices."""
LAST = 5


@dataclass(frozen=True)
class OneEntry(Attack):
    """``change(rows (k, m), honest (k,)) -> rows`` of one entry; all others are honest."""

    name: str
    change: Callable[..., Any]

    def reports(self, reports: Report, sent: Theta, first: Theta, hostile: Any) -> Report:
        entry = reports[self.name]

        def leaf(own: Any) -> Any:
            rows = own.reshape(len(own), -1).astype(float)
            return self.change(rows, ~hostile).reshape(own.shape).astype(own.dtype)

        return {**reports, self.name: entry.replace(jax.tree.map(leaf, entry.value))}


def times(factor: float, rows: Any, honest: Any) -> Any:
    return factor * rows


def fixed(number: float, rows: Any, honest: Any) -> Any:
    return jnp.full_like(rows, number)


def biased(deviations: float, rows: Any, honest: Any) -> Any:
    return rows + deviations * attacks._moments(rows, honest)[1]


def on_entries(report: Report) -> dict[str, Attack]:
    """The attacks on each entry by itself."""
    changes = {
        **{f"times {factor:g}": partial(times, factor) for factor in FACTORS},
        **{f"{number:g}": partial(fixed, number) for number in NUMBERS},
        **{f"{z:g} sd off": partial(biased, z) for z in BIASES},
    }
    single = {f"{name} {what}": OneEntry(name, change) for name in report for what, change in changes.items()}
    corners = {f"theta at {side:g}": OneEntry("theta", partial(fixed, side)) for side in SIDES}
    return single | corners


def all_attacks(problem: Any, method: Any, settings: dict[str, Any]) -> dict[str, Attack]:
    """All attacks on a method by name."""
    report = make_plan(problem, method, RunConfig(**settings)).report
    return {**attacks.ATTACKS, **on_entries(report), **ADDED}


def worst(problem: Any, method: Any, shares: tuple[float, ...] = (ONE, TWO), **settings: Any) -> list[dict[str, Any]]:
    """The share of the gap that is left under every attack, a row each; NaN where a run ended."""
    named = all_attacks(problem, method, settings)
    plan = make_plan(problem, method, RunConfig(attack=Coded(tuple(named.items())), **settings))
    rows = [
        {
            "attack": "none",
            "hostile": 0.0,
            "left": left(run_of(problem, coded(plan, [False] * problem.count, "none"))[0]),
        }
    ]
    for share in shares:
        hostile = hostile_clients(share, problem.count)
        for name in named:
            run = run_of(problem, coded(plan, hostile, name))[0]
            rows.append({"attack": name, "hostile": share, "left": left(run)})
    return rows


def left(run: Run) -> float:
    """The largest share of the gap that any seed has left at the end."""
    excess = np.mean(np.asarray(run.excess, np.float64)[:, -LAST:], axis=1)
    return float(np.max(excess / (run.stable_risk - run.optimum_risk)))
