"""A client's states after its last few messages: in Flower's context, which a restart loses, and on disk.

The server says from which message to go on, so an order that is sent twice gives the same report twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
from flwr.app import ConfigRecord

from profl.checks import InputError
from profl.run.flower.wire import from_arrays, to_arrays
from profl.storage.atomic import atomic
from profl.storage.checkpoints import Checkpoints


class StateStore:
    """The states of one client in one run."""

    def __init__(
        self, state: Any, folder: str | os.PathLike[str] | None, client: int, fingerprint: dict[str, str]
    ) -> None:
        self.records = state  # the context's: a dict of records
        self.folder = None if folder is None else Path(folder) / f"client-{client}"
        self.disk = None if self.folder is None else Checkpoints(self.folder, fingerprint, lock=False)  # one at a time
        self.counter = None if self.folder is None else self.folder / "reports.json"
        self.token = fingerprint["token"]

    def load(self, number: int, like: Any) -> Any:
        """The state after a message; None if it is no longer stored."""
        name = self._name(number)
        if name in self.records:
            return from_arrays(self.records[name], like, "the state")
        if self.disk is not None and number in self.disk.numbers():
            try:
                return jax.tree.map(jax.numpy.asarray, self.disk.load(number, like).state)
            except InputError:  # cut short, or of another run that was here before
                return None
        return None

    def save(self, number: int, state: Any, base: int) -> None:
        """Store the state after a message.

        The states after ``base``, from which the server may repeat the round, and after the message before this one,
        which may be repeated, stay. All others are deleted, also later ones of a run that was set back.
        """
        wanted = (base, number - 1)
        for old in [n for n in map(self._number, self.records) if n is not None and n not in wanted]:
            del self.records[self._name(old)]
        self.records[self._name(number)] = to_arrays(state)
        if self.disk is not None:
            self.disk.remove([n for n in self.disk.numbers() if n not in wanted])
            self.disk.save(number, state)

    def count_report(self) -> int:
        """The number of reports that have left this client in this run, with one more; repeated ones count again."""
        name = f"reports of {self.token}"
        in_context = self.records[name]["count"] if name in self.records else 0
        count = 1 + max(in_context, self._on_disk())
        self.records[name] = ConfigRecord({"count": count})
        if self.counter is not None:
            with atomic(self.counter, private=True) as temporary:
                temporary.write_text(json.dumps({self.token: count}))
        return count

    def _on_disk(self) -> int:
        """The number of reports that is stored on disk; 0 if there is none that can be read."""
        if self.counter is None:
            return 0
        try:
            return int(json.loads(self.counter.read_text(encoding="utf-8")).get(self.token, 0))
        except (OSError, ValueError, TypeError, AttributeError):
            return 0

    def _name(self, number: int) -> str:
        return f"profl {self.token} {number}"

    def _number(self, name: str) -> int | None:
        return int(name.split()[-1]) if name.startswith(f"profl {self.token} ") else None
