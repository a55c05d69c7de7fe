"""Where a campaign's log is kept: ``Store``, and one in memory for runs that need not outlive their process.

A store appends and reads; it never changes an event. ``append`` writes its events in one transaction, and raises
``Conflict`` where somebody else has appended in the meantime: the caller reads what is new and decides again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from profl.campaign.events import Arrays, Event, Sealed
from profl.checks import InputError


class Conflict(Exception):
    """Somebody else has appended an event first."""


class DatabaseError(OSError):
    """The database could not do what was asked; nothing was written."""


class ConnectionLost(DatabaseError):
    """The connection broke; what was being written may have been written, and the next call reads whether it was."""


class Store(Protocol):
    """The log of one campaign."""

    def read(self, after: int) -> list[Event]:
        """The events after number ``after``, in order."""

    def data(self, events: Iterable[Event]) -> dict[int, Arrays]:
        """The data of these events, by their numbers; raises ``DamagedLog`` where they are not what was written."""

    def append(self, sealed: Sequence[Sealed]) -> None:
        """Write events, all or none; raises ``Conflict`` where their numbers are taken."""

    def snapshots(self) -> Iterator[bytes]:
        """The snapshots of the state, newest first, which are only a cache."""

    def keep_snapshot(self, seq: int, content: bytes) -> None:
        """Store a snapshot of the state after event ``seq``."""

    def close(self) -> None:
        """Let go of the database."""


class MemoryStore:
    """A log that ends with its process; of closed rounds it holds no data but each client's last model."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._data: dict[int, Arrays] = {}
        self._asked: dict[int, Event] = {}  # by the deployments of the round under way
        self._past: list[int] = []  # the event that told of the past
        self._last: dict[str, int] = {}  # the event that asked for each client's last deployment that was told

    def read(self, after: int) -> list[Event]:
        return self._events[after:]

    def data(self, events: Iterable[Event]) -> dict[int, Arrays]:
        wanted = [event.seq for event in events]
        if gone := [seq for seq in wanted if seq not in self._data]:
            raise InputError(f"a campaign in memory keeps its newest round alone: the data of event {gone[0]} are gone")
        return {seq: self._data[seq] for seq in wanted}

    def append(self, sealed: Sequence[Sealed]) -> None:
        if sealed and sealed[0].event.seq != len(self._events) + 1:
            raise Conflict
        for event, data in sealed:
            self._events.append(event)
            if data is not None:
                self._data[event.seq] = data
            if event.kind == "asked" and event.deployment is not None:
                self._asked[event.deployment] = event
            elif event.kind == "told" and event.deployment is not None:
                asked = self._asked[event.deployment]
                self._last[asked.body["client"]] = asked.seq
            elif event.kind == "history":
                self._past = [event.seq]
            elif event.kind == "closed":
                last = self._last.values()
                self._data = {seq: self._data[seq] for seq in (1, *self._past, *last, event.seq)}
                self._asked = {}

    def snapshots(self) -> Iterator[bytes]:
        return iter(())

    def keep_snapshot(self, seq: int, content: bytes) -> None:
        pass

    def close(self) -> None:
        pass
