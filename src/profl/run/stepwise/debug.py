"""The paper's Algorithm 1 in plain Python: one seed, one round, one client, one step after the other.

The step and the round are those of every engine (``profl.run.step``, ``profl.run.round``), each compiled by
itself with its stages watched. A run stops at the first number that is not finite, or the first error inside a user's
function, and names the seed, the round, the client and the stage.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.results.measure import Trace
from profl.run.plan import Plan
from profl.run.round import Asked, Work
from profl.run.run_history import Ledger, blank, figure_names, filled, one_row, open_ledger, run_round
from profl.run.step import batch_weights, samples_wanted, simulated_step, start
from profl.stages import compile_checked
from profl.typing import Key, Theta


def run_debug(plan: Plan) -> Trace:
    """Every seed, one after the other."""
    ledgers = [_one_seed(plan, seed, index) for index, seed in enumerate(plan.seeds)]
    traces = [ledger.trace(plan, ledger.at_the_end(plan)) for ledger in ledgers]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *traces)


def _one_seed(plan: Plan, seed: int, index: int) -> Ledger:
    root, figures = plan.roots[index], figure_names(plan)

    def clients(round_: int, asked: Asked, theta: Theta) -> dict[int, Work]:
        found = {}
        for slot, client in enumerate(np.asarray(asked.clients).tolist()):
            where = f"seed {seed}, round {round_ + 1}, client {client}"
            row, state = trees.take((asked.rows, asked.states), slot)
            found[client] = _local(plan, root, round_, client, row, theta, state, where, figures)
        return found

    ledger = open_ledger(plan, trees.take(plan.models, index))
    while ledger.round < plan.settings.rounds and not (ledger.settled or ledger.given_up):
        ledger = run_round(plan, root, ledger, clients, f"seed {seed}", partial(blank, plan))
    return filled(plan.settings, ledger)


def _local(
    plan: Plan,
    root: Key,
    round_: int,
    client: int,
    row: Any,
    theta: Theta,
    state: Any,
    where: str,
    figures: tuple[str, ...],
) -> Work:
    """R local steps of one client (lines 5-16)."""
    settings = plan.settings
    wanted = samples_wanted(settings, row, state)
    n = settings.size(int(jnp.max(wanted)))
    weights = batch_weights(settings, n, row, state)
    now = start(settings, theta, state)
    for r in range(settings.local_steps):
        number, step = jnp.int32(round_), jnp.int32(r)
        now = STEP(where, settings, root, jnp.int32(client), row, number, step, weights, now)
    drawn = settings.local_steps * int(jnp.sum(wanted))
    return one_row(settings, row, now, drawn, figures)


STEP = compile_checked(simulated_step, static_argnums=0)
