"""The clients of a live run at work: a thread for every deployment that is under way.

``work`` starts a thread for each open deployment, waits until one of them has ended, and writes what came of it into
the log: its data, or why there are none. A client whose overdue deployment still runs is busy, and left out.

A deployment that was open when the run began may have been made by the process before. A client that has ``collect``
is asked for its data first; one that says None, or has no ``collect``, deploys: the same id, the same model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.campaign.events import Draft
from profl.campaign.fold import Participant
from profl.campaign.journal import Journal
from profl.campaign.ledger import Entry
from profl.campaign.readings import Reading, mean_sizes
from profl.run.live.batches import collect_at, deploy_at, read_answer
from profl.run.live.workers import LATE, EventLoop, Job, wait_for_some
from profl.typing import Theta

BUSY = "is still busy with an earlier round"


class Deploying(NamedTuple):
    """A deployment that is under way."""

    id: int
    theta: Theta  # its own copy: the client's may be changed by the client
    job: Job


class Crew:
    """The clients of one run."""

    def __init__(self, clients: Sequence[Any], journal: Journal, timeout: float) -> None:
        self.clients, self.journal, self.timeout = clients, journal, timeout
        self.changed = threading.Condition()
        self.loops = [EventLoop() for _ in clients]
        self.under_way: dict[int, Deploying] = {}  # by client
        self.inherited = {entry.id for entry in journal.ledger.open}  # asked for by an earlier process

    def work(self, check: Callable[[], None]) -> None:
        """Start what is open, wait until something has ended, tell it; ``check`` is called while waiting, may raise."""
        ended = self._start()
        waiting = {client: one for client, one in self.under_way.items() if not one.job.given_up}
        if waiting and not ended:
            jobs = [one.job for one in waiting.values()]
            done = wait_for_some(jobs, self.changed, self.timeout, check)
            for client, one in waiting.items():
                if one.job in done:
                    ended.append(self._outcome(one))
                    if not one.job.given_up:
                        del self.under_way[client]
        self.journal.tell(lambda: [draft for draft in ended if self._is_open(draft)])

    def close(self) -> None:
        for loop in self.loops:
            loop.close()

    def _is_open(self, draft: Draft) -> bool:
        """Whether nobody else has told of its deployment."""
        assert draft.deployment is not None
        return self.journal.ledger.entries[draft.deployment].state == "open"

    def _start(self) -> list[Draft]:
        """Begin every open deployment that is not under way; the events of those that cannot begin."""
        skipped = []
        open_ = self.journal.ledger.open
        participants = self.journal.state().participants or {} if open_ else {}
        for entry in open_:
            client = self.journal.numbers[entry.client]
            before = self.under_way.get(client)
            if before is not None and before.id == entry.id:
                continue
            if before is not None and before.job.busy:
                skipped.append(self._skip(entry.id, BUSY, deployed=False))
                continue
            self.under_way[client] = self._begin(entry, client, participants[client])
        return skipped

    def _begin(self, entry: Entry, client: int, own: Participant) -> Deploying:
        """A thread in which the client deploys."""
        plan, like = self.journal.fold.plan, self.journal.fold.setup.like
        assert own.deployed is not None
        assert own.after is not None
        number = entry.round * plan.settings.local_steps + entry.step
        offered = {"step": number, "id": entry.id, "world": own.after.state.world}
        family = plan.settings.functions.family
        read = partial(read_answer, like=like, deployed=own.deployed, family=family, requested=entry.samples)

        def task(job: Job) -> Any:
            target, theta = self.clients[client], jax.tree.map(np.array, own.deployed)
            if entry.id in self.inherited:
                collected = job.ask(partial(collect_at, target, entry.id, theta, entry.samples), _unless_none(read))
                if collected is not None:
                    return collected
                theta = jax.tree.map(np.array, own.deployed)
            return job.ask(partial(deploy_at, target, theta, entry.samples, **offered), read)

        return Deploying(entry.id, own.deployed, Job(task, self.changed, self.loops[client]))

    def _outcome(self, one: Deploying) -> Draft:
        """The event of a deployment that has ended."""
        job = one.job
        if job.given_up:
            return self._skip(one.id, LATE.format(self.timeout))
        if job.error is not None:
            return self._skip(one.id, str(job.error))
        batch, deployed, missing = job.result
        earlier = None if deployed is one.theta else deployed
        return Reading(batch, missing, None, mean_sizes(batch), earlier).draft(one.id, self.journal.now())

    def _skip(self, deployment: int, why: str, deployed: bool = True) -> Draft:
        body = {"reason": why, "failed": True, "deployed": deployed}
        return Draft("skipped", self.journal.now(), body, deployment)


def _unless_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda answer: None if answer is None else read(answer)
