"""Transactions in a campaign's database: SQLite as the embedded default, PostgreSQL by its URL, through SQLAlchemy.

A connection lives as long as one transaction. Between two calls nothing is held: the process may fork, sleep or go on
in another thread, a server may restart, and a file may be copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profl.campaign.store import ConnectionLost, DatabaseError
from profl.checks import InputError, words

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
except ImportError as error:
    raise ImportError("a campaign's database needs SQLAlchemy: pip install 'profl[campaign]'") from error

BUSY_SECONDS = 30
"""How long a transaction waits for another process's."""


class Database:
    """A database and its transactions.

    Args:
      url: such as ``sqlite:///prices.db`` or ``postgresql://user@host/name``.
      create: whether SQLite may make the file.
    """

    def __init__(self, url: str | sa.URL, create: bool) -> None:
        self._engine = make_engine(url)
        self.dialect = self._engine.dialect.name
        self.shown = self._engine.url.render_as_string(hide_password=True)
        self._file = _file(self._engine.url)
        if not create and self._is_gone():
            raise InputError(f"there is no database {self._file}: make the campaign first")
        self._opened = False

    @contextmanager
    def transaction(self, write: bool = False) -> Iterator[sa.Connection]:
        """A transaction; what the database reports is one sentence of a ``DatabaseError``."""
        if self._opened and self._is_gone():  # connecting would make an empty one
            raise DatabaseError(f"the database {self._file} is gone: nothing was written")
        try:
            with self._engine.connect() as connection:
                self._opened = True
                if write:
                    connection = connection.execution_options(profl_write=True)
                with connection.begin():
                    yield connection
        except IntegrityError:
            raise
        except DBAPIError as error:
            said = words(error.orig)
            if error.connection_invalidated:
                raise ConnectionLost(f"the connection to the database {self.shown} was lost: {said}") from error
            doing = "written" if write else "read"
            raise DatabaseError(f"the database {self.shown} could not be {doing}: {said}") from error

    def lock_setting_up(self, connection: sa.Connection) -> None:
        """Make no tables while another process does; in SQLite a transaction that writes is alone anyway."""
        if self.dialect == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('profl'))")

    def close(self) -> None:
        self._engine.dispose()

    def _is_gone(self) -> bool:
        return self._file is not None and not self._file.exists()


def sqlite_file(path: Path) -> sa.URL:
    """The URL of a file, whatever signs are in its name."""
    return sa.URL.create("sqlite", database=str(path.absolute()))


def make_engine(url: str | sa.URL) -> sa.Engine:
    """The engine for a URL; SQLite writes ahead, waits for others, and loses nothing to a power cut."""
    try:
        address = _address(url)
        engine = sa.create_engine(address, poolclass=sa.NullPool, **_settings(address))
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        shown = words(str(url)) if "@" not in str(url) else "another one"  # it may hold a password
        raise InputError(
            f"the database must be a URL such as sqlite:///prices.db or postgresql://user@host/name, got {shown}: "
            f"{words(error).replace(str(url), shown)}"
        ) from error
    except ImportError as error:
        raise ImportError(f"{str(url).split(':')[0]} needs {error.name}: pip install 'profl[postgresql]'") from error
    set_up = _set_up_sqlite if engine.dialect.name == "sqlite" else _set_up_postgresql
    set_up(engine)
    return engine


def _address(url: str | sa.URL) -> sa.URL:
    """The URL in full: with the driver that ``profl[postgresql]`` brings, and a file's place from the root."""
    address = sa.make_url(url)
    backend, driver = address.get_backend_name(), address.drivername
    if backend not in ("sqlite", "postgresql", "postgres"):
        raise ArgumentError(f"campaigns are kept in SQLite or PostgreSQL, not in {backend}")
    if driver in ("postgresql", "postgres"):
        return address.set(drivername="postgresql+psycopg")
    if address.get_dialect().is_async:
        raise ArgumentError(f"{driver} is for asynchronous programs: leave the driver's name out")
    name = address.database or ":memory:"
    if backend == "sqlite" and (":memory:" in name or address.query.get("mode") == "memory"):
        raise ArgumentError("a database in memory keeps nothing; url=None is a campaign that need not be kept")
    if backend == "sqlite" and not name.startswith("file:"):
        return address.set(database=str(Path(name).absolute()))
    return address


def _settings(address: sa.URL) -> dict[str, Any]:
    """What is asked for of PostgreSQL, whose administrator may have chosen other defaults."""
    return {} if address.get_backend_name() == "sqlite" else {"isolation_level": "READ COMMITTED"}


def _set_up_sqlite(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def connect(raw: Any, _: Any) -> None:
        raw.isolation_level = None  # transactions begin below, and not where the driver thinks fit
        for setting in (
            f"busy_timeout={round(1000 * BUSY_SECONDS)}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            raw.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("profl_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _set_up_postgresql(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * BUSY_SECONDS)}")


def _file(url: sa.URL) -> Path | None:
    """The file of a database, where it is a plain one."""
    plain = url.get_backend_name() == "sqlite" and not str(url.database).startswith("file:")
    return Path(str(url.database)) if plain else None
