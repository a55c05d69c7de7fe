"""``python -m benchmarks analyst``: the data that a pricing analyst has.

``counts``: sales that are counted (Poisson, negative binomial) and choices among goods (multinomial logit), at ten
clients. *Share left* is excess / (L(PS) - L(PO)): 1 is where retraining ends, 0 the optimum. Besides, for counts, the
variance of the slope in the means from one batch, by the score and by moved counts.

``history``: past deployments that nobody planned (``past_weeks``). ``real weeks``: those of a grocery chain
(``real_weeks``).

``coverage``, ``stable``: how often intervals hold the truth (``coverage``), over ten times as many seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import coverage, past_weeks, real_weeks
from benchmarks.bench import Bench
from profl import random, trees
from profl.cases import choice, sales
from profl.methods import pofl, prm
from profl.methods.method import Method
from profl.parts.gradient import terms
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most


class Demand(NamedTuple):
    """A case, and the samples of a deployment."""

    problem: Callable[..., Problem]
    samples: int = 500
    counted: bool = True  # and no choice


DEMANDS = {
    "poisson": Demand(sales),
    "negative binomial": Demand(partial(sales, demand="negative_binomial")),
    "logit": Demand(choice, counted=False),
}
METHODS: dict[str, tuple[Method, int, int]] = {"prm": (prm(), 30, 1), "pofl": (pofl(0.05), 200, 5)}
"""With the rounds of a run, and the deployments of a round."""
LEFT = 0.01
"""Of the gap, the most that may be left on average over seeds."""
BATCHES, LESS = 200, 100
"""For the variance of a slope, and how many times the score's must be that of moved counts."""


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` makes runs of a tenth of the rounds, which show the form of the result but prove nothing."""
    parts: dict[str, Callable[[], Part]] = {
        f"counts, {name}": partial(counts, name, seeds, 10 if quick else 1) for name in DEMANDS
    }
    weeks = {"history": partial(past_weeks.history, seeds, quick), "real weeks": partial(real_weeks.real, seeds, quick)}
    return Bench({**parts, **weeks, **coverage.parts(10 * seeds, quick)})


def counts(name: str, seeds: int, shorter: int) -> Part:
    """What is left on one demand, and the variance of the slope in f."""
    problem, samples = DEMANDS[name].problem(), DEMANDS[name].samples
    gap = problem.risk(problem.stable) - problem.risk(problem.optimum)
    rows: list[dict[str, Any]] = []
    claims = []
    for method, (each, rounds, steps) in METHODS.items():
        rounds = max(rounds // shorter, 3)
        settings = {"rounds": rounds, "local_steps": steps, "samples": samples, "seeds": range(seeds)}
        run = simulate(problem, each, progress=False, **settings)  # type: ignore[arg-type]
        left, made = run.excess[:, -1] / gap, rounds * steps
        figures = {"share left": left.mean(), "worst seed": left.max(), "per seed": left.tolist()}
        row = {"part": "counts", "demand": name, "method": method, "deployments": made, "samples": samples}
        rows.append({**row, **figures})
        claims.append(at_most(f"{name}: share left by {method} after {made}", left.mean(), LEFT))
    if DEMANDS[name].counted:
        plain = DEMANDS[name].problem(link="identity")
        own, score = (slope_variance(plain, samples, second) for second in ("pathwise", "score"))
        rows.append({"part": "counts", "demand": name, "method": "slope in f", "variance": own, "of the score": score})
        ratio = min(score / max(own, 1e-30), 1e6)  # beyond it is rounding
        claims.append(at_least(f"{name}: variance of the score over that of moved counts", ratio, LESS))
    return Part(rows, claims)


def slope_variance(problem: Problem, samples: int, second: str) -> float:
    """The variance of u over batches of client 0 at the optimum, summed over its entries."""
    theta = jnp.asarray(problem.optimum, jnp.float32)
    client, view = trees.take(trees.cast(problem.clients), 0), problem.functions.view()

    @jax.jit
    @jax.vmap
    def slopes(number: Any) -> Any:
        batch = problem.reaction.sample(random.data_key(random.seed_key(0), number, 0), theta, client, samples)
        weights = jnp.full(samples, 1 / samples)
        return terms(view, second, theta, batch, weights, problem.family.estimate(batch, weights)).f_gradient

    return float(np.var(np.asarray(slopes(np.arange(BATCHES)), float), axis=0).sum())
