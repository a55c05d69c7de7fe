"""Checkpoints: after each round, one file, written whole or not at all; the newest few are kept.

A file is an archive of every array that the next round needs, and a text: the format, the run's fingerprint, and how
much of the history belongs to it. Lists that only grow are in a file of their own, ``history``, to which each round
appends first. Random keys are not stored: they come from (seed, client, step). A checkpoint is refused when it is cut
short, of another format or of another run, with what differs.

The folder is locked while a run works in it. Its files are for nobody else to read: they hold the states of clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from profl.checks import InputError, words
from profl.storage import append_log, archive
from profl.storage.archive import DamagedFile
from profl.storage.atomic import atomic, make_folder
from profl.storage.fingerprint import difference
from profl.storage.lock import Lock
from profl.storage.paths import check_folder

FORMAT = 6
KEEP = 3
HISTORY = "history"
_NAME = re.compile(r"round-(\d{8})\.npz")

Lists = dict[str, list[Any]]
"""Lists that only grow, by name; the items of each are pytrees of arrays of one structure."""


class Checkpoint(NamedTuple):
    """What a checkpoint holds."""

    round: int
    state: Any
    lists: Lists
    notes: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one folder, to be closed after it (``with``).

    Args:
      folder: made where it does not exist.
      fingerprint: what the run is, in words; a checkpoint with other words is refused.
      resume: go on from the newest checkpoint; False refuses a folder that has one.
      lock: refuse a folder in which another run works.
    """

    def __init__(
        self, folder: str | os.PathLike[str], fingerprint: dict[str, str], resume: bool = True, lock: bool = True
    ) -> None:
        self.folder, self.fingerprint = Path(folder), fingerprint
        self._lock: Lock | None = None
        self._position, self._counts = append_log.START, dict[str, int]()
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"checkpoint must be a folder, got the file {self.folder}")
        if lock:
            check_folder("checkpoint", self.folder)
            make_folder(self.folder, private=True)
            self._lock = Lock(self.folder)
        with self.closed_on_failure():
            if not resume and self.numbers():
                raise InputError(
                    f"{self.folder} holds checkpoints up to round {self.numbers()[-1]}: "
                    "pass resume=True to go on from there, or choose another folder"
                )
            for temporary in self.folder.glob(".round-*.npz"):  # of a process that was killed while it wrote
                temporary.unlink(missing_ok=True)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other runs work here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def numbers(self) -> list[int]:
        """The rounds of which there is a checkpoint, oldest first."""
        files = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(int(match[1]) for file in files if (match := _NAME.fullmatch(file.name)))

    def path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.npz"

    def save(
        self, number: int, state: Any, lists: Mapping[str, Sequence[Any]] | None = None, notes: Any = None
    ) -> None:
        """Write the checkpoint of a round, then remove the oldest beyond ``KEEP``; of the lists, only what is new.

        ``notes`` is a small dict of what JSON knows.
        """
        lists = lists or {}
        known = self._counts
        new = [
            (name, archive.named_arrays("", item))
            for name, items in lists.items()
            for item in items[known.get(name, 0) :]
        ]
        try:
            self._position = append_log.append(self.folder / HISTORY, self._position, new)
            self._counts = {name: len(items) for name, items in lists.items()}
            meta = {"format": FORMAT, "round": number, "fingerprint": self.fingerprint}
            meta |= {"history": [*self._position], "counts": self._counts, "notes": notes or {}}
            with atomic(self.path(number), private=True) as temporary:
                archive.write(temporary, archive.named_arrays("state", state), meta)
        except OSError as error:
            raise OSError(
                error.errno,
                f"round {number} could not be kept, the checkpoints before it can be gone on from: {error.strerror}",
                str(self.folder),
            ) from error
        self.remove(self.numbers()[:-KEEP])

    def remove(self, numbers: list[int]) -> None:
        """Remove the checkpoints of these rounds."""
        for number in numbers:
            self.path(number).unlink(missing_ok=True)

    def newest(self, state: Any, like: dict[str, Any] | None = None) -> Checkpoint | None:
        """The newest checkpoint, in the structure of ``state`` and, item by item, of ``like``; None if there is none.

        Arrays of ``state`` must have the shapes of the given ones; those of the lists may have any.
        """
        numbers = self.numbers()
        return self.load(numbers[-1], state, like) if numbers else None

    def load(self, number: int, state: Any, like: dict[str, Any] | None = None) -> Checkpoint:
        """The checkpoint of one round; raises ``InputError`` where it cannot be used."""
        path, like = self.path(number), like or {}
        refused = f"cannot resume from {path}"
        try:
            arrays, meta = archive.read_unchecked(path)
            if meta.get("format") != FORMAT:
                raise InputError(f"{refused}: it has format {meta.get('format')!r:.40}, not {FORMAT}")
            archive.verify(arrays, meta)
            position, counts = append_log.Position(*meta["history"]), meta["counts"]
            if differing := difference(meta["fingerprint"], self.fingerprint):
                raise InputError(f"{refused}, it is of another run: {'; '.join(differing)}")
            lists: Lists = {name: [] for name in like}
            tree = archive.restore_tree("state", arrays, state, same_shape=True)
            checkpoint = Checkpoint(int(meta["round"]), tree, lists, meta["notes"])
            for name, item in append_log.read(self.folder / HISTORY, position):
                lists[name].append(archive.restore_tree("", item, like[name], same_shape=False))
            if {name: len(items) for name, items in lists.items()} != {**dict.fromkeys(like, 0), **counts}:
                raise DamagedFile(f"its history has other lengths than {words(counts)}")
        except DamagedFile as error:
            raise InputError(f"{refused}: {error}; remove the file to go on from the one before it") from error
        except InputError:
            raise
        except Exception as error:  # a text that says what no checkpoint says
            raise InputError(f"{refused}: it is no checkpoint ({type(error).__name__}: {words(error)})") from error
        self._position, self._counts = position, counts
        return checkpoint
