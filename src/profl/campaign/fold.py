"""The states of a campaign as folds of its log, by the functions that every engine calls.

    asked     the client deploys: ``client_round.deploy_next``
    told      it makes its step on what came in: ``client_round.use_batch``
    closed    the round ends as in ``train``: ``run_history.run_round``

A client's part of a round depends on nobody else's, so the order in which deployments are told does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import trees
from profl.methods.method import Forecast
from profl.parts.privacy import Privacy
from profl.run import step
from profl.run.live import batch_alerts, batches
from profl.run.live.batch_alerts import NO_BATCH, LastBatch
from profl.run.live.client_round import RoundSetup, deploy_next, finite_copy, key_of, use_batch
from profl.run.live.filter_alerts import FilterAlert, update_alerts
from profl.run.live.protection import finished_report, protected_work, unchanged_report
from profl.run.live.state import Guard, Incident, LiveState, newly_distrusted, plain_numbers, refused_reports
from profl.run.plan import Population, Settings
from profl.run.round import Work
from profl.run.run_history import (
    absent_work,
    client_work,
    item_shapes,
    next_participants,
    pack,
    run_round,
    stack_rows,
    start_history,
    unpack,
)
from profl.run.step import Progress
from profl.run.undecided import ADVICE, group_apart, robust_filter
from profl.server.entries import Report
from profl.storage import archive
from profl.storage.archive import DamagedFile
from profl.typing import Batch, Key, Theta


class Participant(NamedTuple):
    """A client in the round under way."""

    row: Population
    now: Progress  # after the last batch that it made use of
    wanted: int  # rows of each deployment
    done: int = 0  # batches it made use of
    rows: int = 0
    missing: int = 0  # rows left out
    key: Key | None = None  # of the step under way
    deployed: Theta | None = None  # the model that is out
    after: Progress | None = None  # the client after it deployed that


class State(NamedTuple):
    """A campaign after event ``seq``."""

    seq: int
    live: LiveState
    undecided: frozenset[int] = frozenset()  # clients of whom it was said that the filter cannot decide on a group
    participants: Mapping[int, Participant] | None = None  # None between two rounds
    notes: tuple[tuple[int, str], ...] = ()  # incidents of the round under way
    last: Mapping[int, LastBatch] = {}  # each client's last batch
    noised: Mapping[int, Report] | None = None  # with privacy: what left the clients in the round that was just closed


class Fold:
    """Makes states; it has none of its own. ``guard``: see ``train``.

    With privacy nothing is noted about a client that depends on its data.
    """

    def __init__(self, setup: RoundSetup, guard: float = 10.0) -> None:
        self.setup, self.plan, self.guard = setup, setup.plan, guard
        self.root = setup.plan.roots[0]
        self.filter = None if setup.privacy is not None else robust_filter(self.plan.settings.method)

    @cached_property
    def model_shape(self) -> Theta:
        """The shapes of a model."""
        return trees.row_shape(self.plan.models)

    @cached_property
    def first_model(self) -> Theta:
        """The model before the first round."""
        return trees.take(self.plan.models, 0)

    @cached_property
    def first(self) -> State:
        """The state before the first round."""
        return State(0, LiveState(start_history(self.plan, self.first_model, real=True)))

    def begin(self, state: State) -> State:
        """The state at the beginning of a round: who takes part in it (line 3)."""
        plan, history = self.plan, state.live.history
        chosen = next_participants(plan, self.root, history)
        participants: dict[int, Participant] = {}
        for slot, client in enumerate(np.asarray(chosen.clients).tolist()):
            if client not in participants:  # one may stand there twice, and works once
                own, row = trees.take(chosen.states, slot), trees.take(plan.population, client)
                now = step.start_round(plan.settings, history.carry.theta, own)
                participants[client] = Participant(row, now, int(step.samples_wanted(plan.settings, row, own)))
        return state._replace(participants=participants, notes=(), noised=None)

    def deploy(self, state: State, client: int) -> tuple[Theta, State]:
        """(what the client deploys next, as numpy arrays; the state after it)."""
        own = self._deploying(state, client)
        model = finite_copy(own.deployed)
        return model, _replace(state, client, own._replace(deployed=model))

    def deployed(self, state: State, client: int, model: Theta) -> State:
        """The state after the client deployed ``model``, which the log holds; a rounding may be another today."""
        return _replace(state, client, self._deploying(state, client)._replace(deployed=model))

    def _deploying(self, state: State, client: int) -> Participant:
        """The client once it has deployed its next model, which may not be finite."""
        own = self._participant(state, client)
        key = key_of(self.setup, self.root, client, state.live.history.round, own.done)
        deployed, after = deploy_next(self.setup, own.row, key, own.now)
        return own._replace(key=key, deployed=deployed, after=after)

    def use(self, state: State, client: int, batch: Batch, missing: int, deployed: Theta = None) -> State:
        """The state after the client's step on what ``deployed`` brought in, by default its open deployment."""
        own = self._participant(state, client)
        assert own.after is not None
        assert own.key is not None
        deployed = trees.cast(own.deployed if deployed is None else deployed)
        now = use_batch(self.setup, own.row, own.key, own.done, own.after, batch, deployed, own.wanted)
        rows = batches.rows(batch)
        used = Participant(own.row, now, own.wanted, own.done + 1, own.rows + rows, own.missing + missing)
        state = self._look_at_batch(_replace(state, client, used), client, batch)
        return self._look_for_groups(state, client, deployed, batch)

    def close(
        self,
        state: State,
        absent: Mapping[int, str],
        noised: Mapping[int, Report] | None = None,
        unused: Collection[int] = (),
    ) -> State:
        """The state after the round; ``absent`` says why a client is out of it.

        ``unused``: the clients whose last deployment was never put to use, so that it does not count.
        ``noised``: with privacy, the reports that left the clients, where they have left; their noise is drawn once.
        """
        plan, live = self.plan, self._deployed(state, unused)
        state = state._replace(live=live)
        assert state.participants is not None
        steps = plan.settings.local_steps
        work = {c: self._work(own) for c, own in state.participants.items() if own.done == steps and c not in absent}
        notes = self._notes(state, absent, work)
        if self.setup.privacy is not None:
            work = self._protected(self.setup.privacy, state, absent, work, noised)
            noised = {client: done.reports for client, done in work.items()}
        root, where = self.root, f"seed {plan.seeds[0]}"
        lost = (0, 0) if self.setup.privacy is not None else self._unreported(state, work, unused)
        history = run_round(plan, root, live.history, lambda *_: work, where, self._absent, lost)
        alerts, _ = update_alerts(live.alerts, plan, live.history, history)
        incidents = (
            *((history.round, client, what) for client, what in notes),
            *refused_reports(live.history, history),
            *newly_distrusted(plan.settings, live.history, history),
        )
        guard = live.guard.update(history, self.guard)
        after = LiveState(history, guard, (*live.incidents, *incidents), alerts)
        return State(state.seq, after, state.undecided, noised=noised, last=state.last)

    def pack(self, state: State) -> bytes:
        """A state between two rounds as bytes."""
        history = state.live.history
        arrays, lists = pack(history)
        named = archive.named_arrays("state", arrays)
        for name, items in lists.items():
            named |= archive.named_arrays(name, stack_rows(items)) if items else {}
        meta = {
            "seq": state.seq,
            "round": history.round,
            "undecided": sorted(state.undecided),
            "last": {str(client): [*last] for client, last in state.last.items()},
            "incidents": state.live.incidents,
            "alerts": [plain_numbers(alert) for alert in state.live.alerts],
            "guard": plain_numbers(state.live.guard),
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
            last = {int(client): LastBatch(*values) for client, values in meta.get("last", {}).items()}
            return State(int(meta["seq"]), live, frozenset(meta["undecided"]), last=last)
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

    def _work(self, own: Participant) -> Work:
        return client_work(self.plan.settings, own.row, own.now, own.rows, self.setup.figures)

    def _deployed(self, state: State, unused: Collection[int]) -> LiveState:
        """What is carried on, with what each participant deployed last where it matters, told or not."""
        carry = state.live.history.carry
        if self.plan.settings.functions.max_change is None:
            return state.live
        last = jax.tree.map(np.array, carry.states.last)
        for client, one in (state.participants or {}).items():
            out = one.deployed is not None and client not in unused
            model = one.deployed if out else one.now.state.last
            jax.tree.map(lambda rows, leaf, client=client: rows.__setitem__(client, leaf), last, model)
        carry = carry._replace(states=carry.states._replace(last=jax.device_put(last)))
        return state.live._replace(history=state.live.history._replace(carry=carry))

    def _unreported(self, state: State, work: Mapping[int, Work], unused: Collection[int]) -> tuple[int, int]:
        """(deployments, samples) of the clients that sent no report, which were made and paid for all the same."""
        others = {client: own for client, own in (state.participants or {}).items() if client not in work}
        out = sum(own.deployed is not None and client not in unused for client, own in others.items())
        return sum(own.done for own in others.values()) + out, sum(own.rows for own in others.values())

    def _notes(self, state: State, absent: Mapping[int, str], work: Mapping[int, Work]) -> list[tuple[int, str]]:
        """(client, what happened to it) in the round under way."""
        if self.setup.privacy is not None:
            return []
        notes = [*((client, absent[client]) for client in sorted(absent)), *sorted(state.notes)]
        for client, own in (state.participants or {}).items():
            if own.missing and client in work:
                notes.append((client, f"sent {own.missing} rows with missing values, which were left out"))
        return notes

    def _protected(
        self,
        privacy: Privacy,
        state: State,
        absent: Mapping[int, str],
        work: Mapping[int, Work],
        noised: Mapping[int, Report] | None,
    ) -> dict[int, Work]:
        """The work of all participants with noised reports; nobody is seen to be absent."""
        plan, history, protected = self.plan, state.live.history, {}
        for client in state.participants or {}:
            before = trees.take(history.carry.states, client)
            if noised is not None:
                good = client in work and bool(work[client].finite)
                done = work[client] if good else self._absent_work._replace(states=before)
                protected[client] = protected_work(plan, done, noised[client], client)
                continue
            circumstances = (privacy, plan, history.carry.theta, before, client, history.round)
            if client in work:
                protected[client] = finished_report(*circumstances, work[client])
            else:
                protected[client] = unchanged_report(*circumstances, absent.get(client, "nothing came"))
        return protected

    def _look_at_batch(self, state: State, client: int, batch: Batch) -> State:
        """Note a batch that is the one before it, and noise that is not as the family states it."""
        if self.setup.privacy is not None:
            return state
        before = state.last.get(client, NO_BATCH)
        misstated = (
            "" if client in state.last else batch_alerts.misstated_noise(self.plan.settings.functions.family, batch)
        )
        last, repeated = before.next(batch, state.live.history.round + 1)
        fresh = tuple((client, words) for words in (misstated, repeated) if words)
        return state._replace(last={**state.last, client: last}, notes=(*state.notes, *fresh))

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


def outcomes_of(state: State, settings: Settings) -> dict[str, Any]:
    """{"outcomes": [limit in words, estimate, standard error] of every limit on what comes in}; {} without any."""
    limits = settings.functions.outcomes
    figures = settings.method.outcome_estimates(settings.server, state.live.history.carry.server) if limits else None
    if figures is None:
        return {}
    columns = zip(limits, *np.asarray(figures, float).tolist(), strict=True)
    finite = [(limit.words, *(value if np.isfinite(value) else None for value in pair)) for limit, *pair in columns]
    return {"outcomes": [list(row) for row in finite]}


def forecast_of(state: State) -> Forecast | None:
    """What the method expects of the newest global model; None where it states nothing."""
    return state.live.history.records[-1][1]
