"""A campaign's log in a database, through SQLAlchemy Core: SQLite as the embedded default, PostgreSQL by its URL.

    meta        the version of the tables
    campaigns   one row each, so that a database can hold several
    events      the log; (campaign, seq) is its key, so two processes cannot both write the next event
    snapshots   a cache of states; may be deleted

An append is one transaction. Two processes are kept apart by the key alone: who comes second gets ``Conflict``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profl.campaign.events import Arrays, DamagedLog, Event, Sealed, verify_data
from profl.campaign.store import Conflict, DatabaseError
from profl.checks import InputError, words
from profl.storage import archive
from profl.storage.archive import DamagedFile

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
except ImportError as error:
    raise ImportError("a campaign's database needs SQLAlchemy: pip install 'profl[campaign]'") from error

SCHEMA = 1
"""The version of the tables; ``MIGRATIONS[n]`` brings a database of version n to n + 1."""
MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}
BUSY_SECONDS = 30
"""How long a write waits for another process's."""
KEEP_SNAPSHOTS = 2

METADATA = sa.MetaData()
META = sa.Table("profl_meta", METADATA, sa.Column("name", sa.String(50), primary_key=True), sa.Column("value", sa.Text))
CAMPAIGNS = sa.Table(
    "profl_campaigns",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), unique=True, nullable=False),
)
EVENTS = sa.Table(
    "profl_events",
    METADATA,
    sa.Column("campaign", sa.Integer, sa.ForeignKey(CAMPAIGNS.c.id), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("at", sa.String(40), nullable=False),
    sa.Column("deployment", sa.Integer),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("data_hash", sa.String(64), nullable=False),
    sa.Column("chain", sa.String(64), nullable=False),
    sa.Column("data", sa.LargeBinary),
    sa.UniqueConstraint("campaign", "kind", "deployment"),  # a deployment is asked, told, ... at most once
)
SNAPSHOTS = sa.Table(
    "profl_snapshots",
    METADATA,
    sa.Column("campaign", sa.Integer, sa.ForeignKey(CAMPAIGNS.c.id), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


class SqlStore:
    """The log of one campaign in a database.

    Args:
      url: of the database, such as ``sqlite:///prices.db`` or ``postgresql+psycopg://user@host/name``.
      name: of the campaign in it.
      create: make the database and the campaign where they do not exist; without it that is an error.
    """

    def __init__(self, url: str | sa.URL, name: str, create: bool) -> None:
        self._engine = make_engine(url)
        if not create and _is_missing_file(self._engine):
            raise InputError(f"there is no database {self._engine.url.database}: make the campaign first")
        try:
            try:
                self._id = self._prepare(name, create)
            except (DatabaseError, IntegrityError):  # another process made the tables, or the campaign, first
                self._id = self._prepare(name, create)
        except BaseException:
            self.close()
            raise

    def _prepare(self, name: str, create: bool) -> int:
        """The number of the campaign, after tables and campaign are made where that is asked for."""
        with self._transaction(write=True) as connection:
            _prepare(connection, create, self._shown)
            return _campaign_id(connection, name, create, self._shown)

    @property
    def _shown(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)

    def read(self, after: int) -> list[Event]:
        columns = [column for column in EVENTS.c if column.name not in ("campaign", "data")]
        chosen = sa.select(*columns).where(EVENTS.c.campaign == self._id, EVENTS.c.seq > after).order_by(EVENTS.c.seq)
        with self._transaction() as connection:
            rows = connection.execute(chosen).mappings().all()
        return [Event(**{**row, "body": _body(row["seq"], row["body"])}) for row in rows]

    def data(self, events: Iterable[Event]) -> dict[int, Arrays]:
        hashes = {event.seq: event.data_hash for event in events}
        chosen = sa.select(EVENTS.c.seq, EVENTS.c.data).where(EVENTS.c.campaign == self._id)
        arrays: dict[int, Arrays] = {}
        with self._transaction() as connection:
            for block in _blocks(sorted(hashes), 500):
                for seq, content in connection.execute(chosen.where(EVENTS.c.seq.in_(block))):
                    arrays[seq] = verify_data(seq, _arrays(seq, content), hashes[seq])
        return arrays

    def append(self, sealed: Sequence[Sealed]) -> None:
        if not sealed:
            return
        rows = [
            {
                **event._asdict(),
                "campaign": self._id,
                "body": json.dumps(event.body, sort_keys=True),
                "data": None if data is None else archive.to_bytes(data, {}, compressed=True),
            }
            for event, data in sealed
        ]
        try:
            with self._transaction(write=True) as connection:
                connection.execute(sa.insert(EVENTS), rows)
        except IntegrityError as error:
            raise Conflict from error

    def snapshot(self) -> bytes | None:
        chosen = sa.select(SNAPSHOTS.c.data).where(SNAPSHOTS.c.campaign == self._id).order_by(SNAPSHOTS.c.seq.desc())
        with self._transaction() as connection:
            content: bytes | None = connection.execute(chosen.limit(1)).scalar()
        return content

    def keep_snapshot(self, seq: int, content: bytes) -> None:
        """Store it in place of older ones; another process may have stored the same one, or a newer one."""
        own = SNAPSHOTS.c.campaign == self._id
        try:
            with self._transaction(write=True) as connection:
                connection.execute(sa.delete(SNAPSHOTS).where(own, SNAPSHOTS.c.seq == seq))
                connection.execute(sa.insert(SNAPSHOTS), [{"campaign": self._id, "seq": seq, "data": content}])
                newest = connection.execute(sa.select(SNAPSHOTS.c.seq).where(own).order_by(SNAPSHOTS.c.seq.desc()))
                if old := list(newest.scalars())[KEEP_SNAPSHOTS:]:
                    connection.execute(sa.delete(SNAPSHOTS).where(own, SNAPSHOTS.c.seq.in_(old)))
        except IntegrityError:
            pass

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[sa.Connection]:
        """A transaction; what the database reports is one sentence of a ``DatabaseError``."""
        try:
            with self._engine.connect() as connection:
                if write:
                    connection = connection.execution_options(profl_write=True)
                with connection.begin():
                    yield connection
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise DatabaseError(
                f"the database {self._shown} could not be {'written' if write else 'read'}: {words(error.orig)}"
            ) from error


def sqlite_file(path: Path) -> sa.URL:
    """The URL of a file, whatever signs are in its name."""
    return sa.URL.create("sqlite", database=str(path.absolute()))


def make_engine(url: str | sa.URL) -> sa.Engine:
    """The engine for a URL; SQLite writes ahead, waits for others, and loses nothing to a power cut."""
    try:
        engine = sa.create_engine(url, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InputError(
            f"the database must be a URL such as sqlite:///prices.db, got {words(str(url))}: {words(error)}"
        ) from error
    except ImportError as error:
        raise ImportError(f"{str(url).split(':')[0]} needs {error.name}: pip install 'profl[postgresql]'") from error
    if engine.dialect.name == "sqlite":
        _set_up_sqlite(engine)
    return engine


def _set_up_sqlite(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def connect(raw: Any, _: Any) -> None:
        raw.isolation_level = None  # transactions begin below, and not where the driver thinks fit
        for setting in (
            f"busy_timeout={1000 * BUSY_SECONDS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            raw.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("profl_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _is_missing_file(engine: sa.Engine) -> bool:
    """Whether the database is a file that does not exist, which opening it would make."""
    name = engine.url.database
    return engine.dialect.name == "sqlite" and name not in (None, "", ":memory:") and not Path(str(name)).exists()


def _prepare(connection: sa.Connection, create: bool, shown: str) -> None:
    """Make the tables, or bring old ones to this version; newer ones are refused."""
    if not sa.inspect(connection).has_table(META.name):
        if not create:
            raise InputError(f"there is no campaign in {shown}: make it first")
        METADATA.create_all(connection)
        connection.execute(sa.insert(META), [{"name": "schema", "value": str(SCHEMA)}])
        return
    version = int(connection.execute(sa.select(META.c.value).where(META.c.name == "schema")).scalar_one())
    if version > SCHEMA:
        raise InputError(
            f"{shown} is of a newer profl (tables of version {version}, this one knows {SCHEMA}): update profl"
        )
    for old in range(version, SCHEMA):
        MIGRATIONS[old](connection)
    if version < SCHEMA:
        connection.execute(sa.update(META).where(META.c.name == "schema").values(value=str(SCHEMA)))


def _campaign_id(connection: sa.Connection, name: str, create: bool, shown: str) -> int:
    chosen = sa.select(CAMPAIGNS.c.id).where(CAMPAIGNS.c.name == name)
    number = connection.execute(chosen).scalar()
    if number is None:
        if not create:
            names = list(connection.execute(sa.select(CAMPAIGNS.c.name).order_by(CAMPAIGNS.c.id)).scalars())
            raise InputError(f"there is no campaign {name!r} in {shown}; there are: {', '.join(names) or 'none'}")
        connection.execute(sa.insert(CAMPAIGNS), [{"name": name}])
        number = connection.execute(chosen).scalar_one()
    return int(number)


def _body(seq: int, text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
        assert isinstance(body, dict)
        return body
    except (ValueError, AssertionError) as error:
        raise DamagedLog(f"event {seq} was changed or damaged: its text is no table") from error


def _arrays(seq: int, content: bytes | None) -> Arrays:
    try:
        return archive.from_bytes(content or b"")[0]
    except DamagedFile as error:
        raise DamagedLog(f"the data of event {seq}: {error}") from error


def _blocks(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[start : start + size] for start in range(0, len(items), size))
