"""The log of ``train``: in memory, or with ``checkpoint=`` a database in a folder that one run at a time works in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from profl.campaign.events import Event
from profl.campaign.store import MemoryStore, Store
from profl.checks import InputError
from profl.parts.privacy import Privacy, PrivacyAccount
from profl.run.live.protection import is_jacobian_estimate
from profl.run.live.state import Incident, LiveState
from profl.run.plan import CompiledPlan
from profl.storage.atomic import check_plain, make_folder
from profl.storage.lock import Lock
from profl.storage.paths import check_folder

FILE = "campaign.db"


@contextmanager
def open_store(folder: str | os.PathLike[str] | None) -> Iterator[Store]:
    """The log in a folder, for its owner alone; None keeps it in memory."""
    if folder is None:
        yield MemoryStore()
        return
    from profl.campaign.database import sqlite_file
    from profl.campaign.sql import SqlStore

    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(f"checkpoint must be a folder, got the file {place}")
    check_folder("checkpoint", place)
    make_folder(place, private=True)
    lock = Lock(place)
    try:
        begun = (place / FILE).exists()  # beside it, what somebody has put there decides nothing
        if not begun and (old := sorted(place.glob("round-*.npz"))):
            raise InputError(
                f"{place} holds {old[-1].name}, a checkpoint of simulate or of an earlier version's train: choose "
                "another folder, or finish that run with the version that began it"
            )
        file = place / FILE
        for beside in ("", "-wal", "-shm", "-journal"):
            check_plain(place / f"{FILE}{beside}")
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))  # SQLite's other files follow
        with closing(SqlStore(sqlite_file(file), "train", create=True)) as store:
            yield store
    finally:
        lock.release()


def client_names(count: int) -> list[str]:
    """What the clients of ``train`` are called in its log."""
    return [f"client {number}" for number in range(count)]


def new_incidents(before: LiveState, after: LiveState) -> Sequence[Incident]:
    """What is to be told of the last round."""
    fresh = [alert.incident for alert in after.alerts[len(before.alerts) :]]
    return [*after.incidents[len(before.incidents) :], *fresh]


def privacy_account(privacy: Privacy, plan: CompiledPlan, closed: Iterable[Event]) -> PrivacyAccount:
    """What the reports that the log holds have spent."""
    reports = np.zeros(plan.settings.clients, np.int64)
    for event in closed:
        reports[event.body["noised"]] += 1
    return privacy.account(reports, any(is_jacobian_estimate(entry) for entry in plan.report.values()))
