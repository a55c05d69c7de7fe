"""What a campaign's log says without computing anything: deployments, who is in which round, what is overdue."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from profl.campaign.events import START, Event, verify


class Entry(NamedTuple):
    """A deployment, as far as the log knows it."""

    id: int
    client: str
    round: int  # 0, 1, ...
    step: int  # of the round: 0, ..., R - 1
    purpose: str  # explore, improve or hold
    samples: int  # rows wanted
    since: str  # when it was asked for
    until: str | None  # when its data are due
    asked: Event
    state: str = "open"  # then told, skipped, withdrawn or expired
    ended: Event | None = None  # the event that says so

    @property
    def reason(self) -> str:
        """Why there are no data."""
        if self.state == "expired":
            return f"no data came by {self.until}"
        body = {} if self.ended is None else self.ended.body
        if body.get("failed"):  # the client did; the other reasons are somebody's decision
            return str(body["reason"])
        return f"{self.state}: {body['reason']}" if "reason" in body else ""

    @property
    def used(self) -> bool:
        """Whether the model was deployed, or may have been."""
        skipped = self.state == "skipped" and self.ended is not None and self.ended.body.get("deployed") is False
        return self.state != "withdrawn" and not skipped

    def overdue(self, now: datetime) -> bool:
        return self.until is not None and now >= datetime.fromisoformat(self.until)


class Ledger:
    """The plain fold of a campaign's events."""

    def __init__(self) -> None:
        self.seq, self.chain = 0, START
        self.opened: Event | None = None
        self.history: Event | None = None  # the deployments of the past
        self.next_id = 1
        self.entries: dict[int, Entry] = {}
        self.closed: list[Event] = []
        self._current: list[int] = []  # the ids of the round under way
        self._newest: dict[str, int] = {}  # the last deployment of each client that was told

    def copy(self) -> Ledger:
        """Another one, which can go its own way."""
        other = Ledger.__new__(Ledger)
        other.__dict__ = {name: v.copy() if isinstance(v, (dict, list)) else v for name, v in self.__dict__.items()}
        return other

    def apply(self, event: Event) -> None:
        """Take in the next event; raises ``DamagedLog`` where it does not follow."""
        verify(event, self.seq, self.chain)
        if event.kind == "opened":
            self.opened = event
        elif event.kind == "history":
            self.history = event
        elif event.kind == "asked":
            assert event.deployment is not None
            body = event.body
            words = (body["client"], body["round"], body["step"], body["purpose"], body["samples"])
            self.entries[event.deployment] = Entry(event.deployment, *words, event.at, body["until"], event)
            self._current.append(event.deployment)
            self.next_id = event.deployment + 1
        elif event.kind == "closed":
            for number in self._current:
                if self.entries[number].state == "open":
                    self.entries[number] = self.entries[number]._replace(state="expired", ended=event)
            self._current = []
            self.closed.append(event)
        else:
            assert event.deployment is not None
            entry = self.entries[event.deployment]
            self.entries[event.deployment] = entry._replace(state=event.kind, ended=event)
            if event.kind == "told":
                self._newest[entry.client] = event.deployment
        self.seq, self.chain = event.seq, event.chain

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the campaign was made with."""
        assert self.opened is not None
        settings: dict[str, Any] = self.opened.body["settings"]
        return settings

    @property
    def round(self) -> int:
        """The number of the round under way, which is how many are closed."""
        return len(self.closed)

    @property
    def current(self) -> list[Entry]:
        """The deployments of the round under way, in the order in which they were asked for."""
        return [self.entries[number] for number in self._current]

    @property
    def open(self) -> list[Entry]:
        """The deployments whose data are awaited."""
        return [entry for entry in self.current if entry.state == "open"]

    def newest_told(self, client: str) -> Entry | None:
        """The last deployment of a client whose data came in."""
        return self.entries[self._newest[client]] if client in self._newest else None

    def absent(self) -> dict[str, str]:
        """{client: why} of those who are out of the round under way."""
        return {entry.client: entry.reason for entry in self.current if entry.state in ("skipped", "withdrawn")}

    def told(self) -> dict[str, int]:
        """{client: deployments told} in the round under way."""
        counts = {entry.client: 0 for entry in self.current}
        for entry in self.current:
            counts[entry.client] += entry.state == "told"
        return counts

    def due(self, local_steps: int, min_reports: int, now: datetime) -> bool:
        """Whether the round under way ends: all is told or skipped, or its time is up and enough is there."""
        if not self.current:
            return False
        absent, told = self.absent(), self.told()
        waiting = [client for client, count in told.items() if count < local_steps and client not in absent]
        if not waiting:
            return True
        complete = sum(count == local_steps and client not in absent for client, count in told.items())
        late = {entry.client for entry in self.open if entry.overdue(now)}
        return set(waiting) <= late and complete >= min_reports
