"""The paper's Algorithm 1 in plain Python: one seed, one round, one client, one step after the other.

The step and the round are those of every engine (``profl.run.step``, ``profl.run.round``), each compiled by
itself with its stages watched. A run stops at the first number that is not finite, or the first error inside a user's
function, and names the seed, the round, the client and the stage.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.results.measure import Trace
from profl.run.plan import CompiledPlan, compile_for_settings
from profl.run.round import Participants, Work
from profl.run.run_history import (
    RunHistory,
    absent_work,
    client_work,
    figure_names,
    pad_records,
    run_round,
    start_history,
)
from profl.run.step import batch_weights, samples_wanted, simulated_step, start_round, step_key
from profl.stages import compile_checked
from profl.typing import Key, Theta


def run_debug(plan: CompiledPlan) -> Trace:
    """The trace of all seeds, run one after the other."""
    histories = [_one_seed(plan, seed, index) for index, seed in enumerate(plan.seeds)]
    traces = [history.trace(plan, history.final_outputs_on_host(plan)) for history in histories]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *traces)


def _one_seed(plan: CompiledPlan, seed: int, index: int) -> RunHistory:
    """The history of one seed with all its records."""
    root, figures = plan.roots[index], figure_names(plan)

    def clients(round_: int, participants: Participants, theta: Theta) -> dict[int, Work]:
        work = {}
        for slot, client in enumerate(np.asarray(participants.clients).tolist()):
            where = f"seed {seed}, round {round_ + 1}, client {client}"
            row, state = trees.take((participants.rows, participants.states), slot)
            participant = _Participant(client, row, state, where)
            work[client] = _local_steps(plan, root, round_, theta, participant, figures)
        return work

    history = start_history(plan, trees.take(plan.models, index))
    while history.round < plan.settings.rounds and not (history.settled or history.given_up):
        history = run_round(plan, root, history, clients, f"seed {seed}", partial(absent_work, plan))
    return pad_records(plan.settings, history)


class _Participant(NamedTuple):
    """One client of a round."""

    client: int
    row: Any
    state: Any
    where: str  # for error messages: seed, round and client


def _local_steps(
    plan: CompiledPlan, root: Key, round_: int, theta: Theta, participant: _Participant, figures: tuple[str, ...]
) -> Work:
    """The work of one client after its R local steps (lines 5-16)."""
    client, row, state, where = participant
    settings = plan.settings
    wanted = samples_wanted(settings, row, state)
    n = settings.size(int(jnp.max(wanted)))
    weights = _batch_weights(settings, n, row, state)
    now = start_round(settings, theta, state)
    for r in range(settings.local_steps):
        number, key = jnp.int32(round_), _step_key(settings, root, jnp.int32(client), jnp.int32(round_), jnp.int32(r))
        now = STEP(where, settings, key, row, number, jax.device_put(r == settings.local_steps - 1), weights, now)
    drawn = settings.local_steps * int(jnp.sum(wanted))
    return client_work(settings, row, now, drawn, figures)


_step_key = compile_for_settings(step_key)
_batch_weights = compile_for_settings(batch_weights, (1,))
STEP = compile_checked(simulated_step, static_argnums=0)
