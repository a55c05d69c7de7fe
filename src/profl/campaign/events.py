"""The events of a campaign: what happened, in order, each chained to the one before it by its hash.

    opened      the campaign was made: clients, settings, fingerprint of problem and method; its data: the first model
    history     deployments of the past were told, once, before any of its own; its data: the table, and slopes from it
    asked       a deployment was asked for; its data: the model
    told        its data came in; its data: the batch
    skipped     no data will come of it
    withdrawn   it was never put to use
    closed      a round has ended: who counted, incidents, what is expected; its data: the new global model

The log is the truth. What is open, what was told and when are plain folds of it (``ledger``); the states of the method
are folds too (``fold``), which cost computing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from profl.checks import InputError
from profl.storage.hashes import sha256

VERSION = 1
"""Of the events that this version of profl writes; it reads these and older ones."""
KINDS = ("opened", "history", "asked", "told", "skipped", "withdrawn", "closed")
START = "0" * 64
"""The hash before the first event."""

Arrays = dict[str, np.ndarray]


class DamagedLog(InputError):
    """The log is not what was written."""


class Draft(NamedTuple):
    """An event that has not been written yet."""

    kind: str
    at: str  # UTC, ISO 8601
    body: dict[str, Any]  # what JSON knows
    deployment: int | None = None
    data: Arrays | None = None


class Event(NamedTuple):
    """An event of the log; its data are read only where they are needed."""

    seq: int  # 1, 2, ...
    kind: str
    version: int
    at: str
    deployment: int | None
    body: dict[str, Any]
    data_hash: str  # "" without data
    chain: str  # hash of the hash before it and of all above


class Sealed(NamedTuple):
    """An event and its data, ready to be written."""

    event: Event
    data: Arrays | None


def seal(drafts: Iterable[Draft], seq: int, chain: str) -> list[Sealed]:
    """The events after number ``seq``, whose hash is ``chain``."""
    sealed = []
    for draft in drafts:
        seq += 1
        data_hash = "" if draft.data is None else hash_arrays(draft.data)
        event = Event(seq, draft.kind, VERSION, draft.at, draft.deployment, draft.body, data_hash, "")
        chain = link(event, chain)
        sealed.append(Sealed(event._replace(chain=chain), draft.data))
    return sealed


def link(event: Event, before: str) -> str:
    """The hash that chains an event to the one before it."""
    fields = [event.seq, event.kind, event.version, event.at, event.deployment, event.body, event.data_hash]
    return hashlib.sha256(f"{before} {json.dumps(fields, sort_keys=True)}".encode()).hexdigest()


def verify(event: Event, seq: int, before: str) -> None:
    """Raise ``DamagedLog`` unless ``event`` follows event ``seq`` whose hash is ``before``."""
    if event.seq != seq + 1:
        raise DamagedLog(f"event {seq + 1} is missing")
    if event.version > VERSION or event.kind not in KINDS:
        raise DamagedLog(
            f"event {event.seq} ({event.kind}, version {event.version}) is of a newer profl: update profl to open it"
        )
    if link(event, before) != event.chain:
        raise DamagedLog(f"event {event.seq} ({event.kind}) was changed or damaged: its hash is another")


def verify_data(seq: int, arrays: Arrays, data_hash: str) -> Arrays:
    """The arrays, if their hash is the one that the event holds; else ``DamagedLog``."""
    if hash_arrays(arrays) != data_hash:
        raise DamagedLog(f"the data of event {seq} were changed or are damaged: their hash is another")
    return arrays


def hash_arrays(arrays: Arrays) -> str:
    """The hash of named arrays, whatever their order."""
    return sha256(sorted(arrays.items()))
