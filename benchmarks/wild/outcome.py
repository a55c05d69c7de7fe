"""What methods make of one problem: where they end, against its start, PFL's end, and their own forecast.

Runs see a problem without its exact risk, which keeps programs small; the models they end at are measured afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from profl.methods import pfl, pofl, prm
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.problem.reaction import Unmeasured
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.drawn.solver import Known, Risk

NEAR_ZERO = 0.01
"""L(PS) - L(PO) below this share of L(start) - L(PO) is no scale to judge by: the start's excess is, and the problem
counts for no share."""
BEYOND = 0.01
"""Of the scale, by how much a risk must be higher to be called above another."""
LIMIT = 1.2816
"""Standard errors from a forecast to its 90 % upper limit."""
TINY = 1e-9


class Runner(NamedTuple):
    make: Callable[[], Method]
    rounds: int
    local_steps: int


METHODS: dict[str, Runner] = {
    "prm": Runner(prm, 30, 1),
    "pofl": Runner(lambda: pofl(learning_rate="auto"), 200, 5),
    "pfl": Runner(lambda: pfl(learning_rate="auto"), 200, 5),
}


class Ends(NamedTuple):
    """Of a method's run, one number per seed; infinite where it diverged."""

    run: Run
    start: np.ndarray  # risks
    end: np.ndarray
    forecast: np.ndarray | None  # of the excess at the end
    error: np.ndarray | None  # its standard error


def run(problem: Problem, name: str, samples: int, seeds: Sequence[int], **settings: Any) -> Ends:
    """One of METHODS on a problem with an exact risk."""
    runner = METHODS[name]
    rounds = settings.pop("rounds", runner.rounds)
    layout = {"rounds": rounds, "record_every": rounds, "local_steps": runner.local_steps, "samples": samples}
    plain = replace(problem, reaction=Unmeasured(problem.reaction))
    result = simulate(plain, runner.make(), seeds=seeds, progress=False, **layout, **settings)
    risk = Risk(problem)
    start, end = (np.array([finite_risk(risk, each) for each in result.theta[:, i]]) for i in (0, -1))
    stated = (result.expected_excess, result.expected_error)
    forecast, error = (None if values is None else np.asarray(values[:, -1], float) for values in stated)
    return Ends(result, start, end, forecast, error)


def finite_risk(risk: Risk, theta: np.ndarray) -> float:
    """L(theta); infinite where it, or theta, is no number."""
    value = risk.value(np.asarray(theta, float)) if np.isfinite(theta).all() else np.inf
    return value if np.isfinite(value) else np.inf


def covered(forecast: Any, error: Any, excess: Any) -> np.ndarray:
    """Whether the 90 % upper limit lies above the true excess; one that is not finite claims nothing, and does.

    >>> covered(1.0, 1.0, [2.0, 3.0])
    array([ True, False])
    """
    limit = np.asarray(forecast, float) + LIMIT * np.asarray(error, float)
    return ~np.isfinite(limit) | (limit >= np.asarray(excess, float) - TINY)


def is_judged(known: Known) -> bool:
    """Whether the gap is large enough for a share of it to mean something."""
    return known.gap > max(NEAR_ZERO * known.way, TINY * (1 + abs(known.optimum_risk)))


def scale(known: Known) -> float:
    """What differences of risk are measured in: the gap, or where it is nearly zero the start's excess."""
    return known.gap if is_judged(known) else max(known.way, known.gap, 1e-3 * (1 + abs(known.optimum_risk)))


def compare_on(problem: Problem, known: Known, samples: int, methods: Sequence[str] = tuple(METHODS)) -> dict[str, Any]:
    """The figures of one problem and seed 0, flat: for a row of the table."""
    ends = {name: run(problem, name, samples, [0]) for name in methods}
    unit, plain = scale(known), ends.get("pfl")
    row: dict[str, Any] = {"gap": known.gap, "scale": unit, "judged": is_judged(known), "start": known.way / unit}
    for name, each in ends.items():
        end = float(each.end[0])
        excess = end - known.optimum_risk
        row[f"{name}: left"] = excess / unit
        row[f"{name}: over its start"] = (end - known.start_risk) / unit
        if name != "pfl" and plain is not None:
            row[f"{name}: over pfl's end"] = over(end, float(plain.end[0]), unit)
        if each.forecast is not None and each.error is not None:
            forecast, error = float(each.forecast[0]), float(each.error[0])
            row[f"{name}: forecast"], row[f"{name}: error"] = forecast / unit, error / unit
            row[f"{name}: covered"] = bool(covered(forecast, error, excess))
    return row


def over(end: float, other: float, unit: float) -> float:
    """end - other in units, where either may be infinite: not above one that diverged.

    >>> over(2.0, np.inf, 1.0), over(np.inf, 1.0, 1.0)
    (-inf, inf)
    """
    return -np.inf if not np.isfinite(other) else (end - other) / unit
