"""Clients for ``profl.train`` that wrap a simulated reaction: for tests, for trying out, and for comparing engines."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from profl import checks, random, trees
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.run.config import RunConfig, one_seed
from profl.run.plan import CompiledPlan, make_plan
from profl.run.step import sample_batch
from profl.typing import Batch, Theta


class SimulatedClient:
    """One client of a problem; it draws what ``simulate`` would draw at the same step."""

    def __init__(self, plan: CompiledPlan, client: int) -> None:
        self.plan, self.client = plan, client

    def deploy(self, theta: Theta, samples: int, step: int, world: Any = ()) -> Batch:
        settings = self.plan.settings
        key = _key(self.plan.roots[0], self.client, step)
        row = trees.take(self.plan.population.clients, self.client)
        batch = _draw(settings, key, world, trees.cast(theta), row, settings.size(samples))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:samples], batch)


@checks.explain_call
def simulated_clients(problem: Problem, method: Method, *, samples: Any = 500, seed: int = 0) -> list[SimulatedClient]:
    """The clients of a problem as ``profl.train`` takes them, with the data of ``simulate`` for this seed.

    ``method`` and ``samples`` must be those of the run: where n varies, data are drawn in blocks.
    """
    plan = make_plan(problem, method, RunConfig(rounds=1, samples=samples, seeds=one_seed(seed)))
    return [SimulatedClient(plan, client) for client in range(problem.count)]


_key = jax.jit(random.data_key)
_draw = partial(jax.jit, static_argnums=(0, 5))(sample_batch)
