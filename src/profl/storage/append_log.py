"""An append-only log in segments: lists that only grow, in files ``history-00000000``, ``history-00000001``, ...

A segment is a file of some hundred kilobytes. Its first record, the head, states which run it belongs to, how long each
list was before it, and the hash at the end of the segment before it. Each record is its length (8 bytes), the sha256 of
all before it and of itself (32 bytes), and its content: a line of JSON with the list that it belongs to and the names,
types and shapes of its arrays, and their bytes. What one call of ``append`` writes ends with a mark, the number of the
round. The checkpoint of a round, written after it, holds the ``Position`` of that mark: a record that a crash cut off,
or that no checkpoint knows of, is overwritten.

A damaged byte costs the records of one segment at most: the others verify by themselves, and know where in the lists
they stand. A segment that somebody has renamed to ``history-00000003.damaged`` is given up: its records are unknown.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profl.checks import words
from profl.storage.archive import DamagedFile
from profl.storage.atomic import check_plain, sync_folder

HEAD = 40
SEGMENT = 2**18
"""Bytes after which a segment is full: about what one damaged byte can cost."""
GIVEN_UP = ".damaged"
_NAME = re.compile(r"history-(\d{8})")

Arrays = dict[str, np.ndarray]


class Position(NamedTuple):
    """The end of the part of the log that counts."""

    segment: int
    size: int  # bytes of that segment
    sha256: str


START = Position(0, 0, "0" * 64)


class Record(NamedTuple):
    """A whole record of a segment."""

    end: int  # bytes from the segment's begin
    sha256: str
    content: bytes

    @property
    def is_mark(self) -> bool:
        return self.content.startswith(b'["", ')


class Segment(NamedTuple):
    """A file of the log."""

    number: int
    run: str
    counts: dict[str, int]  # how long each list was before it
    before: str  # the hash at the end of the segment before it
    records: list[Record]  # those that are whole, from the first on, without the head
    damage: str  # what is wrong with the bytes behind them; "" where there are none


def path_of(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"history-{number:08d}"


def numbers_of(folder: Path) -> list[int]:
    """The segments that are there, oldest first."""
    files = folder.iterdir() if folder.is_dir() else []
    return sorted(int(match[1]) for file in files if (match := _NAME.fullmatch(file.name)))


def append(
    folder: Path, run: str, position: Position, counts: dict[str, int], new: list[tuple[str, Arrays]], mark: int
) -> Position:
    """The new end of the log, after ``new`` records and the ``mark`` are written to the disk behind ``position``.

    ``counts`` says how long each list was before.
    """
    full = position.size >= SEGMENT or (position.size > 0 and not path_of(folder, position.segment).exists())
    segment, size, chain = position
    if full:
        _cut(path_of(folder, segment), size)  # what a crash left behind its end would count as damage
        segment, size = segment + 1, 0
    contents = [_pack(name, arrays) for name, arrays in new] + [_line(["", mark])]
    if size == 0:
        contents.insert(0, _line([run, counts, chain]))
    written, end = bytearray(), bytes.fromhex(chain)
    for content in contents:
        end = hashlib.sha256(end + content).digest()
        written += len(content).to_bytes(8, "little") + end + content
    path = path_of(folder, segment)
    check_plain(path)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.seek(size)
        file.write(written)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    if size == 0:
        sync_folder(folder)
    return Position(segment, size + len(written), end.hex())


def remove_behind(folder: Path, position: Position) -> None:
    """Remove the segments of rounds that a run has gone back behind."""
    for number in reversed(numbers_of(folder)):
        if number > position.segment:
            path_of(folder, number).unlink()


def _cut(path: Path, size: int) -> None:
    if path.exists() and path.stat().st_size > size:
        with open(path, "rb+") as file:
            file.truncate(size)
            os.fsync(file.fileno())


class DamagedSegment(DamagedFile):
    """A file of the log that is not what was written, or is not there; ``path`` is its name."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path.name} {what}")
        self.path = path


class Log:
    """The log in a folder, as it is on the disk; nothing is refused before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = {number: _read_segment(path_of(folder, number), number) for number in numbers_of(folder)}

    @property
    def run(self) -> str | None:
        """The run that wrote it: that of its first segment with a whole head; None where there is none."""
        return next((one.run for one in self.segments.values() if one.run), None)

    @property
    def knows_its_end(self) -> bool:
        """Whether there is a log, and nothing at its end is damaged or given up."""
        return bool(self.segments) and not self.segments[self.last].damage and not self.is_given_up(self.last + 1)

    @property
    def last(self) -> int:
        """The last segment; -1 where there is none."""
        return max(self.segments, default=-1)

    def marks(self) -> dict[int, Position]:
        """The end of the log at each round that it knows."""
        ends = {}
        for number, segment in self.segments.items():
            for record in segment.records:
                if record.is_mark:
                    ends[int(json.loads(record.content)[1])] = Position(number, record.end, record.sha256)
        return ends

    def goes_on_to(self, position: Position) -> bool:
        """Whether ``position`` lies in the log, or where bytes of it are damaged or were given up."""
        number, size, _ = position
        known = self.segments.get(number)
        if known is None:
            return not self.knows_its_end or self.is_given_up(number)
        return bool(known.damage) or any(record.end == size for record in known.records)

    def is_given_up(self, number: int) -> bool:
        path = path_of(self.folder, number)
        return not path.exists() and path.with_name(path.name + GIVEN_UP).exists()

    def lists(self, position: Position, counts: dict[str, int]) -> dict[str, list[Arrays | None]]:
        """The lists up to ``position``, where they have ``counts`` items; None for those that were given up.

        Raises ``DamagedSegment`` where a file is not what was written.
        """
        found: dict[str, dict[int, Arrays]] = {name: {} for name in counts}
        given_up = 0
        for number in range(position.segment + 1 if position.size else 0):
            if self.is_given_up(number):
                given_up += 1
                continue
            path = path_of(self.folder, number)
            segment = self._checked(number, position)
            places = dict(segment.counts)
            for record in segment.records:
                if record.is_mark:
                    continue
                if number == position.segment and record.end > position.size:
                    break
                of, arrays = _unpack(path, record.content)
                if of not in found:
                    raise DamagedSegment(path, f"holds {words(of)}, which is none of {', '.join(counts)}")
                place = places.get(of, 0)
                found[of][place], places[of] = arrays, place + 1
        for of, items in found.items():
            if max(items, default=-1) >= counts[of] or (len(items) < counts[of] and not given_up):
                raise DamagedFile(
                    f"the history holds {len(items)} {words(of)}, the checkpoint says {words(counts[of])}"
                )
        return {of: [items.get(place) for place in range(counts[of])] for of, items in found.items()}

    def _checked(self, number: int, position: Position) -> Segment:
        """A segment; raises ``DamagedSegment`` unless the part of it that counts is what was written."""
        path, segment = path_of(self.folder, number), self.segments.get(number)
        if segment is None:
            raise DamagedSegment(path, "is missing")
        if number < position.segment:
            after = self.segments.get(number + 1)
            end = segment.records[-1].sha256 if segment.records else ""
            if segment.damage:
                raise DamagedSegment(path, segment.damage)
            if after is not None and after.before and end != after.before:
                raise DamagedSegment(path, "is cut short or of another time: the next one follows other records")
        elif not any(record.end == position.size for record in segment.records):
            size = path.stat().st_size
            short = f"is cut short: {size} of {position.size} bytes are left"
            raise DamagedSegment(path, short if size < position.size else segment.damage or "has other records")
        elif not any(record.sha256 == position.sha256 for record in segment.records):
            raise DamagedSegment(path, "has other records than the checkpoint follows")
        if segment.run != self.run:
            raise DamagedSegment(path, "is of another run")
        return segment


def _read_segment(path: Path, number: int) -> Segment:
    """What is whole of a segment."""
    check_plain(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        return Segment(number, "", {}, "", [], f"cannot be read: {words(error.strerror)}")
    try:
        length = int.from_bytes(content[:8], "little")
        run, counts, before = json.loads(content[HEAD : HEAD + length])
        chain = hashlib.sha256(bytes.fromhex(before) + content[HEAD : HEAD + length]).digest()
        if chain != content[8:HEAD]:
            raise ValueError
        counts = {str(name): int(count) for name, count in counts.items()}
    except (ValueError, TypeError, AttributeError):
        return Segment(number, "", {}, "", [], "is damaged after 0 bytes, in its head")
    records: list[Record] = []
    place = HEAD + length
    while place < len(content):
        end = place + HEAD + int.from_bytes(content[place : place + 8], "little")
        record = content[place + HEAD : end]
        chain = hashlib.sha256(chain + record).digest()
        if end > len(content) or chain != content[place + 8 : place + HEAD]:
            damage = f"is damaged after {place} bytes, in record {len(records) + 1}"
            return Segment(number, run, counts, before, records, damage)
        records.append(Record(end, chain.hex(), record))
        place = end
    return Segment(number, run, counts, before, records, "")


def _line(content: Any) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _pack(name: str, arrays: Arrays) -> bytes:
    kinds = [[place, _kind(array.dtype), list(array.shape)] for place, array in arrays.items()]
    return _line([name, kinds]) + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def _kind(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind == "V" else dtype.str


def _unpack(path: Path, record: bytes) -> tuple[str, Arrays]:
    try:
        head, _, rest = record.partition(b"\n")
        name, kinds = json.loads(head)
        arrays, place = {}, 0
        for where, kind, shape in kinds:
            dtype = np.dtype(kind)
            count = math.prod(map(int, shape))
            if dtype.hasobject or min(map(int, shape), default=0) < 0 or place + count * dtype.itemsize > len(rest):
                raise DamagedFile(f"an array of {words(kind)} {words(shape)} cannot be in {len(rest)} bytes")
            array = np.frombuffer(rest, dtype, count, place) if dtype.itemsize and count else np.zeros(count, dtype)
            arrays[str(where)] = array.reshape(shape).copy()
            place += count * dtype.itemsize
        return str(name), arrays
    except Exception as error:
        raise DamagedSegment(path, f"holds what is no record: {type(error).__name__}: {words(error)}") from error
