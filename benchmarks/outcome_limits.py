"""Part of ``analyst``: prm with limits on what comes in, by the models that clients really deployed.

pricing: a volume of at least 1.1 times that of the optimum without limits. orange_juice: ounces of at least 0.9 times
those at the present prices, with a ladder of two prices and a largest change as well. strategic: approval rates of two
groups, who respond differently, at most 0.02 apart. All begin with models that keep their limits.

A deployment of a round breaks a limit where sum_i w_i E_i, each client at what it deployed with its perturbation, is
beyond the bound. *Share left* is (L - L(PO with limits)) / (L(start) - L(PO with limits)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import profl
from profl import random, trees
from profl.problem.reaction import WrappedReaction
from profl.typing import Array, Batch, Client, Key
from profl_papers.claims import Claim, Part, at_most

ROUNDS = 40
BROKEN = 0.1
"""Share of the deployments that may break a limit: that is what a confidence of 0.9 says."""
MISSED = 0.01
"""Of a bound, by how much the last model may miss it."""
LEFT = 0.05
"""Share of the gap that may be left."""
ROUNDING = 1e-5
"""Of a size: limits on the model itself are kept but for this."""


def volume(theta: Array, z: Batch) -> Array:
    """Units sold, of all goods."""
    return jnp.sum(z)


def ounces(theta: Array, z: Batch) -> Array:
    """Thousands of ounces sold; z is log ounces."""
    return jnp.sum(jnp.exp(z)) / 1000


def approval(theta: Array, z: Batch) -> Array:
    """The probability that somebody is approved."""
    return jax.nn.sigmoid(z["x"] @ theta)


def pricing_case() -> profl.Problem:
    """Ten retailers that start at half of the best prices, with more volume than these have."""
    case = profl.cases.pricing()
    best = np.asarray(case.optimum)
    free = replace(case, limits=profl.OutcomeLimit(volume, at_least=0.0))
    limit = profl.OutcomeLimit(volume, at_least=1.1 * float(free.outcomes(best)[0]))
    return replace(case, limits=limit, initial=(best / 2).astype(np.float32))


def juice_case() -> profl.Problem:
    """Ten stores at the prices that were charged; the second juice costs at least as much as the first one."""
    case = profl.cases.orange_juice(10)
    free = replace(case, limits=profl.OutcomeLimit(ounces, at_least=0.0))
    now = float(free.outcomes(np.zeros(11))[0])
    ladder = np.zeros((1, 11))
    ladder[0, :2] = 1.0, -1.0
    limits = [profl.OutcomeLimit(ounces, at_least=0.9 * now), profl.LinearLimits(ladder, [0.0]), profl.MaxChange(0.1)]
    return replace(case, limits=limits)


def strategic_case() -> profl.Problem:
    """Five clients whose people respond little and five whose people respond much; one rule, which at first decides
    almost nothing."""
    case = profl.cases.strategic()
    groups = np.where(np.arange(10) < 5, 0.2, -0.2)
    limits = [
        profl.OutcomeLimit(approval, at_most=0.02, weights=sign * groups, name=f"approved {words}")
        for sign, words in ((1, "more of the first"), (-1, "more of the second"))
    ]
    return replace(case, limits=limits, initial=np.full(2, 0.1, np.float32))


class Case(NamedTuple):
    """A problem, and the samples of a deployment."""

    make: Callable[[], profl.Problem]
    samples: int


CASES = {
    "pricing": Case(pricing_case, 500),
    "orange_juice": Case(juice_case, 26),
    "strategic": Case(strategic_case, 500),
}

NOTED: dict[bytes, np.ndarray] = {}
"""The key of a deployment -> the model."""


def note(key: Any, theta: Any) -> None:
    """Write down a deployed model."""
    NOTED[np.asarray(key).tobytes()] = np.array(theta)


@dataclass(frozen=True)
class Noting(WrappedReaction):
    """A reaction that writes down which models are deployed."""

    def sample_in(self, state: Any, key: Key, theta: Array, client: Client, n: int) -> Batch:
        jax.debug.callback(note, jax.random.key_data(key), theta)
        return self.inner.sample_in(state, key, theta, client, n)


def deployed_models(problem: profl.Problem, seeds: int, rounds: int) -> np.ndarray:
    """What was deployed, (seeds, rounds, clients, d), of a run with one local step on a ``Noting`` problem."""
    jax.effects_barrier()
    roots = random.root_keys(tuple(range(seeds)))
    keys = jax.vmap(
        lambda root: jax.vmap(
            lambda step: jax.vmap(lambda client: random.data_key(root, client, step))(jnp.arange(problem.count))
        )(jnp.arange(rounds))
    )(roots)
    data = np.asarray(jax.random.key_data(keys))
    return np.array([NOTED[key.tobytes()] for key in data.reshape(-1, data.shape[-1])]).reshape(
        seeds, rounds, problem.count, -1
    )


def outcome_limits(name: str, seeds: int, quick: bool) -> Part:
    """How often limits were broken, by how much the last model misses them, and what is left of the gap."""
    problem, rounds = CASES[name].make(), 4 if quick else ROUNDS
    watched = replace(problem, reaction=Noting(problem.reaction))
    settings: dict[str, Any] = {"rounds": rounds, "local_steps": 1, "samples": CASES[name].samples, "progress": False}
    NOTED.clear()
    run = profl.simulate(watched, profl.prm(), seeds=range(seeds), **settings)
    models = deployed_models(problem, seeds, rounds)
    limits, bounds = problem.functions.outcomes, np.array([one.bound for one in problem.functions.outcomes])
    own = np.array([[problem.own_outcomes(row) for row in of_seed] for of_seed in models])
    broken = np.any([one.misses(own[..., k]) > 0 for k, one in enumerate(limits)], axis=0)
    ends = np.array([problem.outcomes(theta) for theta in run.theta[:, -1]])
    missed = np.max([one.misses(ends[:, k]) / abs(bounds[k]) for k, one in enumerate(limits)], axis=0)
    left = run.excess[:, -1] / run.excess[:, 0]
    free = replace(problem, limits=[one for one in problem.limits if not isinstance(one, profl.OutcomeLimit)])
    row = {
        "part": "outcome limits",
        "case": name,
        "deployments": rounds,
        "broken": float(broken.mean()),
        "broken, worst seed": float(broken.mean(1).max()),
        "missed at the end": float(missed.max()),
        "share left": float(left.mean()),
        "share left, worst seed": float(left.max()),
        "cost of the limits": problem.risk(problem.optimum) - free.risk(free.optimum),
        "off the limits on the model": model_limits_missed(problem, models),
    }
    return Part([row], [] if quick else claims(name, row))


def model_limits_missed(problem: profl.Problem, models: np.ndarray) -> float:
    """By how much the deployed models (seeds, rounds, clients, d) miss linear limits and a largest change at worst."""
    worst = 0.0
    start = trees.flat_rows(problem.initial_models(range(len(models))))[:, None, None]
    steps = np.diff(np.concatenate([np.broadcast_to(start, models[:, :1].shape), models], axis=1), axis=1)
    for limit in problem.limits:
        if isinstance(limit, profl.LinearLimits):
            worst = max(worst, float(np.max(models @ np.array(limit.A).T - np.array(limit.b))))
        if isinstance(limit, profl.MaxChange):
            worst = max(worst, float(np.max(np.abs(steps) - limit.amount)))
    return worst


def claims(name: str, row: dict[str, Any]) -> list[Claim]:
    """What must hold of one case."""
    return [
        at_most(f"{name}: share of deployments that break the limit", row["broken"], BROKEN),
        at_most(f"{name}: by how much the last model misses it, of the bound", row["missed at the end"], MISSED),
        at_most(f"{name}: share of the gap that is left after {ROUNDS}", row["share left"], LEFT),
        at_most(f"{name}: limits on the model itself, missed by", row["off the limits on the model"], ROUNDING),
    ]
