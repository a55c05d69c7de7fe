"""Checkpoints: after each round, one file, written whole or not at all; the newest few are kept.

A file is an archive of every array that the next round needs, and a text: the format, what the run is (its
fingerprint), and how much of the history belongs to it. What only grows is in a file of its own, ``history``, to which
each round appends, and is written first. Random keys are in none: they come from (seed, client, step). A checkpoint is
refused when it is cut short, of another format or of another run, with what differs.

The folder is locked while a run works in it. Its files are for nobody else to read: they hold the states of clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.checks import InputError, words
from profl.storage import archive, history
from profl.storage.archive import Damaged
from profl.storage.atomic import atomic, make_folder
from profl.storage.fingerprint import difference
from profl.storage.lock import Lock
from profl.storage.places import check_folder

FORMAT = 6
KEEP = 3
HISTORY = "history"
_NAME = re.compile(r"round-(\d{8})\.npz")

Lists = dict[str, list[Any]]
"""Lists that only grow, by name; the items of each are pytrees of arrays of one structure."""


class Saved(NamedTuple):
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
        self._mark, self._counts = history.START, dict[str, int]()
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
            for left_over in self.folder.glob(".round-*.npz"):  # of a process that was killed while it wrote
                left_over.unlink(missing_ok=True)

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
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(int(match[1]) for file in found if (match := _NAME.fullmatch(file.name)))

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
        new = [(name, _arrays("", one)) for name, items in lists.items() for one in items[known.get(name, 0) :]]
        try:
            self._mark = history.append(self.folder / HISTORY, self._mark, new)
            self._counts = {name: len(items) for name, items in lists.items()}
            meta = {"format": FORMAT, "round": number, "fingerprint": self.fingerprint}
            meta |= {"history": [*self._mark], "counts": self._counts, "notes": notes or {}}
            with atomic(self.path(number), private=True) as temporary:
                archive.write(temporary, _arrays("state", state), meta)
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

    def newest(self, state: Any, like: dict[str, Any] | None = None) -> Saved | None:
        """The newest checkpoint, in the structure of ``state`` and, item by item, of ``like``; None if there is none.

        Arrays of ``state`` must have the shapes of the given ones; those of the lists may have any.
        """
        numbers = self.numbers()
        return self.load(numbers[-1], state, like) if numbers else None

    def load(self, number: int, state: Any, like: dict[str, Any] | None = None) -> Saved:
        """The checkpoint of one round; raises ``InputError`` where it cannot be used."""
        path, like = self.path(number), like or {}
        refused = f"cannot resume from {path}"
        try:
            arrays, meta = archive.unsealed(path)
            if meta.get("format") != FORMAT:
                raise InputError(f"{refused}: it has format {meta.get('format')!r:.40}, not {FORMAT}")
            archive.check(arrays, meta)
            mark, counts = history.Mark(*meta["history"]), meta["counts"]
            if differing := difference(meta["fingerprint"], self.fingerprint):
                raise InputError(f"{refused}, it is of another run: {'; '.join(differing)}")
            lists: Lists = {name: [] for name in like}
            found = Saved(int(meta["round"]), _tree("state", arrays, state, same_shape=True), lists, meta["notes"])
            for name, item in history.read(self.folder / HISTORY, mark):
                lists[name].append(_tree("", item, like[name], same_shape=False))
            if {name: len(items) for name, items in lists.items()} != {**dict.fromkeys(like, 0), **counts}:
                raise Damaged(f"its history has other lengths than {words(counts)}")
        except Damaged as error:
            raise InputError(f"{refused}: {error}; remove the file to go on from the one before it") from error
        except InputError:
            raise
        except Exception as error:  # a text that says what no checkpoint says
            raise InputError(f"{refused}: it is no checkpoint ({type(error).__name__}: {words(error)})") from error
        self._mark, self._counts = mark, counts
        return found


def _arrays(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _tree(prefix: str, arrays: dict[str, np.ndarray], like: Any, same_shape: bool) -> Any:
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [prefix + jax.tree_util.keystr(place) for place, _ in wanted]
    if set(names) != set(arrays):
        raise Damaged(f"the {prefix or HISTORY} in it has other entries than this run's")
    for name, (_, leaf) in zip(names, wanted, strict=True):
        if same_shape and arrays[name].shape != np.shape(leaf):
            raise Damaged(f"{name} has shape {arrays[name].shape}, this run's {np.shape(leaf)}")
        if same_shape and arrays[name].dtype != getattr(leaf, "dtype", arrays[name].dtype):
            raise Damaged(f"{name} has dtype {arrays[name].dtype}, this run's {leaf.dtype}")
    return jax.tree.unflatten(structure, [arrays[name] for name in names])
