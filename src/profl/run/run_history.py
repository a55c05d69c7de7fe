"""The state and the history of a run whose rounds are not compiled as a whole, for one seed.

The debug engine, ``train`` and Flower differ in how the participants do their local steps. Choosing participants,
combining reports and counting are the functions of ``profl.run.round``, compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.checks import DivergedError
from profl.methods.method import Forecast
from profl.results.callbacks import Watch
from profl.results.measure import Trace
from profl.run.plan import CompiledPlan, Population, Settings, compile_for_settings, first_state, forecast
from profl.run.round import (
    FINISH_ROUND,
    Carry,
    Participants,
    RoundState,
    Work,
    all_participate,
    choose_participants,
    distrusted_on_host,
    final_outputs,
    initial_carry,
    is_finite,
    posterior_on_host,
)
from profl.run.step import Progress, client_view, start_round
from profl.run.totals import LOSS_SUMMARY, Totals, mean_dropped_share, totals_to_host, zero_counts, zero_totals
from profl.typing import Array, Key, Theta

NONE_UNREPORTED = np.zeros(2, np.int64)

RunClients = Callable[[int, Participants, Theta], dict[int, Work]]
"""``(round, participants, theta) -> {client: work}``; a client that is not in the dict did not answer."""


class RunHistory(NamedTuple):
    """A run after some of its rounds."""

    round: int  # how many rounds are done
    carry: Carry
    current: Totals  # since the last record
    records: list[tuple[Theta, Forecast | None]]  # the initial model (its forecast is NaN), then one per record
    totals: list[Totals]  # between two records: one fewer than ``records``

    @property
    def settled(self) -> bool:
        """Whether ``StopWhenSettled`` has stopped the run."""
        return int(self.carry.why) > 0

    @property
    def given_up(self) -> bool:
        """Whether the run was stopped because too few reports came."""
        return int(self.carry.stopped) >= 0 and not self.settled

    @property
    def latest(self) -> dict[str, float]:
        """The means that the clients reported in the last round that counted, by name; NaN before the first."""
        has_loss = np.isfinite(float(self.current.latest["loss"])) or not self.totals
        latest = (self.current if has_loss else self.totals[-1]).latest
        return {name: float(value) for name, value in latest.items()}

    def trace(self, plan: CompiledPlan, last: Any) -> Trace:
        """All records as one trace; ``last`` is the result of ``final_outputs_on_host``."""
        models, expected = stack_rows(self.records)
        totals = stack_rows(self.totals)
        others = (*plan.settings.method.info, *LOSS_SUMMARY)
        figures = {name: totals.latest[name] for name in totals.latest if name not in others}
        ends = np.asarray(self.carry.stopped), np.asarray(self.carry.why)
        dropped = None if self.carry.dropped is None else mean_dropped_share(self.carry.dropped)
        forecasts = trees.take(expected, slice(1, None))
        server = self.carry.server
        distrusted, known = distrusted_on_host(plan.settings, server), posterior_on_host(plan.settings, server)
        return Trace(models, totals._asdict(), figures, last, forecasts, *ends, dropped, distrusted, known)

    def last_record_trace(self, plan: CompiledPlan) -> Trace:
        """The trace of the last record alone, with an axis of one seed, for callbacks."""
        part = self._replace(records=self.records[-2:], totals=self.totals[-1:])
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], part.trace(plan, None))

    def final_outputs_on_host(self, plan: CompiledPlan) -> Any:
        """What the method returns for every client at the end, for clients whose states are in this process."""
        return jax.tree.map(np.asarray, final_outputs(plan.settings, plan.population, self.carry))


def start_history(plan: CompiledPlan, theta: Theta, states: Any = None, real: bool = False) -> RunHistory:
    """The history before the first round; ``states`` replaces the clients' states if they are kept elsewhere.

    ``real``: deployments count as made whether or not a report comes of them.
    """
    carry = INITIAL_CARRY(plan.settings, plan.population, theta)
    if states is not None:
        carry = carry._replace(states=states)
    nothing = zero_totals(plan.settings.method.info, figure_names(plan), median=True)
    shapes = jax.eval_shape(partial(forecast, plan.settings), carry.server)
    expected = jax.tree.map(lambda figure: np.full(figure.shape, np.nan, figure.dtype), shapes)
    nothing = nothing._replace(unreported=NONE_UNREPORTED if real else None)
    return RunHistory(0, carry, nothing, [(jax.tree.map(np.asarray, theta), expected)], [])


def figure_names(plan: CompiledPlan) -> tuple[str, ...]:
    """The names of the method's figures."""
    settings = plan.settings

    def figures(population: Population, theta: Theta) -> dict[str, Array]:
        view = client_view(settings, trees.take(population, 0))
        return settings.method.figures(view, first_state(settings, population, theta).own, theta)

    return tuple(jax.eval_shape(figures, plan.population, trees.take(plan.models, 0)))


def run_round(
    plan: CompiledPlan,
    root: Key,
    history: RunHistory,
    clients: RunClients,
    where: str,
    absent: Callable[[], Work],
    unreported: tuple[int, int] = (0, 0),
) -> RunHistory:
    """The history after one more round of clients in this process; ``absent()`` is ``absent_work(plan)``.

    ``unreported``: the deployments and the samples of clients that sent no report. Where clients are real they count,
    as do those of a round that changed nothing because too few reports came.
    """
    settings, population = plan.settings, plan.population
    participants = next_participants(plan, root, history)
    done = clients(history.round, participants, history.carry.theta)
    work = stack_work(participants, done, absent)
    number, before = jnp.int32(history.round), history.current.unreported
    start = RoundState(history.carry, history.current._replace(unreported=None))
    carry, current = FINISH_ROUND(settings, None, population, root, number, start, participants, work)
    if before is not None:
        total = before + np.asarray(unreported, np.int64)
        if int(carry.idle) > 0:
            total += [settings.local_steps * len(done), sum(int(one.samples) for one in done.values())]
        current = current._replace(unreported=total)
    after = history._replace(round=history.round + 1, carry=carry, current=current)
    return record_if_due(settings, check_finite_model(after, where))


def next_participants(plan: CompiledPlan, root: Key, history: RunHistory) -> Participants:
    """The participants of the next round."""
    population, carry = plan.population, history.carry
    if all_participate(plan.settings, population):  # nothing to draw
        clients = jax.device_put(np.arange(plan.settings.slots, dtype=np.int32))
        return Participants(clients, population.weights, population, carry.states)
    return CHOOSE_PARTICIPANTS(plan.settings, population, root, jnp.int32(history.round), carry)


def check_finite_model(history: RunHistory, where: str) -> RunHistory:
    """The history; raises ``DivergedError`` if its global model is not finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(history.carry.theta):
        if not np.all(np.isfinite(np.asarray(leaf))):
            name = jax.tree_util.keystr(path)
            raise DivergedError(f"{where}, round {history.round}, stage 'aggregate': NaN or Inf in the result{name}")
    return history


def record_if_due(settings: Settings, history: RunHistory) -> RunHistory:
    """The history with a record of this round, if ``record_every`` divides the number of rounds done."""
    return history if history.round % settings.record_every else _append_record(settings, history)


def _append_record(settings: Settings, history: RunHistory) -> RunHistory:
    """The history with a record of its last round."""
    model = jax.tree.map(np.array, (history.carry.theta, FORECAST(settings, history.carry.server)))
    figures = tuple(name for name in history.current.latest if name not in (*history.current.info, *LOSS_SUMMARY))
    nothing = zero_totals(tuple(history.current.info), figures, median=True)
    if history.current.unreported is not None:
        nothing = nothing._replace(unreported=NONE_UNREPORTED)
    totals = [*history.totals, totals_to_host(history.current)]
    return history._replace(records=[*history.records, model], totals=totals, current=nothing)


def complete_records(settings: Settings, history: RunHistory) -> RunHistory:
    """The history with all its records if the run is over; otherwise unchanged."""
    return pad_records(settings, history) if history.settled or history.round == settings.rounds else history


def pad_records(settings: Settings, history: RunHistory) -> RunHistory:
    """The history with all its records: those after its last round repeat the last model, with zero counts."""
    if history.round % settings.record_every:  # the next record has what was counted since the last one
        history = _append_record(settings, history)
    missing = -(-settings.rounds // settings.record_every) - len(history.totals)
    models, totals = [history.records[-1]] * missing, [zero_counts(history.totals[-1])] * missing
    return history._replace(records=[*history.records, *models], totals=[*history.totals, *totals])


def client_work(settings: Settings, row: Population, now: Progress, samples: int, figures: tuple[str, ...]) -> Work:
    """The work of one client in one round."""
    return CLIENT_WORK(settings, figures, row, now)._replace(samples=jnp.int32(samples))


def stack_work(participants: Participants, work_by_client: dict[int, Work], absent: Callable[[], Work]) -> Work:
    """The work of all participants, one row each; a client without work did not answer and gets ``absent()``."""

    def row(slot: int, client: int) -> Work:
        if client in work_by_client:
            return work_by_client[client]
        return absent()._replace(states=trees.take(participants.states, slot))

    return trees.stack([row(slot, client) for slot, client in enumerate(np.asarray(participants.clients).tolist())])


def absent_work(plan: CompiledPlan) -> Work:
    """The work of a client that did not answer: the right shapes, filled with NaN, so that it is never counted."""
    settings, population, theta = plan.settings, plan.population, trees.take(plan.models, 0)

    def work(population: Population, theta: Theta) -> Work:
        state = first_state(settings, population, theta)
        now = start_round(settings, theta, state)
        return _client_work(settings, figure_names(plan), trees.take(population, 0), now)

    def nan_like(leaf: Any) -> Array:
        value = np.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
        return jax.device_put(np.full(leaf.shape, value, leaf.dtype))

    return jax.tree.map(nan_like, jax.eval_shape(work, population, theta))


def _client_work(settings: Settings, figures: tuple[str, ...], row: Population, now: Progress) -> Work:
    view, method = client_view(settings, row), settings.method
    info = {name: total / settings.local_steps for name, total in now.info.items()}
    values = method.figures(view, now.state.own, now.theta)
    return Work(
        states=now.state,
        reports=method.report(view, now.state.own, now.theta),
        regret=now.regret,
        info=info,
        figures={name: values[name] for name in figures},
        samples=jnp.int32(0),
        answered=jnp.asarray(True),
        finite=is_finite(info["loss"], now.state),
    )


CHOOSE_PARTICIPANTS = compile_for_settings(choose_participants)
FORECAST = compile_for_settings(forecast)
INITIAL_CARRY = compile_for_settings(initial_carry)
CLIENT_WORK = compile_for_settings(_client_work, (1,))


def pack(history: RunHistory) -> tuple[Any, dict[str, list[Any]]]:
    """(the arrays that the next round needs, the lists that only grow), for a checkpoint; their keys are stored."""
    return {"carry": history.carry, "since": history.current}, {"records": history.records, "tallies": history.totals}


def item_shapes(history: RunHistory) -> dict[str, Any]:
    """An item of each of the lists of ``pack``, for its shapes."""
    return {"records": history.records[0], "tallies": totals_to_host(history.current)}


def with_unknown_records(first: RunHistory, lists: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The lists of a checkpoint with NaN and counts of zero for items that are lost; ``first`` is the start."""
    (theta, expected), totals = first.records[0], totals_to_host(first.current)
    nothing = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), (theta, expected))
    records = [nothing if one is None else one for one in lists["records"]]
    if lists["records"] and lists["records"][0] is None:
        records[0] = first.records[0]
    tallies = [zero_counts(totals) if one is None else one for one in lists["tallies"]]
    return {**lists, "records": records, "tallies": tallies}


def unpack(round_: int, state: Any, lists: dict[str, list[Any]]) -> RunHistory:
    """The history that ``pack`` packed."""
    carry, current = jax.device_put((state["carry"], state["since"]._replace(unreported=None)))
    current = current._replace(unreported=state["since"].unreported)
    return RunHistory(round_, carry, current, lists["records"], lists["tallies"])


def notify_callbacks(plan: CompiledPlan, watch: Watch, before: RunHistory, after: RunHistory) -> None:
    """Call the callbacks if the last round added a record; the end of a run always does."""
    every = plan.settings.record_every
    if after.round % every and (after.settled or after.round == plan.settings.rounds):
        after = _append_record(plan.settings, after)
    if watch.active and len(after.totals) > len(before.totals):
        watch.record(after.last_record_trace(plan), (len(after.totals) - 1) * every)


def stack_rows(rows: list[Any]) -> Any:
    """Items of one structure, stacked along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
