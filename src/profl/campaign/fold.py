"""The states of a campaign as folds of its log, by the functions that every engine calls.

    asked     the client deploys: ``client_round.deploy_next``
    told      it makes its step on what came in: ``client_round.use_batch``
    closed    the round ends as in ``train``: ``run_history.run_round``

A client's part of a round depends on nobody else's, so the order in which deployments are told does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import trees
from profl.methods.method import Forecast
from profl.run import step
from profl.run.live import batches
from profl.run.live.client_round import RoundSetup, deploy_next, finite_copy, use_batch
from profl.run.live.filter_alerts import FilterAlert, update_alerts
from profl.run.live.state import Guard, Incident, LiveState, refused_reports
from profl.run.round import Work
from profl.run.run_history import (
    absent_work,
    client_work,
    item_shapes,
    next_participants,
    pack,
    run_round,
    start_history,
    unpack,
)
from profl.run.step import Progress
from profl.run.undecided import ADVICE, group_apart, robust_filter
from profl.storage import archive
from profl.storage.archive import DamagedFile
from profl.typing import Batch, Theta

GUARD = 10.0
"""As in ``train``: the risk is told to be high above this many times its first scale."""


class Participant(NamedTuple):
    """A client in the round under way."""

    now: Progress  # after the last batch that it made use of
    wanted: int  # rows of each deployment
    done: int = 0  # batches it made use of
    rows: int = 0
    missing: int = 0  # rows left out
    deployed: Theta | None = None  # the model that is out
    after: Progress | None = None  # the client after it deployed that


class State(NamedTuple):
    """A campaign after event ``seq``."""

    seq: int
    live: LiveState
    undecided: frozenset[int] = frozenset()  # clients of whom it was said that the filter cannot decide on a group
    participants: Mapping[int, Participant] | None = None  # None between two rounds
    notes: tuple[tuple[int, str], ...] = ()  # incidents of the round under way


class Fold:
    """Makes states; it has none of its own."""

    def __init__(self, setup: RoundSetup) -> None:
        self.setup, self.plan = setup, setup.plan
        self.filter = robust_filter(self.plan.settings.method)

    @cached_property
    def first(self) -> State:
        """The state before the first round."""
        return State(0, LiveState(start_history(self.plan, trees.take(self.plan.models, 0))))

    def begin(self, state: State) -> State:
        """The state at the beginning of a round: who takes part in it (line 3)."""
        plan, history = self.plan, state.live.history
        chosen = next_participants(plan, plan.roots[0], history)
        participants: dict[int, Participant] = {}
        for slot, client in enumerate(np.asarray(chosen.clients).tolist()):
            if client not in participants:  # one may stand there twice, and works once
                own, row = trees.take(chosen.states, slot), trees.take(plan.population, client)
                now = step.start_round(plan.settings, history.carry.theta, own)
                participants[client] = Participant(now, int(step.samples_wanted(plan.settings, row, own)))
        return state._replace(participants=participants, notes=())

    def deploy(self, state: State, client: int) -> tuple[Theta, State]:
        """(what the client deploys next, as numpy arrays; the state after it)."""
        own = self._participant(state, client)
        deployed, after = deploy_next(self.setup, state.live.history.round, client, own.done, own.now)
        model = finite_copy(deployed)
        return model, _replace(state, client, own._replace(deployed=model, after=after))

    def deployed(self, state: State, client: int, model: Theta) -> State:
        """The state after the client deployed ``model``, which the log holds; a rounding may be another today."""
        _, state = self.deploy(state, client)
        return _replace(state, client, self._participant(state, client)._replace(deployed=model))

    def use(self, state: State, client: int, batch: Batch, missing: int, deployed: Theta = None) -> State:
        """The state after the client's step on what ``deployed`` brought in, by default its open deployment."""
        own = self._participant(state, client)
        assert own.after is not None
        deployed, round_ = trees.cast(own.deployed if deployed is None else deployed), state.live.history.round
        now = use_batch(self.setup, round_, client, own.done, own.after, batch, deployed, own.wanted)
        rows = batches.rows(batch)
        used = Participant(now, own.wanted, own.done + 1, own.rows + rows, own.missing + missing)
        return self._look_for_groups(_replace(state, client, used), client, deployed, batch)

    def close(self, state: State, absent: Mapping[int, str]) -> State:
        """The state after the round; ``absent`` says why a client is out of it."""
        plan, live = self.plan, state.live
        assert state.participants is not None
        steps = plan.settings.local_steps
        work = {c: self._work(c, own) for c, own in state.participants.items() if own.done == steps and c not in absent}
        root, where = plan.roots[0], f"campaign of {plan.settings.method.name}"
        history = run_round(plan, root, live.history, lambda *_: work, where, self._absent)
        notes = [*((c, absent[c]) for c in sorted(absent)), *sorted(state.notes)]
        for client, own in state.participants.items():
            if own.missing and client in work:
                notes.append((client, f"sent {own.missing} rows with missing values, which were left out"))
        alerts, _ = update_alerts(live.alerts, plan, live.history, history)
        incidents = (
            *((history.round, client, what) for client, what in notes),
            *refused_reports(live.history, history),
        )
        guard = live.guard.update(history, GUARD)
        return State(state.seq, LiveState(history, guard, (*live.incidents, *incidents), alerts), state.undecided)

    def pack(self, state: State) -> bytes:
        """A state between two rounds as bytes."""
        history = state.live.history
        arrays, lists = pack(history)
        named = archive.named_arrays("state", arrays)
        for name, items in lists.items():
            stacked = (
                jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *items) if items else ()
            )
            named |= archive.named_arrays(name, stacked)
        meta = {
            "seq": state.seq,
            "round": history.round,
            "undecided": sorted(state.undecided),
            "incidents": state.live.incidents,
            "alerts": [_plain(alert) for alert in state.live.alerts],
            "guard": _plain(state.live.guard),
        }
        return archive.to_bytes(named, meta, compressed=True)

    def unpack(self, content: bytes) -> State:
        """The state that ``pack`` packed; raises ``DamagedFile`` where it is of another method or version."""
        arrays, meta = archive.from_bytes(content)
        try:
            first = self.first.live.history
            like, shapes = pack(first)[0], item_shapes(first)
            own = {name: {k: v for k, v in arrays.items() if k.startswith(name)} for name in ("state", *shapes)}
            round_ = int(meta["round"])
            lists = {}
            for name, shape in shapes.items():
                stacked = archive.restore_tree(name, own[name], shape, same_shape=False) if own[name] else None
                count = 0 if stacked is None else len(jax.tree.leaves(stacked)[0])
                lists[name] = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(count)]
            history = unpack(round_, archive.restore_tree("state", own["state"], like, same_shape=True), lists)
            incidents: tuple[Incident, ...] = tuple((int(r), int(c), str(what)) for r, c, what in meta["incidents"])
            alerts = tuple(FilterAlert(*alert) for alert in meta["alerts"])
            live = LiveState(history, Guard(*meta["guard"]), incidents, alerts)
            return State(int(meta["seq"]), live, frozenset(meta["undecided"]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DamagedFile(f"it is no snapshot of this campaign ({type(error).__name__})") from error

    # -- inside --------------------------------------------------------------------------------------------------------

    @cached_property
    def _absent_work(self) -> Work:
        return absent_work(self.plan)

    def _absent(self) -> Work:
        return self._absent_work

    def _participant(self, state: State, client: int) -> Participant:
        assert state.participants is not None
        return state.participants[client]

    def _work(self, client: int, own: Participant) -> Work:
        row = trees.take(self.plan.population, client)
        return client_work(self.plan.settings, row, own.now, own.rows, self.setup.figures)

    def _look_for_groups(self, state: State, client: int, deployed: Theta, batch: Batch) -> State:
        """Note a group of a client's samples that the filter cannot decide on, once."""
        if self.filter is None or client in state.undecided:
            return state
        settings = self.plan.settings
        padded = batches.pad(batch, settings.samples)
        words = group_apart(settings.functions, self.filter, deployed, padded, batches.rows(batch))
        if not words:
            return state
        note = (client, f"{words} {ADVICE.format(most=self.filter.at_most)}")
        return state._replace(undecided=state.undecided | {client}, notes=(*state.notes, note))


def _replace(state: State, client: int, own: Participant) -> State:
    assert state.participants is not None
    return state._replace(participants={**state.participants, client: own})


def _plain(values: Any) -> list[Any]:
    """The values as Python numbers, for JSON."""
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def forecast_of(state: State) -> Forecast | None:
    """What the method expects of the newest global model; None where it states nothing."""
    return state.live.history.records[-1][1]
