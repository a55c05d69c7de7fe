"""The database of a campaign in a folder, which can be seen dying, full, locked."""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class SqliteFiles:
    """A database in a folder, which can be seen dying, full, locked."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / "prices.db"
        self.url = f"sqlite:///{self.file}"

    def die(self, connection: Any) -> None:
        """Keep what lies on the disk now; what the dying process does after this is undone by ``bury``."""
        shutil.rmtree(self.folder / "image", ignore_errors=True)
        (self.folder / "image").mkdir()
        for file in self.folder.glob("prices.db*"):
            if not file.name.endswith("-shm"):  # shared memory of processes, of which none is left
                shutil.copy2(file, self.folder / "image")

    def bury(self) -> None:
        if (self.folder / "image").exists():
            for file in self.folder.glob("prices.db*"):
                file.unlink()
            for file in (self.folder / "image").iterdir():
                shutil.move(file, self.folder)
            (self.folder / "image").rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        other = sqlite3.connect(self.file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()

    @contextmanager
    def full(self, number: int) -> Iterator[None]:
        """So many kilobytes are left: of the file to which SQLite writes ahead, which another process has open."""
        other = sqlite3.connect(self.file)
        other.execute("SELECT count(*) FROM sqlite_master").fetchone()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * number, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            other.close()

    def lose(self, connection: Any, written: bool) -> None:
        """There is no connection to lose; a commit that fails has not been written."""
        if not written:
            raise sqlite3.OperationalError("disk I/O error")
