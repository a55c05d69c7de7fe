"""Lists that only grow, in one file to which what is new is appended.

Each record is its length (8 bytes), the sha256 of all before it and of itself (32 bytes), and its content: a line of
JSON with the list that it belongs to and the names, types and shapes of its arrays, and their bytes. How many bytes of
the file count, and the sha256 at that place, stands in the checkpoint of a round, which is written after it: a record
that a crash cut off, or that no checkpoint knows of, is overwritten.
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
from profl.storage.archive import Damaged

HEAD = 40


class Mark(NamedTuple):
    """How much of the file counts."""

    size: int
    sha256: str


START = Mark(0, "0" * 64)


def append(path: Path, mark: Mark, new: list[tuple[str, dict[str, np.ndarray]]]) -> Mark:
    """Write what is new after ``mark``, down to the disk; the new mark."""
    if not new:
        return mark
    content, chain = bytearray(), bytes.fromhex(mark.sha256)
    for name, arrays in new:
        record = _packed(name, arrays)
        chain = hashlib.sha256(chain + record).digest()
        content += len(record).to_bytes(8, "little") + chain + record
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.seek(mark.size)
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    return Mark(mark.size + len(content), chain.hex())


def read(path: Path, mark: Mark) -> list[tuple[str, dict[str, np.ndarray]]]:
    """All records before ``mark``; raises ``Damaged`` where they are not what was written."""
    if mark.size == 0:
        return []
    try:
        with open(path, "rb") as file:
            content = file.read(mark.size)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {words(error.strerror)}") from error
    if len(content) < mark.size:
        raise Damaged(f"{path.name} is cut short: {len(content)} of {mark.size} bytes are left")
    found: list[tuple[str, dict[str, np.ndarray]]] = []
    place, chain = 0, bytes.fromhex(START.sha256)
    while place < mark.size:
        end = place + HEAD + int.from_bytes(content[place : place + 8], "little")
        record = content[place + HEAD : end]
        chain = hashlib.sha256(chain + record).digest()
        if end > mark.size or chain != content[place + 8 : place + HEAD]:
            raise Damaged(f"{path.name} is damaged after {place} bytes, in record {len(found) + 1}")
        found.append(_unpacked(path, record))
        place = end
    if chain.hex() != mark.sha256:
        raise Damaged(
            f"{path.name} is of another run: its sha256 is {chain.hex()}, the checkpoint says {words(mark.sha256)}"
        )
    return found


def _packed(name: str, arrays: dict[str, np.ndarray]) -> bytes:
    kinds = [[place, _kind(array.dtype), list(array.shape)] for place, array in arrays.items()]
    head = json.dumps([name, kinds]).encode() + b"\n"
    return head + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def _kind(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.kind == "V" else dtype.str


def _unpacked(path: Path, record: bytes) -> tuple[str, dict[str, np.ndarray]]:
    try:
        head, _, rest = record.partition(b"\n")
        name, kinds = json.loads(head)
        arrays, place = {}, 0
        for where, kind, shape in kinds:
            dtype = np.dtype(kind)
            count = math.prod(map(int, shape))
            if dtype.hasobject or min(map(int, shape), default=0) < 0 or place + count * dtype.itemsize > len(rest):
                raise Damaged(f"an array of {words(kind)} {words(shape)} cannot be in {len(rest)} bytes")
            found = np.frombuffer(rest, dtype, count, place) if dtype.itemsize and count else np.zeros(count, dtype)
            arrays[str(where)] = found.reshape(shape).copy()
            place += count * dtype.itemsize
        return str(name), arrays
    except Exception as error:
        raise Damaged(f"{path.name} holds what is no record: {type(error).__name__}: {words(error)}") from error
