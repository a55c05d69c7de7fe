"""What a campaign's database may be, and what is said where it cannot be used: one sentence, and nothing is written."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import profl
from profl.campaign import Campaign, sql
from profl.campaign.events import DamagedLog, Draft, seal
from profl.campaign.sql import SqlStore
from profl.campaign.store import Conflict, ConnectionLost, DatabaseError
from tests.postgresql import server, why_not

NAMES = ["Basel", "Bern"]
CASE = profl.cases.pricing(clients=2, goods=2)
METHOD = profl.pfl()
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def postgresql():
    with server() as url:
        yield url


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.skipif(bool(why_not()), reason=why_not()))]
)
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/prices.db"
    url = request.getfixturevalue("postgresql")
    with sa.create_engine(url.replace("://", "+psycopg://")).begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return url


@pytest.fixture
def file(tmp_path):
    return tmp_path / "prices.db"


def open_campaign(url, **options):
    return Campaign(url, CASE, METHOD, **{"clients": NAMES, "samples": 4, **options})


def event(text="opened", kind="opened", **more):
    return Draft(kind, "2026-01-05T00:00:00+00:00", {"text": text}, **more)


def append(store, *drafts):
    events = store.read(0)
    seq, chain = (events[-1].seq, events[-1].chain) if events else (0, "0" * 64)
    store.append(seal(drafts, seq, chain))


def engine_of(url):
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)


OPEN = "import sys; from profl.campaign.sql import SqlStore; sys.stdin.read(); print(SqlStore(*sys.argv[1:], True)._id)"


def test_processes_that_make_the_tables_at_once_find_one_campaign(url):
    command = [sys.executable, "-c", OPEN, url, "prices"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(4)]
    for process in started:  # all have imported by now, or soon
        process.stdin.close()
        process.stdin = None
    ended = [process.communicate(timeout=120) for process in started]
    assert [out.strip() for out, _ in ended] == ["1"] * 4, ended


def test_threads_that_make_the_tables_at_once_find_one_campaign(url):
    found, ready = [], threading.Barrier(8)

    def work():
        ready.wait()
        try:
            found.append(SqlStore(url, "prices", True)._id)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8


def test_one_campaign_in_several_threads(url):
    campaign = open_campaign(url)
    asked, errors = campaign.ask(), []

    def tell(deployment):
        try:
            campaign.tell(deployment.id, np.full((4, 2), 5.0))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=tell, args=(one,)) for one in 2 * asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [event.kind for event in campaign.events()][3:] == ["told", "told"]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_process_may_fork_between_two_calls(url):
    store = SqlStore(url, "prices", True)
    append(store, event())
    child = os.fork()
    if child == 0:  # a child that computes nothing
        try:
            append(store, event("child", kind="closed"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    append(store, event("parent", kind="closed"))
    assert [one.body["text"] for one in store.read(0)] == ["opened", "child", "parent"]


def test_the_second_writer_gets_a_conflict_and_others_a_sentence(url):
    store = SqlStore(url, "prices", True)
    append(store, event())
    with pytest.raises(Conflict):
        store.append(seal([event()], 0, "0" * 64))
    append(store, event(kind="asked", deployment=1))
    with pytest.raises(DatabaseError, match="refuses the event"):
        append(store, event(kind="asked", deployment=1))  # the next number, for a deployment that has one
    with pytest.raises(DamagedLog, match="event 2 is another; nothing was written"):
        store.append(seal([event(kind="closed")], 2, "f" * 64))
    with pytest.raises(DamagedLog, match="event 8 is missing; nothing was written"):
        store.append(seal([event(kind="closed")], 8, "f" * 64))
    assert len(store.read(0)) == 2


@pytest.mark.parametrize("written", [True, False])
def test_what_a_lost_connection_has_written_is_found_out_by_reading(url, written, monkeypatch):
    store = SqlStore(url, "prices", True)
    real, left = sa.engine.default.DefaultDialect.do_commit, [1]

    def do_commit(dialect, raw):
        if left and left.pop():
            if written:
                real(dialect, raw)
            raise dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")
        real(dialect, raw)

    monkeypatch.setattr("sqlalchemy.engine.default.DefaultDialect.do_commit", do_commit)
    for dialect in (sa.dialects.sqlite.dialect, sa.dialects.postgresql.psycopg.dialect):
        monkeypatch.setattr(dialect, "is_disconnect", lambda *_: True)
    first = seal([event()], 0, "0" * 64)
    if written:
        store.append(first)
    else:
        with pytest.raises(ConnectionLost, match="whether it was written shows when you call again"):
            store.append(first)
    assert len(store.read(0)) == written


@pytest.mark.parametrize("last", range(5))
def test_who_interrupts_a_call_can_go_on_with_the_same_campaign(tmp_path, last):
    """Ctrl-C after every fifth statement of all calls of two rounds."""
    campaign = open_campaign(f"sqlite:///{tmp_path}/prices.db")
    points = [last]

    def point(*_):
        points[0] += 1
        if points[0] % 5 == 0:
            raise KeyboardInterrupt

    def insist(call):
        for turn in range(4):
            try:
                return call() if turn < 3 else quietly(call)
            except KeyboardInterrupt:
                pass
        raise AssertionError("the call was interrupted where nobody did")

    def quietly(call):
        sa.event.remove(sa.Engine, "after_cursor_execute", point)
        try:
            return call()
        finally:
            sa.event.listen(sa.Engine, "after_cursor_execute", point)

    sa.event.listen(sa.Engine, "after_cursor_execute", point)
    try:
        for _ in range(2):
            for deployment in insist(campaign.ask):
                insist(lambda one=deployment: campaign.tell(one.id, np.full((4, 2), float(one.id))))
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", point)
    expected = Campaign(None, CASE, METHOD, NAMES, samples=4)
    for _ in range(2):
        for deployment in expected.ask():
            expected.tell(deployment.id, np.full((4, 2), float(deployment.id)))
    np.testing.assert_array_equal(campaign.model(), expected.model())
    with Campaign(f"sqlite:///{tmp_path}/prices.db", CASE, METHOD) as again:
        assert [event.kind for event in again.events()] == [event.kind for event in expected.events()]


def test_a_log_that_is_put_back_is_not_continued_as_if_nothing_were(file, tmp_path):
    campaign = open_campaign(f"sqlite:///{file}")
    asked = campaign.ask()
    shutil.copy(file, tmp_path / "copy.db")  # whole: nothing is held between two calls
    campaign.tell(asked[0].id, np.ones((4, 2)))
    shutil.copy(tmp_path / "copy.db", file)
    with pytest.raises(DamagedLog, match="no longer the one that was read: event 4 is missing; nothing was written"):
        campaign.tell(asked[1].id, np.ones((4, 2)))
    with Campaign(f"sqlite:///{file}", CASE, METHOD) as again:
        assert [one.id for one in again.ask()] == [1, 2]


def test_a_file_that_is_gone_is_not_made_again(file):
    campaign = open_campaign(f"sqlite:///{file}")
    file.unlink()
    with pytest.raises(DatabaseError, match=r"prices\.db is gone: nothing was written"):
        campaign.ask()
    assert not file.exists()


def test_what_a_killed_process_leaves_beside_the_file_is_taken_up(file):
    """kill -9 in SQLite leaves what was committed in a second file, which the next process reads."""
    code = (
        "import os, signal, sqlite3, sys; from tests import test_campaign_database as t; "
        "s = t.SqlStore('sqlite:///' + sys.argv[1], 'prices', True); hold = sqlite3.connect(sys.argv[1]); "
        "hold.execute('select count(*) from profl_events').fetchone(); t.append(s, t.event()); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == -9, done.stderr
    assert Path(f"{file}-wal").exists()
    assert len(SqlStore(f"sqlite:///{file}", "prices", False).read(0)) == 1
    assert not Path(f"{file}-wal").exists()


def test_a_relative_path_is_of_the_folder_in_which_the_campaign_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = open_campaign("sqlite:///prices.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert len(campaign.ask()) == 2
    assert not list((tmp_path / "other").iterdir())
    assert (tmp_path / "prices.db").exists()


def test_a_database_that_may_only_be_read_can_be_read(file):
    with open_campaign(f"sqlite:///{file}") as campaign:
        campaign.ask()
    with Campaign(f"sqlite:///file:{file}?mode=ro&uri=true", CASE, METHOD) as campaign:
        assert len(campaign.status().waiting) == len(campaign.ask()) == 2
        with pytest.raises(DatabaseError, match="could not be written: attempt to write a readonly database"):
            campaign.tell(1, np.ones((4, 2)))


def test_a_file_that_is_no_database_is_left_alone(file):
    file.write_text("shop,price\n" * 500)
    with pytest.raises(DatabaseError, match="file is not a database"):
        open_campaign(f"sqlite:///{file}")
    assert file.read_text() == "shop,price\n" * 500


def test_tables_of_somebody_else_are_left_alone(file):
    with sqlite3.connect(file) as raw:
        raw.execute("create table profl_meta (name text, value text)")
    with pytest.raises(profl.InputError, match="none of profl's: they have no version"):
        open_campaign(f"sqlite:///{file}")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DatabaseError, match="unable to open database file"):
        open_campaign(f"sqlite:///{tmp_path}/no/prices.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "a database in memory keeps nothing; url=None"),
        ("sqlite:///:memory:", "a database in memory keeps nothing; url=None"),
        ("sqlite:///file:x?mode=memory&uri=true", "a database in memory keeps nothing; url=None"),
        ("sqlite+aiosqlite:///x.db", "sqlite\\+aiosqlite is for asynchronous programs"),
        ("mysql://user:secret@host/name", "kept in SQLite or PostgreSQL, not in mysql"),
        ("prices.db", "must be a URL such as sqlite:///prices.db"),
        (5, "must be a URL such as sqlite:///prices.db"),
    ],
)
def test_databases_that_will_not_do(url, words):
    with pytest.raises(profl.InputError, match=words) as error:
        open_campaign(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("kind", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_driver_that_is_not_installed(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=rf"{re.escape(kind)} needs psycopg: pip install 'profl\[postgresql\]'"):
        open_campaign(f"{kind}://user@host/name")


def test_a_server_that_is_not_there_is_one_sentence_without_the_password():
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseError, match="could not be read: ") as error:
        open_campaign("postgresql://user:secret@127.0.0.1:1/name")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["", " ", "a\x00b", "x" * 201, 5, None])
def test_names_that_no_table_takes(url, name):
    with pytest.raises(profl.InputError, match="name must be a word of at most 200 characters"):
        open_campaign(url, name=name)


def test_reasons_and_clients_in_any_characters(url):
    names = ["Zürich \x00", "\U0001f34e" * 100]
    with open_campaign(url, clients=names) as campaign:
        campaign.ask()
        campaign.skip(1, "closed\x00\x1b[2J " + "x" * 100_000 + "\ud800")
        campaign.skip(2, "geschlossen \U0001f512")
    with Campaign(url, CASE, METHOD) as campaign:
        assert campaign.clients == names
        [first, second] = campaign.status().absent.values()
        assert len(first) < 600
        assert second == "skipped: geschlossen \U0001f512"


def test_a_write_waits_for_another_one_and_says_so_where_that_takes_too_long(url, monkeypatch):
    store = SqlStore(url, "prices", True)
    engine = engine_of(url)
    monkeypatch.setattr("profl.campaign.database.BUSY_SECONDS", 0.2)
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN IMMEDIATE" if "sqlite" in url else "LOCK TABLE profl_events")
        with pytest.raises(DatabaseError, match=r"could not be (written|read): .*lock"):
            append(store, event())
    append(store, event())
    assert len(store.read(0)) == 1


def test_a_snapshot_of_another_log_is_not_used(url):
    one, other = SqlStore(url, "one", True), SqlStore(url, "other", True)
    append(one, event())
    append(other, event("another"))
    one.keep_snapshot(1, b"state")
    assert list(one.snapshots()) == [b"state"]
    with engine_of(url).begin() as connection:
        connection.exec_driver_sql(f"update profl_snapshots set campaign = {other._id}")
    assert list(other.snapshots()) == []
    assert sql.KEEP_SNAPSHOTS >= 1


def test_a_clock_needs_its_zone_and_a_deadline_an_end(url):
    with pytest.raises(profl.InputError, match=r"clock must give a datetime with a time zone"):
        open_campaign(url, clock=lambda: datetime(2026, 1, 5))
    with pytest.raises(profl.InputError, match="deadline must be"):
        open_campaign(url, deadline=1e12)
    with pytest.raises(profl.InputError, match="deadline must be"):
        open_campaign(url, deadline=timedelta.max)
