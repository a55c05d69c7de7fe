"""The clients of a live run at work: one thread per client and round, and a list of what they did wrong.

What is noted of a client with privacy does not depend on its data: neither its words nor how many rows it left out.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from profl import trees
from profl.run.live.history import Incident
from profl.run.live.protection import Account, unmoved
from profl.run.live.turn import Arrived, Read, local_round
from profl.run.live.workers import EventLoop, Job, deployed_by, late, wait_for_all
from profl.run.plan import Plan, batch_shape
from profl.run.round import Asked, Work
from profl.run.run_history import figure_names
from profl.typing import Theta


class Team:
    """The clients of one run."""

    def __init__(self, clients: Sequence[Any], plan: Plan, timeout: float, account: Account | None) -> None:
        self.clients, self.plan, self.timeout, self.account = clients, plan, timeout, account
        self.privacy = None if account is None else account.privacy
        theta = trees.take(plan.models, 0)
        self.like = batch_shape(plan.settings, plan.population, theta, plan.settings.samples)
        self.figures = figure_names(plan)
        self.changed = threading.Condition()
        self.loops = [EventLoop() for _ in clients]
        self.jobs: dict[int, Job] = {}
        self.incidents: list[tuple[int, str]] = []

    def work(self, round_: int, asked: Asked, theta: Theta) -> dict[int, Work]:
        """What those came to who could be asked and answered in time."""
        begun = {}
        if self.account is not None:
            self.account.charge(np.asarray(asked.clients).tolist())
        for slot, client in enumerate(np.asarray(asked.clients).tolist()):
            busy = self.jobs.get(client)
            if client in begun:
                continue  # it stands there twice and works once
            if busy is not None and busy.alive:
                self.incidents.append((client, "is still busy with an earlier round"))
                continue
            job = partial(self._round, round_, client, theta, trees.take(asked.states, slot))
            begun[client] = self.jobs[client] = Job(job, self.changed, self.loops[client])
        wait_for_all(list(begun.values()), self.changed, self.timeout)
        for client, job_ in begun.items():
            if wrong := late(self.timeout) if job_.given_up else job_.error:
                self.incidents.append((client, str(wrong)))
            elif job_.note:
                self.incidents.append((client, job_.note))
        done = {client: job_.result for client, job_ in begun.items() if job_.result is not None}
        return done if self.privacy is None else done | self._silent(round_, asked, theta, done)

    def take_incidents(self, round_: int) -> tuple[Incident, ...]:
        """What happened since the last call."""
        found = tuple((round_, client, what) for client, what in self.incidents)
        self.incidents.clear()
        return found

    def _silent(self, round_: int, asked: Asked, theta: Theta, done: dict[int, Work]) -> dict[int, Work]:
        """With privacy nobody learns who has nothing to report."""
        assert self.privacy is not None
        why, self.incidents = dict(self.incidents), []
        silent = {
            client: trees.take(asked.states, slot)
            for slot, client in enumerate(np.asarray(asked.clients).tolist())
            if client not in done
        }
        return {
            client: unmoved(self.privacy, self.plan, theta, state, client, round_, why.get(client, "nothing came"))
            for client, state in silent.items()
        }

    def close(self) -> None:
        for loop in self.loops:
            loop.close()

    def _round(self, round_: int, client: int, theta: Theta, state: Any, job: Job) -> Work:
        missing = 0

        def ask(read: Read, deployed: Theta, samples: int, step: int, world: Any) -> Arrived:
            nonlocal missing
            offered = {"step": step, "world": world}
            arrived = job.ask(lambda: deployed_by(self.clients[client], deployed, samples, **offered), read)
            missing += arrived.missing
            return arrived

        root = self.plan.roots[0]
        work = local_round(self.plan, self.like, self.figures, root, round_, client, theta, state, ask, self.privacy)
        if missing and self.privacy is None:
            job.note = f"sent {missing} rows with missing values, which were left out"
        return work
