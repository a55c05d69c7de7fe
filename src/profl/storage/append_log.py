"""An append-only log: lists that only grow, in one file.

Each record is its length (8 bytes), the sha256 of all before it and of itself (32 bytes), and its content: a line of
JSON with the list that it belongs to and the names, types and shapes of its arrays, and their bytes. The checkpoint of
a round, written after it, holds how many bytes of the file count and the sha256 up to there: a record that a crash cut
off, or that no checkpoint knows of, is overwritten.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from profl.checks import words
from profl.storage.archive import DamagedFile

HEAD = 40


class Position(NamedTuple):
    """The end of the part of the file that counts."""

    size: int
    sha256: str


START = Position(0, "0" * 64)


def append(path: Path, position: Position, new: list[tuple[str, dict[str, np.ndarray]]]) -> Position:
    """The new end of the log, after ``new`` records are written to the disk behind ``position``."""
    if not new:
        return position
    content, chain = bytearray(), bytes.fromhex(position.sha256)
    for name, arrays in new:
        record = _pack(name, arrays)
        chain = hashlib.sha256(chain + record).digest()
        content += len(record).to_bytes(8, "little") + chain + record
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.seek(position.size)
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    return Position(position.size + len(content), chain.hex())


def read(path: Path, position: Position) -> list[tuple[str, dict[str, np.ndarray]]]:
    """All records before ``position``; raises ``DamagedFile`` where they are not what was written."""
    if position.size == 0:
        return []
    try:
        with open(path, "rb") as file:
            content = file.read(position.size)
    except OSError as error:
        raise DamagedFile(f"{path.name} cannot be read: {words(error.strerror)}") from error
    if len(content) < position.size:
        raise DamagedFile(f"{path.name} is cut short: {len(content)} of {position.size} bytes are left")
    records: list[tuple[str, dict[str, np.ndarray]]] = []
    place, chain = 0, bytes.fromhex(START.sha256)
    while place < position.size:
        end = place + HEAD + int.from_bytes(content[place : place + 8], "little")
        record = content[place + HEAD : end]
        chain = hashlib.sha256(chain + record).digest()
        if end > position.size or chain != content[place + 8 : place + HEAD]:
            raise DamagedFile(f"{path.name} is damaged after {place} bytes, in record {len(records) + 1}")
        records.append(_unpack(path, record))
        place = end
    if chain.hex() != position.sha256:
        raise DamagedFile(
            f"{path.name} is of another run: its sha256 is {chain.hex()}, the checkpoint says {words(position.sha256)}"
        )
    return records


def _pack(name: str, arrays: dict[str, np.ndarray]) -> bytes:
    kinds = [[place, _kind(array.dtype), list(array.shape)] for place, array in arrays.items()]
    head = json.dumps([name, kinds]).encode() + b"\n"
    return head + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def _kind(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind == "V" else dtype.str


def _unpack(path: Path, record: bytes) -> tuple[str, dict[str, np.ndarray]]:
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
        raise DamagedFile(f"{path.name} holds what is no record: {type(error).__name__}: {words(error)}") from error
