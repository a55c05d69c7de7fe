"""The sealed problems: ``draw_problem(seed, number)``, drawn anew until its answers are certain and its gap is real.

A draw is taken where

    two solvers agree on the optimum and the stable point   within AGREE of the gap,
    gap = L(PS) - L(PO)  >=  STAKE (L(start) - L(PO))       retraining leaves something that is worth a method,
    L(start) - L(PO)     >=  STAKE gap                      and no run begins where it is to end.

With STAKE = 0.1 a run begins with at least twice of what counts as reached, 5 % of the gap. What is refused is drawn
again, from the next stream of the same seed, and counted by reason.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.problem.problem import Problem
from profl.server.attacks import ATTACKS
from profl_papers.drawn.solver import solve
from profl_papers.leaderboard.kinds import KINDS, draw_layout

STAKE, AGREE = 0.1, 0.01
MOST_DRAWS = 200
"""Draws of one problem before the seed is given up; a kind takes two on average."""
SEED_BITS = 32
JUNK, HOSTILE = 0.2, 0.2
"""The share of samples that is junk, and of clients that are hostile, where they are."""
DISTANCES = (5.0, 30.0)
"""Where junk lies, in standard deviations of the data: log-uniform between these."""
TACTICS = tuple(name for name in ATTACKS if name not in ("nan", "jacobian", "f_hat"))
"""Attacks that every method meets: the server refuses "nan", and two act on Jacobians and estimates of f alone."""
STARTS = 3
"""Seeds whose starts must not lie where runs are to end."""


class Sealed(NamedTuple):
    """A drawn problem with its conditions."""

    number: int
    problem: Problem
    samples: int
    distance: float  # of junk
    attack: str
    hostile: tuple[int, ...]
    optimum_risk: float  # L(PO)
    gap: float  # L(PS) - L(PO)
    facts: dict[str, Any]  # what was drawn, for the page


def slots(quick: bool = False) -> list[tuple[str, str]]:
    """(kind, reaction) of every problem; those of a kind lie apart, so that side by side none compiles another's.

    >>> len(slots()), slots(quick=True)
    (12, [('prices', 'linear'), ('prices', 'exponential'), ('prices', 'threshold')])
    """
    if quick:
        return [("prices", reaction) for reaction in KINDS["prices"].reactions[:3]]
    most = max(len(kind.reactions) for kind in KINDS.values())
    return [(name, kind.reactions[i]) for i in range(most) for name, kind in KINDS.items() if i < len(kind.reactions)]


def draw_problem(seed: int, number: int, quick: bool = False) -> Sealed:
    """Sealed problem ``number`` of ``seed``; it does not depend on which others are drawn."""
    name, reaction = slots(quick)[number]
    kind, place = KINDS[name], list(KINDS).index(name)
    common = np.random.default_rng([seed, place])
    layout = draw_layout(common)
    attack = str(common.choice(TACTICS))
    shaped = kind.shape(common, layout)(reaction)
    refused: dict[str, int] = {}
    for attempt in range(MOST_DRAWS):
        rng = np.random.default_rng([seed, place, 1 + number, attempt])
        problem, words = shaped(rng)
        risks, why = judge(problem)
        if why is None:
            break
        refused[why] = refused.get(why, 0) + 1
    else:
        raise checks.InputError(f"seed {seed} has no problem {number + 1} of kind {name} with a real gap: try another")
    optimum, stable, start = risks
    distance = float(np.exp(rng.uniform(*np.log(DISTANCES))))
    hostile = draw_hostile(rng, problem.weights)
    facts = {
        "number": number + 1,
        "kind": name,
        "reaction": reaction,
        "what": words,
        "parameters": int(np.size(problem.optimum)),
        "clients": layout.clients,
        "samples": layout.samples,
        "family": type(problem.family).__name__,
        "heaviest": float(np.max(problem.weights)),
        "optimum_risk": optimum,
        "stable_risk": stable,
        "gap": stable - optimum,
        "start": (start - optimum) / (stable - optimum),
        "junk_distance": distance,
        "attack": attack,
        "hostile": list(hostile),
        "refused_draws": refused,
    }
    problem = replace(problem, name=f"sealed problem {number + 1}")
    return Sealed(number, problem, layout.samples, distance, attack, hostile, optimum, stable - optimum, facts)


def judge(problem: Problem) -> tuple[tuple[float, float, float], str | None]:
    """((L(PO), L(PS), the least L(start) of some seeds), why the draw is refused or None)."""
    optimum, stable = problem.risk(problem.optimum), problem.risk(problem.stable)
    starts = problem.initial_models(range(STARTS))
    start = min(float(risk) for risk in problem.risks(jax.tree.map(np.asarray, starts)))
    risks, gap, way = (optimum, stable, start), stable - optimum, start - optimum
    if not np.isfinite(risks).all():
        return risks, "a risk is not finite"
    if gap <= 0 or gap < STAKE * way:
        return risks, "next to nothing to gain over retraining"
    if way < STAKE * gap:
        return risks, "starts near its optimum"
    known = solve(problem)
    if max(abs(known.optimum_risk - optimum), abs(known.stable_risk - stable)) > AGREE * gap:
        return risks, "two solvers disagree"
    return risks, None


def draw_hostile(rng: np.random.Generator, weights: np.ndarray) -> tuple[int, ...]:
    """A share HOSTILE of the clients who together weigh no more than their share: the lightest, if no draw does."""
    count = round(HOSTILE * len(weights))
    for _ in range(MOST_DRAWS):
        chosen = rng.choice(len(weights), count, replace=False)
        if weights[chosen].sum() <= count / len(weights) + 1e-9:
            return tuple(sorted(int(i) for i in chosen))
    return tuple(sorted(int(i) for i in np.argsort(weights)[:count]))
