"""One method on one sealed problem under every condition: a cell of figures each.

A cell is {"left", "regret": one number per seed, in shares of the gap L(PS) - L(PO), "reached": deployments of a client
until REACHED of the gap was left or None, "deployments", "cpu"}, or {"refused": why}. A run that diverged left nothing
finite: None.

All three conditions run one compiled program: clean data are contaminated with a share of zero, and an attack has no
client to work with.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.problem.contamination import contaminate
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.leaderboard.entries import ENTRIES, Entry, by_identity
from profl_papers.leaderboard.rates import first_rate
from profl_papers.leaderboard.sealed import JUNK, Sealed, draw_problem
from profl_papers.plain import plain

CONDITIONS = ("clean", "junk", "hostile")
SOURCE = "blob"
REACHED = 0.05
"""The share of the gap below which a problem counts as solved."""
POOLED = "all data are pooled: there is no report to attack"


class Length(NamedTuple):
    """How long a run is; the same for all."""

    rounds: int
    seeds: int


FULL, QUICK = Length(40, 3), Length(8, 1)


def play_problem(seed: int, number: int, quick: bool, identities: Sequence[Sequence[str]]) -> dict[str, Any]:
    """{"facts", "cells": {method: {condition: cell}}, "made": {method: identity}} of one problem, as plain data."""
    if not quick:  # another kind was before: its programs would only take memory, and those of this kind lie on disk
        jax.clear_caches()
    sealed = draw_problem(seed, number, quick)
    length = QUICK if quick else FULL
    cells = {identity[0]: play(by_identity(identity), sealed, length) for identity in identities}
    return plain({"facts": sealed.facts, "cells": cells, "made": {each[0]: each for each in identities}})


def play(entry: Entry, sealed: Sealed, length: Length, conditions: Iterable[str] = CONDITIONS) -> dict[str, Any]:
    """The cells of one method."""
    return {condition: play_condition(entry, sealed, length, condition) for condition in conditions}


def play_condition(entry: Entry, sealed: Sealed, length: Length, condition: str) -> dict[str, Any]:
    share = JUNK if condition == "junk" else 0.0
    problem = contaminate(sealed.problem, share, SOURCE, distance=sealed.distance)
    began = time.process_time()
    try:
        method = entry.method(first_rate(problem, sealed.samples) if entry.told_rate else None)
        if condition == "hostile" and method.pooled:
            return {"refused": POOLED}
        run = simulate(
            problem,
            method,
            rounds=length.rounds,
            local_steps=entry.local_steps,
            samples=sealed.samples,
            seeds=range(length.seeds),
            attack=sealed.attack,
            hostile=sealed.hostile if condition == "hostile" else (),
            progress=False,
        )
    except checks.TooFewReports as error:
        run = error.run
    except checks.InputError as error:
        return {"refused": str(error)}
    except Exception as error:
        if entry.name in ENTRIES:
            raise
        raise checks.InputError(f"{entry.name} raised {type(error).__name__} in a run: {error}") from error
    return {**figures(run, sealed), "cpu": time.process_time() - began}


def figures(run: Run, sealed: Sealed) -> dict[str, Any]:
    """What a run is scored by, above the optimum that was drawn with the problem.

    A run's own ``excess`` is above the optimum that is solved anew for the contaminated problem, from fewer starts.
    """
    each = run.deployments / run.settings["clients"]
    left = (run.risk - sealed.optimum_risk) / sealed.gap
    regret = (run.deployed_regret + run.optimum_risk - sealed.optimum_risk) / sealed.gap
    solved = left <= REACHED
    first = [int(np.argmax(row)) if row.any() else None for row in solved]
    return {
        "left": left[:, -1],
        "regret": regret[:, -1],
        "reached": [None if i is None else each[seed, i] for seed, i in enumerate(first)],
        "deployments": float(each[:, -1].max()),
    }
