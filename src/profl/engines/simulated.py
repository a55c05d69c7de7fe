"""Clients for ``profl.train`` that wrap a simulated reaction: for tests, for trying out, and for comparing engines."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from profl import random, trees
from profl.algorithms.base import Algorithm
from profl.engines.plan import Plan, draw, make_plan
from profl.problem.problem import Problem
from profl.typing import Batch, Theta


class SimulatedClient:
    """One client of a problem; it draws what ``simulate`` would draw at the same step."""

    def __init__(self, plan: Plan, client: int) -> None:
        self.plan, self.client = plan, client

    def deploy(self, theta: Theta, samples: int, step: int) -> Batch:
        settings = self.plan.settings
        key = _key(self.plan.roots[0], self.client, step)
        n = settings.samples if settings.recipe.size is None else next(n for n in settings.sizes if n >= samples)
        row = trees.take(self.plan.population.clients, self.client)
        batch = _draw(settings, key, trees.cast(theta), row, n)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:samples], batch)


def simulated_clients(
    problem: Problem, algorithm: Algorithm, *, samples: Any = 500, seed: int = 0
) -> list[SimulatedClient]:
    """The clients of a problem as ``profl.train`` takes them, with the data of ``simulate`` for this seed.

    ``algorithm`` and ``samples`` must be those of the run: where n varies, data are drawn in blocks.
    """
    plan = make_plan(
        problem,
        algorithm,
        rounds=1,
        local_steps=1,
        samples=samples,
        seeds=seed,
        participation=1.0,
        scheme="uniform",
        record_every=1,
        initial=None,
    )
    return [SimulatedClient(plan, client) for client in range(problem.count)]


_key = jax.jit(random.data_key)
_draw = partial(jax.jit, static_argnums=(0, 4))(draw)
