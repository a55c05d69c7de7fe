"""Checkpoints: after each round, one file, written whole or not at all; the newest few are kept.

A file is an archive of every array that the next round needs, and a text: the format, the run's fingerprint, and how
much of the history belongs to it. Lists that only grow are in files of their own, ``history-00000000`` and so on
(``append_log``), to which each round appends first. Random keys are not stored: they come from (seed, client, step).

What decides where a run goes on is the newest checkpoint that its history knows. A file that somebody has put there, of
another run or under another name, is left alone and said. A checkpoint is refused when it is cut short, of another
format or of a run with other settings, with what differs. A damaged segment of the history is refused by its own name;
once it is given up, the run goes on, and the figures that were in it are unknown.

The folder is locked while a run works in it. Its files are for nobody else to read: they hold the states of clients.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from profl.checks import InputError, words
from profl.storage import append_log, archive
from profl.storage.append_log import GIVEN_UP, DamagedSegment, Log, Position
from profl.storage.archive import DamagedFile
from profl.storage.atomic import atomic, check_plain, make_folder
from profl.storage.fingerprint import difference
from profl.storage.lock import Lock
from profl.storage.paths import check_folder

FORMAT = 7
KEEP = 3
log = logging.getLogger("profl")
_NAME = re.compile(r"round-(\d{8})\.npz")

Lists = dict[str, list[Any]]
"""Lists that only grow, by name; the items of each are pytrees of one structure, None for one that is lost."""


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
        self.notes: tuple[str, ...] = ()  # what was odd about the folder, in sentences
        self._lock: Lock | None = None
        self._run = uuid.uuid4().hex  # tells the files of this run from those of any other
        self._position, self._counts = append_log.START, dict[str, int]()
        self._appended = False
        self._strays: set[int] = set()  # rounds whose files somebody else has put here
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
        found = {int(match[1]) for file in files if (match := _NAME.fullmatch(file.name))}
        return sorted(found - self._strays)

    def path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.npz"

    def save(
        self, number: int, state: Any, lists: Mapping[str, Sequence[Any]] | None = None, notes: Any = None
    ) -> None:
        """Write the checkpoint of a round, then remove the oldest beyond ``KEEP``; of the lists, only what is new.

        ``notes`` is a small dict of what JSON knows.
        """
        known = self._counts
        new = [
            (name, archive.named_arrays("", item))
            for name, items in (lists or {}).items()
            for item in items[known.get(name, 0) :]
        ]
        check_plain(self.path(number))
        try:
            if lists is not None:
                if not self._appended:
                    append_log.remove_behind(self.folder, self._position)
                    self._appended = True
                self._position = append_log.append(self.folder, self._run, self._position, known, new, number)
                self._counts = {name: len(items) for name, items in lists.items()}
            meta = {"format": FORMAT, "round": number, "run": self._run, "fingerprint": self.fingerprint}
            meta |= {"history": [*self._position], "counts": self._counts, "notes": notes or {}}
            with atomic(self.path(number), private=True) as temporary:
                archive.write(temporary, archive.named_arrays("state", state), meta)
        except OSError as error:
            raise OSError(
                error.errno,
                f"round {number} could not be kept, the checkpoints before it can be gone on from: {error.strerror}",
                str(self.folder),
            ) from error
        self._strays.discard(number)
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
        if not numbers:
            return None
        history = Log(self.folder)
        run = self._run_of(history, numbers)
        marks = history.marks()
        for number in reversed(numbers):
            check_plain(self.path(number))
            if number in marks or self._belongs(number, run, history.knows_its_end):
                self._note_strays()
                return self._load(number, state, like or {}, history, run)
            self._strays.add(number)
        self._note_strays()
        raise InputError(
            f"{self.folder} holds no checkpoint that its history knows: remove {self.path(numbers[-1]).name} to begin "
            "anew, or choose another folder"
        )

    def load(self, number: int, state: Any) -> Checkpoint:
        """The checkpoint of one round, without lists; raises ``InputError`` where it cannot be used."""
        return self._load(number, state, {}, None, None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _run_of(self, history: Log, numbers: list[int]) -> str | None:
        """The run that the folder is of: what the history says, else what all its checkpoints say."""
        if history.run is not None:
            return history.run
        stated = {number: meta.get("run") for number in numbers if (meta := self._text(number)) is not None}
        if len(set(stated.values())) > 1:
            raise InputError(
                f"{self.folder} holds checkpoints of several runs, and no history that says whose it is: leave only "
                "those of one run there"
            )
        return next(iter(stated.values()), None)

    def _text(self, number: int) -> dict[str, Any] | None:
        """The text of a checkpoint of this format; None where it cannot be read."""
        try:
            _, meta = archive.read(self.path(number))
        except DamagedFile:
            return None
        return meta if meta.get("format") == FORMAT else None

    def _belongs(self, number: int, run: str | None, known: bool) -> bool:
        """Whether a file that the history does not have may all the same be a checkpoint of this run.

        One that can be read says so; of one that cannot, a history that knows its end would know.
        """
        meta = self._text(number)
        if meta is None:
            return not known
        return meta.get("round") == number and run in (None, meta.get("run"))

    def _note_strays(self) -> None:
        if self._strays:
            names = ", ".join(self.path(number).name for number in sorted(self._strays))
            self._note(f"{names} in the checkpoint folder is none that this run wrote, and was left alone")

    def _note(self, sentence: str) -> None:
        self.notes = (*self.notes, f"{sentence}.")
        log.warning("%s: %s", self.folder, sentence)

    def _load(self, number: int, state: Any, like: dict[str, Any], history: Log | None, run: str | None) -> Checkpoint:
        path = self.path(number)
        refused = f"cannot resume from {path}"
        try:
            arrays, meta = archive.read_unchecked(path)
            if meta.get("format") != FORMAT:
                raise InputError(f"{refused}: it has format {meta.get('format')!r:.40}, not {FORMAT}")
            archive.verify(arrays, meta)
            position, counts = append_log.Position(*meta["history"]), meta["counts"]
            if differing := difference(meta["fingerprint"], self.fingerprint):
                raise InputError(f"{refused}, it is of another run: {'; '.join(differing)}")
            if meta["round"] != number or run not in (None, meta["run"]):
                raise DamagedFile(f"it is round {words(meta['round'])} of another run")
            tree = archive.restore_tree("state", arrays, state, same_shape=True)
            lists = {} if history is None else self._lists(path, history, position, counts, like)
            self._position, self._counts, self._run = position, counts, str(meta["run"])
            return Checkpoint(number, tree, lists, meta["notes"])
        except DamagedFile as error:
            raise InputError(f"{refused}: {error}; remove the file to go on from the one before it") from error
        except InputError:
            raise
        except Exception as error:  # a text that says what no checkpoint says
            raise InputError(f"{refused}: it is no checkpoint ({type(error).__name__}: {words(error)})") from error

    def _lists(
        self, path: Path, history: Log, position: Position, counts: dict[str, int], like: dict[str, Any]
    ) -> Lists:
        """The lists up to a checkpoint; a damaged segment is refused by its own name."""
        if not set(counts) <= set(like):
            raise DamagedFile(f"its history has other lists than {', '.join(like)}: {words(counts)}")
        if not history.goes_on_to(position):
            file = append_log.path_of(self.folder, position.segment).name
            raise InputError(
                f"cannot resume from {path}: it follows more of the history than is there, which ends with round "
                f"{max(history.marks(), default=0)}. Put the rest of {file} back, or give what is left of it the name "
                f"{file}{GIVEN_UP} to go on without its figures; if the checkpoint is none of this run's, remove it"
            )
        restore = partial(archive.restore_tree, "", same_shape=False)
        try:
            found = history.lists(position, {**dict.fromkeys(like, 0), **counts})
            lists: Lists = {
                name: [None if item is None else restore(item, like=like[name]) for item in items]
                for name, items in found.items()
            }
        except DamagedSegment as error:
            raise InputError(
                f"cannot resume from {self.folder}: {error}. The checkpoints are whole: put a copy of that file "
                f"back, or give what is left of it the name {error.path.name}{GIVEN_UP} to go on without its figures"
            ) from error
        for name, items in lists.items():
            if lost := items.count(None):
                self._note(
                    f"the history in the checkpoint folder is damaged: {lost} of {len(items)} {name} are unknown, and "
                    "totals do not count what they held"
                )
        return lists
