"""A client's states after its last few rounds: in Flower's context, which a restart loses, and on disk.

The server says after which round to go on, so a round that is asked for twice gives the same report twice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax

from profl.checks import InputError
from profl.engines.flower.wire import arrays, tree
from profl.storage.checkpoints import Checkpoints

KEEP = 2  # in the context, which travels with every message


class Memory:
    """The states of one client in one run."""

    def __init__(
        self, state: Any, folder: str | os.PathLike[str] | None, client: int, fingerprint: dict[str, str]
    ) -> None:
        self.records = state  # the context's: a dict of records
        self.disk = None if folder is None else Checkpoints(Path(folder) / f"client-{client}", fingerprint)
        self.token = fingerprint["token"]

    def recall(self, round_: int, like: Any) -> Any:
        """The state after a round; None where it is not known any more."""
        name = self._name(round_)
        if name in self.records:
            return tree(self.records[name], like, "the state")
        if self.disk is not None and round_ in self.disk.numbers():
            try:
                return jax.tree.map(jax.numpy.asarray, self.disk.load(round_, like, ()).state)
            except InputError:  # cut short, or of another run that was here before
                return None
        return None

    def keep(self, round_: int, state: Any) -> None:
        """Remember the state after a round; later ones, of a run that went back, are forgotten."""
        known = sorted((number for number in map(self._number, self.records) if number is not None), reverse=True)
        for number in known:
            if number >= round_ or number <= round_ - KEEP:
                del self.records[self._name(number)]
        self.records[self._name(round_)] = arrays(state)
        if self.disk is not None:
            self.disk.drop_after(round_)
            self.disk.save(round_, state, ())

    def _name(self, round_: int) -> str:
        return f"profl {self.token} {round_}"

    def _number(self, name: str) -> int | None:
        return int(name.split()[-1]) if name.startswith("profl ") else None
