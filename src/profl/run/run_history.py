"""A run whose rounds are not compiled as a whole: what the next round needs, and the history, for one seed.

The debug engine, ``train`` and Flower differ in how the clients that are asked do their work; who is asked, what is
made of the answers and what is counted is ``profl.run.round``, compiled once.
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
from profl.run.dropped import mean_share
from profl.run.plan import Plan, Population, Settings, compiled, first_state, forecast
from profl.run.round import CLOSE, Asked, Carry, Work, ask, begin, final, sound
from profl.run.step import Progress, client_view, start
from profl.run.tally import STATED, Tally, empty_tally, no_more, on_host
from profl.typing import Array, Key, Theta

Clients = Callable[[int, Asked, Theta], dict[int, Work]]
"""``(round, asked, theta) -> client -> its work``; a client that is not in the answer did not answer."""


class Ledger(NamedTuple):
    """A run under way."""

    round: int  # rounds that are done
    carry: Carry
    since: Tally  # since the last record
    records: list[tuple[Theta, Forecast | None]]  # from the start on, of which nothing is expected: NaN
    tallies: list[Tally]

    @property
    def settled(self) -> bool:
        """Whether it is done before its last round."""
        return int(self.carry.why) > 0

    @property
    def given_up(self) -> bool:
        """Whether too few reports came."""
        return int(self.carry.stopped) >= 0 and not self.settled

    @property
    def latest(self) -> dict[str, float]:
        """What the clients stated in the last round that changed something; before the first, NaN."""
        tally = self.since if np.isfinite(float(self.since.latest["loss"])) or not self.tallies else self.tallies[-1]
        return {name: float(value) for name, value in tally.latest.items()}

    def trace(self, plan: Plan, last: Any) -> Trace:
        """What was recorded; ``last`` is what clients had at the end (``at_the_end``)."""
        models, expected = _stack(self.records)
        tally = _stack(self.tallies)
        others = (*plan.settings.method.info, *STATED)
        figures = {name: tally.latest[name] for name in tally.latest if name not in others}
        ends = np.asarray(self.carry.stopped), np.asarray(self.carry.why)
        dropped = None if self.carry.dropped is None else mean_share(self.carry.dropped)
        return Trace(models, tally._asdict(), figures, last, trees.take(expected, slice(1, None)), *ends, dropped)

    def since_last(self, plan: Plan) -> Trace:
        """The trace of the last record alone, for who watches one seed."""
        part = self._replace(records=self.records[-2:], tallies=self.tallies[-1:])
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], part.trace(plan, None))

    def at_the_end(self, plan: Plan) -> Any:
        """What the run keeps of clients whose states are at hand."""
        return jax.tree.map(np.asarray, final(plan.settings, plan.population, self.carry))


def open_ledger(plan: Plan, theta: Theta, states: Any = None) -> Ledger:
    """Before the first round; ``states`` stands in for the clients' own, where they keep those themselves."""
    carry = BEGIN(plan.settings, plan.population, theta)
    if states is not None:
        carry = carry._replace(states=states)
    nothing = empty_tally(plan.settings.method.info, figure_names(plan), middle=True)
    shapes = jax.eval_shape(partial(forecast, plan.settings), carry.server)
    expected = jax.tree.map(lambda figure: np.full(figure.shape, np.nan, figure.dtype), shapes)
    return Ledger(0, carry, nothing, [(jax.tree.map(np.asarray, theta), expected)], [])


def figure_names(plan: Plan) -> tuple[str, ...]:
    """The names of the method's figures."""
    settings = plan.settings

    def figures(population: Population, theta: Theta) -> dict[str, Array]:
        view = client_view(settings, trees.take(population, 0))
        return settings.method.figures(view, first_state(settings, population, theta).own, theta)

    return tuple(jax.eval_shape(figures, plan.population, trees.take(plan.models, 0)))


def run_round(
    plan: Plan, root: Key, ledger: Ledger, clients: Clients, where: str, nobody: Callable[[], Work]
) -> Ledger:
    """The ledger after one more round of clients that are at hand; ``nobody()`` is ``blank(plan)``."""
    settings, population = plan.settings, plan.population
    asked = whom_to_ask(plan, root, ledger)
    work = stacked(asked, clients(ledger.round, asked, ledger.carry.theta), nobody)
    number = jnp.int32(ledger.round)
    carry, since = CLOSE(settings, None, population, root, number, ledger.carry, ledger.since, asked, work)
    return record(settings, checked(ledger._replace(round=ledger.round + 1, carry=carry, since=since), where))


def whom_to_ask(plan: Plan, root: Key, ledger: Ledger) -> Asked:
    return ASK(plan.settings, plan.population, root, jnp.int32(ledger.round), ledger.carry)


def checked(ledger: Ledger, where: str) -> Ledger:
    """The ledger, if the model that the server came to is finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(ledger.carry.theta):
        if not np.all(np.isfinite(np.asarray(leaf))):
            name = jax.tree_util.keystr(path)
            raise DivergedError(f"{where}, round {ledger.round}, stage 'aggregate': NaN or Inf in the result{name}")
    return ledger


def record(settings: Settings, ledger: Ledger) -> Ledger:
    """The ledger with this round in its history, where it is one of those that are recorded in a run of any length."""
    return ledger if ledger.round % settings.record_every else _recorded(settings, ledger)


def _recorded(settings: Settings, ledger: Ledger) -> Ledger:
    model = jax.tree.map(np.asarray, (ledger.carry.theta, FORECAST(settings, ledger.carry.server)))
    tally = on_host(ledger.since)
    figures = tuple(name for name in ledger.since.latest if name not in (*ledger.since.info, *STATED))
    nothing = empty_tally(tuple(ledger.since.info), figures, middle=True)
    return ledger._replace(records=[*ledger.records, model], tallies=[*ledger.tallies, tally], since=nothing)


def closed(settings: Settings, ledger: Ledger) -> Ledger:
    """The ledger with all its records, where the run is over."""
    return filled(settings, ledger) if ledger.settled or ledger.round == settings.rounds else ledger


def filled(settings: Settings, ledger: Ledger) -> Ledger:
    """The ledger with all its records: those after its last round have the last model again, and no counts."""
    if ledger.round % settings.record_every:  # the next record has what was counted since the last one
        ledger = _recorded(settings, ledger)
    missing = -(-settings.rounds // settings.record_every) - len(ledger.tallies)
    models, tallies = [ledger.records[-1]] * missing, [no_more(ledger.tallies[-1])] * missing
    return ledger._replace(records=[*ledger.records, *models], tallies=[*ledger.tallies, *tallies])


def one_row(settings: Settings, row: Population, now: Progress, samples: int, figures: tuple[str, ...]) -> Work:
    """What one client made of a round."""
    return ROW(settings, figures, row, now)._replace(samples=jnp.int32(samples))


def stacked(asked: Asked, done: dict[int, Work], nobody: Callable[[], Work]) -> Work:
    """What the clients of a round made of it; who is not in ``done`` did not answer, and is ``nobody()``."""

    def row(slot: int, client: int) -> Work:
        return done[client] if client in done else nobody()._replace(states=trees.take(asked.states, slot))

    return trees.stack([row(slot, client) for slot, client in enumerate(np.asarray(asked.clients).tolist())])


def blank(plan: Plan) -> Work:
    """In place of what did not come: the shapes of it, nothing finite, so that nobody counts it."""
    settings, population, theta = plan.settings, plan.population, trees.take(plan.models, 0)

    def work(population: Population, theta: Theta) -> Work:
        state = first_state(settings, population, theta)
        return _row(settings, figure_names(plan), trees.take(population, 0), start(settings, theta, state))

    def unknown(leaf: Any) -> Array:
        return jnp.full(leaf.shape, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0, leaf.dtype)

    return jax.tree.map(unknown, jax.eval_shape(work, population, theta))


def _row(settings: Settings, figures: tuple[str, ...], row: Population, now: Progress) -> Work:
    view, method = client_view(settings, row), settings.method
    info = {name: total / settings.local_steps for name, total in now.info.items()}
    stated = method.figures(view, now.state.own, now.theta)
    return Work(
        states=now.state,
        reports=method.report(view, now.state.own, now.theta),
        regret=now.regret,
        info=info,
        figures={name: stated[name] for name in figures},
        samples=jnp.int32(0),
        answered=jnp.asarray(True),
        sound=sound(info["loss"], now.state),
    )


ASK = compiled(ask)
FORECAST = compiled(forecast)
BEGIN = compiled(begin)
ROW = compiled(_row, (1,))


def pack(ledger: Ledger) -> tuple[Any, dict[str, list[Any]]]:
    """(what the next round needs, the lists that only grow) of arrays, for a checkpoint."""
    return {"carry": ledger.carry, "since": ledger.since}, {"records": ledger.records, "tallies": ledger.tallies}


def item_shapes(ledger: Ledger) -> dict[str, Any]:
    """What an item of each of those lists looks like."""
    return {"records": ledger.records[0], "tallies": on_host(ledger.since)}


def unpack(round_: int, state: Any, lists: dict[str, list[Any]]) -> Ledger:
    """The ledger that ``pack`` packed."""
    carry, since = jax.tree.map(jnp.asarray, (state["carry"], state["since"]))
    return Ledger(round_, carry, since, lists["records"], lists["tallies"])


def watched(plan: Plan, watch: Watch, before: Ledger, after: Ledger) -> None:
    """Callbacks are told of a record that the last round brought; the end of a run is one."""
    every = plan.settings.record_every
    if after.round % every and (after.settled or after.round == plan.settings.rounds):
        after = _recorded(plan.settings, after)
    if watch.active and len(after.tallies) > len(before.tallies):
        watch.record(after.since_last(plan), (len(after.tallies) - 1) * every)


def _stack(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
