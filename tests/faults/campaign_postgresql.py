"""The schedules of ``campaign`` on PostgreSQL, with a server that is started for them."""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from tests.faults import campaign
from tests.faults.campaign import schedule as schedule
from tests.postgresql import server

FULL = """
CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON profl_events EXECUTE FUNCTION is_full();
"""


class Server:
    """A database of a server, which can be seen cut off, full, locked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin = psycopg.connect(url, autocommit=True)

    def clear(self) -> None:
        self.admin.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def die(self, raw: Any) -> None:
        """Cut the socket, as the system does when a process ends."""
        with socket.socket(fileno=os.dup(_driver(raw).pgconn.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)

    def bury(self) -> None:
        """Wait until the server has noticed."""
        others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> %s"
        while self.admin.execute(others, [self.admin.info.backend_pid]).fetchone() != (0,):
            time.sleep(0.002)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with psycopg.connect(self.url) as other:
            other.execute("LOCK TABLE profl_events IN ACCESS EXCLUSIVE MODE")
            yield

    @contextmanager
    def full(self, number: int) -> Iterator[None]:
        made = self.admin.execute("SELECT to_regclass('profl_events')").fetchone() != (None,)
        if made:
            self.admin.execute(FULL)
        try:
            yield
        finally:
            if made:
                self.admin.execute("DROP FUNCTION is_full CASCADE")

    def lose(self, raw: Any, written: bool) -> None:
        """End the connection from the server's side, after the commit or before it; the process hears the same."""
        self.admin.execute("SELECT pg_terminate_backend(%s, 5000)", [_driver(raw).info.backend_pid])
        _driver(raw).execute("SELECT 1") if written else _driver(raw).commit()


def _driver(raw: Any) -> Any:
    return getattr(raw, "driver_connection", raw)


@cache
def database() -> Server:
    """The server of this process; it ends with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return Server(stack.enter_context(server()))


def run(seed: int, folder: Path) -> str:
    database().clear()
    return campaign.run(seed, folder, database())
