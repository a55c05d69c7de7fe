"""A campaign's log in tables of a database.

    meta        the version of the tables
    campaigns   one row each, so that a database can hold several
    events      the log; (campaign, seq) is its key, so two processes cannot both write the next event
    snapshots   a cache of states; may be deleted

An append is one transaction. Two processes are kept apart by the key alone: who comes second gets ``Conflict``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from profl.campaign.database import Database, sa
from profl.campaign.events import START, Arrays, DamagedLog, Event, Sealed, link, verify_data
from profl.campaign.store import Conflict, ConnectionLost, DatabaseError
from profl.checks import InputError, words
from profl.storage import archive
from profl.storage.archive import DamagedFile

SCHEMA = 1
"""The version of the tables; ``MIGRATIONS[n]`` brings a database of version n to n + 1."""
MIGRATIONS: dict[int, Callable[[sa.Connection], None]] = {}
KEEP_SNAPSHOTS = 2
LONGEST_NAME = 200  # characters of a campaign's name

METADATA = sa.MetaData()
META = sa.Table("profl_meta", METADATA, sa.Column("name", sa.String(50), primary_key=True), sa.Column("value", sa.Text))
CAMPAIGNS = sa.Table(
    "profl_campaigns",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(LONGEST_NAME), unique=True, nullable=False),
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
    sa.Column("chain", sa.String(64), nullable=False),  # of that event: a snapshot of another log is not used
    sa.Column("data", sa.LargeBinary, nullable=False),
)


class SqlStore:
    """The log of one campaign in a database.

    Args:
      url: of the database, such as ``sqlite:///prices.db`` or ``postgresql://user@host/name``.
      name: of the campaign in it.
      create: make the database and the campaign where they do not exist; without it that is an error.
    """

    def __init__(self, url: str | sa.URL, name: str, create: bool) -> None:
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or not 0 < len(name.strip()) <= len(name) <= LONGEST_NAME
        ):
            raise InputError(f"name must be a word of at most {LONGEST_NAME} characters, got {words(repr(name))}")
        self._database = Database(url, create)
        with self._database.transaction() as connection:
            number = _find(connection, name, self._database.shown)
        self._id = self._make(name, create) if number is None else number

    def _make(self, name: str, create: bool) -> int:
        """The number of the campaign, after tables and campaign are made where that is asked for."""
        with self._database.transaction(write=True) as connection:
            self._database.lock_setting_up(connection)
            _prepare(connection, create, self._database.shown)
            return _campaign_id(connection, name, create, self._database.shown)

    def read(self, after: int) -> list[Event]:
        columns = [column for column in EVENTS.c if column.name not in ("campaign", "data")]
        chosen = sa.select(*columns).where(EVENTS.c.campaign == self._id, EVENTS.c.seq > after).order_by(EVENTS.c.seq)
        with self._database.transaction() as connection:
            rows = connection.execute(chosen).mappings().all()
        return [Event(**{**row, "body": _body(row["seq"], row["body"])}) for row in rows]

    def data(self, events: Iterable[Event]) -> dict[int, Arrays]:
        hashes = {event.seq: event.data_hash for event in events}
        chosen = sa.select(EVENTS.c.seq, EVENTS.c.data).where(EVENTS.c.campaign == self._id)
        arrays: dict[int, Arrays] = {}
        with self._database.transaction() as connection:
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
        first, last = sealed[0].event, sealed[-1].event
        try:
            with self._database.transaction(write=True) as connection:
                self._check_follows(connection, first)
                connection.execute(sa.insert(EVENTS), rows)
        except sa.exc.IntegrityError as error:
            if self._chain(first.seq) is None:
                raise DatabaseError(
                    f"the database {self._database.shown} refuses the event: {words(error.orig)}"
                ) from error
            raise Conflict from error
        except ConnectionLost as error:  # it may have been written all the same
            with suppress(DatabaseError):
                if self._chain(last.seq) == last.chain:
                    return
            raise ConnectionLost(f"{error}; whether it was written shows when you call again") from error

    def _chain(self, seq: int) -> str | None:
        """The hash of an event; None where there is none."""
        with self._database.transaction() as connection:
            return self._chain_in(connection, seq)

    def _chain_in(self, connection: sa.Connection, seq: int) -> str | None:
        chosen = sa.select(EVENTS.c.chain).where(EVENTS.c.campaign == self._id, EVENTS.c.seq == seq)
        chain: str | None = connection.execute(chosen).scalar()
        return chain

    def _check_follows(self, connection: sa.Connection, event: Event) -> None:
        """Refuse to write behind another log than the one that was read, as where an old copy was put in its place."""
        before = START if event.seq == 1 else self._chain_in(connection, event.seq - 1)
        if before is None or link(event, before) != event.chain:
            raise DamagedLog(
                f"the log in {self._database.shown} is no longer the one that was read: event {event.seq - 1} is "
                f"{'missing' if before is None else 'another'}; nothing was written, open the campaign again"
            )

    def snapshots(self) -> Iterator[bytes]:
        event = (EVENTS.c.campaign == SNAPSHOTS.c.campaign) & (EVENTS.c.seq == SNAPSHOTS.c.seq)
        known = sa.select(SNAPSHOTS.c.seq).join(EVENTS, event & (EVENTS.c.chain == SNAPSHOTS.c.chain))
        newest = known.where(SNAPSHOTS.c.campaign == self._id).order_by(SNAPSHOTS.c.seq.desc())
        own = sa.select(SNAPSHOTS.c.data).where(SNAPSHOTS.c.campaign == self._id)
        with self._database.transaction() as connection:
            numbers = list(connection.execute(newest).scalars())
        for seq in numbers:
            with self._database.transaction() as connection:
                content: bytes | None = connection.execute(own.where(SNAPSHOTS.c.seq == seq)).scalar()
            if content is not None:  # another process may have stored a newer one in its place
                yield content

    def keep_snapshot(self, seq: int, content: bytes) -> None:
        """Store it in place of older ones; another process may have stored the same one, or a newer one."""
        own = SNAPSHOTS.c.campaign == self._id
        with suppress(sa.exc.IntegrityError), self._database.transaction(write=True) as connection:
            row = {"campaign": self._id, "seq": seq, "chain": self._chain_in(connection, seq), "data": content}
            connection.execute(sa.delete(SNAPSHOTS).where(own, SNAPSHOTS.c.seq == seq))
            connection.execute(sa.insert(SNAPSHOTS), [row])
            newest = connection.execute(sa.select(SNAPSHOTS.c.seq).where(own).order_by(SNAPSHOTS.c.seq.desc()))
            if old := list(newest.scalars())[KEEP_SNAPSHOTS:]:
                connection.execute(sa.delete(SNAPSHOTS).where(own, SNAPSHOTS.c.seq.in_(old)))

    def close(self) -> None:
        self._database.close()


def _find(connection: sa.Connection, name: str, shown: str) -> int | None:
    """The number of a campaign; None where it, its tables or their version must be made first."""
    if not sa.inspect(connection).has_table(META.name) or _version(connection, shown) < SCHEMA:
        return None
    number: int | None = connection.execute(sa.select(CAMPAIGNS.c.id).where(CAMPAIGNS.c.name == name)).scalar()
    return number


def _version(connection: sa.Connection, shown: str) -> int:
    """The version of the tables; newer ones are refused."""
    value = str(connection.execute(sa.select(META.c.value).where(META.c.name == "schema")).scalar())
    if not value.isdigit():
        raise InputError(f"the tables in {shown} are none of profl's: they have no version")
    if int(value) > SCHEMA:
        raise InputError(
            f"{shown} is of a newer profl (tables of version {value}, this one knows {SCHEMA}): update profl"
        )
    return int(value)


def _prepare(connection: sa.Connection, create: bool, shown: str) -> None:
    """Make the tables, or bring old ones to this version."""
    if not sa.inspect(connection).has_table(META.name):
        if not create:
            raise InputError(f"there is no campaign in {shown}: make it first")
        METADATA.create_all(connection)
        connection.execute(sa.insert(META), [{"name": "schema", "value": str(SCHEMA)}])
    for old in range(version := _version(connection, shown), SCHEMA):
        MIGRATIONS[old](connection)
    if version < SCHEMA:
        connection.execute(sa.update(META).where(META.c.name == "schema").values(value=str(SCHEMA)))


def _campaign_id(connection: sa.Connection, name: str, create: bool, shown: str) -> int:
    chosen = sa.select(CAMPAIGNS.c.id).where(CAMPAIGNS.c.name == name)
    number = connection.execute(chosen).scalar()
    if number is None:
        if not create:
            known = ", ".join(_names(connection)) or "none"
            raise InputError(f"there is no campaign {name!r} in {shown}; there are: {known}")
        connection.execute(sa.insert(CAMPAIGNS), [{"name": name}])
        number = connection.execute(chosen).scalar_one()
    return int(number)


def list_campaigns(url: str) -> list[str]:
    """The names of the campaigns in a database, oldest first."""
    with Database(url, create=False).transaction() as connection:
        return _names(connection) if sa.inspect(connection).has_table(CAMPAIGNS.name) else []


def _names(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(CAMPAIGNS.c.name).order_by(CAMPAIGNS.c.id)).scalars())


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
