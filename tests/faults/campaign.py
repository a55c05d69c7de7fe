"""Faults over ``profl.Campaign``: two operators ask and tell, and die, in turns over one database, from a seed.

A process that dies is a ``Killed`` raised before or after a statement or a commit: for SQLite what lies on the disk at
that moment is put back afterwards, for PostgreSQL the socket is cut, so that nothing which the dying process still does
counts. Whatever happens, this must hold:

    log       every deployment is asked for once, ends once, and no (round, client, step) has two; the chain verifies
    told      what a call said it wrote is there, and what is there is what was sent
    seen      what ``ask`` returned once is what the log holds, model and all
    bits      theta is that of a campaign in memory whose deployments ended in the same ways
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas
import sqlalchemy as sa

import profl
from profl.campaign import Campaign, Deployment, Deployments
from profl.campaign.database import Database
from profl.campaign.store import DatabaseError
from tests.faults.campaign_log import (
    DEADLINE,
    NAMES,
    SAMPLES,
    START,
    Seen,
    answer,
    check,
    compare,
    open_campaign,
    quick_starts,
)
from tests.faults.campaign_sqlite import SqliteFiles
from tests.faults.common import Broken, Killed

CALLS = 20  # about so many are made
AT_DATABASE = ("killed", "killed", "killed", "full disk", "locked", "lost", "race", "race")
BETWEEN = ("snapshots", "clock", "twice", "other data", "stranger")
ENDS = ("late", "skipped", "withdrawn")


class Mishap(NamedTuple):
    kind: str
    call: int
    number: int  # at which statement; how many bytes, hours


def schedule(seed: int) -> list[Mishap]:
    """The faults of a seed; in every third campaign deployments are late, skipped and withdrawn, too."""
    rng = np.random.default_rng([seed, 34])
    kinds = [*AT_DATABASE, *BETWEEN, *(2 * ENDS if seed % 3 == 2 else ())]
    drawn = [kinds[rng.integers(len(kinds))] for _ in range(int(rng.integers(4, 13)))]
    return [Mishap(kind, int(rng.integers(CALLS)), int(rng.integers(24))) for kind in drawn]


class World:
    """What is going on: the operators, the clock, and what was seen and sent."""

    def __init__(self, seed: int, database: Any) -> None:
        self.rng, self.left, self.database = np.random.default_rng([seed, 35]), schedule(seed), database
        self.deadline = DEADLINE if seed % 3 == 2 else None
        self.now = START
        self.operators: list[Campaign | None] = [None, None]
        self.calls = self.points = self.starts = 0
        self.due: Mishap | None = None
        self.dead = False
        self.seen: Seen = {}
        self.sent: dict[int, np.ndarray] = {}
        self.written: set[int] = set()
        self.held: set[int] = set()  # deployments whose data come late

    # -- calls that may fail -------------------------------------------------------------------------------------------

    def call(self, who: int, work: Callable[[Campaign], Any]) -> tuple[bool, Any]:
        """(whether the operator's call returned, what)."""
        self.due = self._take(*AT_DATABASE)
        self.calls, self.points, self.dead = self.calls + 1, 0, False
        try:
            with self._trouble(who):
                if self.operators[who] is None:
                    self.starts += 1
                    self.operators[who] = self.open()
                result = work(self.operators[who])
                self._point(None, last=True)
            return True, result
        except (Killed, DatabaseError, sa.exc.SQLAlchemyError) as error:
            if not self.dead and not isinstance(error, DatabaseError):
                raise
        finally:
            self.due = None
            if self.dead:
                self.operators[who] = None
                self.database.bury()
        return False, None

    def open(self) -> Campaign:
        return open_campaign(self.database.url, self.deadline, lambda: self.now)

    @contextmanager
    def _trouble(self, who: int) -> Iterator[None]:
        kind, number = (self.due.kind, self.due.number) if self.due else ("", 0)
        with ExitStack() as stack:
            if kind == "full disk":
                stack.enter_context(self.database.full(number))
            if kind == "locked" and self.calls > 1 and self.seen:
                stack.enter_context(self.database.locked())
            if kind == "race":
                stack.enter_context(self._race(1 - who, number % 6))
            if kind in ("killed", "lost"):
                stack.enter_context(self._points())
            yield

    @contextmanager
    def _points(self) -> Iterator[None]:
        """Come by before and after each statement and each commit."""
        real = sa.engine.default.DefaultDialect.do_commit

        def do_commit(dialect: Any, raw: Any) -> None:
            self._point(raw)
            if self.due and self.due.kind == "lost" and self.points > self.due.number // 2:
                written, self.due = self.due.number % 2 == 0, None
                if written:
                    real(dialect, raw)
                self.database.lose(raw, written)
            else:
                real(dialect, raw)
            self._point(raw)

        def execute(connection: Any, *_: Any) -> None:
            self._point(connection.connection.driver_connection)

        with mock.patch("sqlalchemy.engine.default.DefaultDialect.do_commit", do_commit):
            for name in ("before_cursor_execute", "after_cursor_execute"):
                sa.event.listen(sa.Engine, name, execute)
            try:
                yield
            finally:
                for name in ("before_cursor_execute", "after_cursor_execute"):
                    sa.event.remove(sa.Engine, name, execute)

    def _point(self, raw: Any, last: bool = False) -> None:
        """Die here, if it is time."""
        self.points += 1
        if self.dead or self.due is None or self.due.kind != "killed":
            return
        if last or self.points > self.due.number:
            self.dead = True
            if raw is not None:
                self.database.die(raw)
            raise Killed

    @contextmanager
    def _race(self, other: int, number: int) -> Iterator[None]:
        """Before one of this call's transactions, or before it writes, the other operator is faster."""
        real, left = Database.transaction, [number]

        def transaction(database: Database, write: bool = False) -> Any:
            left[0] -= write or number < 3
            campaign = self.operators[other]
            if left[0] in (-1, 2) and campaign is not None:
                left[0] = -2
                asked = campaign.ask()
                self._note(asked)
                for deployment in asked[-1:]:
                    if deployment.id not in self.held:
                        self._told(campaign, deployment)
            return real(database, write)

        with mock.patch.object(Database, "transaction", transaction):
            yield

    # -- what operators do ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Ask and tell until nothing more is asked."""
        while self.calls < 8 * CALLS:
            who = int(self.rng.integers(2))
            returned, asked = self.call(who, lambda campaign: campaign.ask())
            if not returned:
                continue
            self._note(asked)
            if not asked:
                return
            self._between()
            self._wait(asked)
            for place in self.rng.permutation(len(asked))[: 1 + self.rng.integers(len(asked))]:
                self._end(int(self.rng.integers(2)), asked[place])
        raise Broken("end: it does not come to its end")

    def _wait(self, asked: Deployments) -> None:
        """Until the round is closed without those whose data are late, or they come after all."""
        for one in self.held - {one.id for one in asked}:
            self.held.discard(one)
            _refused("closed with its round", lambda one=one: self.open().tell(one, np.ones((SAMPLES, 2))))
        if all(one.id in self.held for one in asked):
            if all(one.until and one.until <= self.now for one in asked):  # nobody has told enough
                self.held.clear()
            self.now += timedelta(days=2 * DEADLINE)

    def _end(self, who: int, deployment: Deployment) -> None:
        """The operator tells of a deployment, or says why not."""
        fault = self._take(*ENDS)
        if fault and fault.kind == "late":
            self.held.add(deployment.id)
        if deployment.id in self.held:
            return
        if fault and fault.kind in ("skipped", "withdrawn"):
            do = Campaign.skip if fault.kind == "skipped" else Campaign.withdraw
            self.call(who, lambda campaign: _allowed(lambda: do(campaign, deployment.id, "closed")))
            return
        self.call(who, lambda campaign: self._told(campaign, deployment))

    def _told(self, campaign: Campaign, deployment: Deployment) -> None:
        batch = self.sent.setdefault(deployment.id, answer(deployment))
        if _allowed(lambda: campaign.tell(deployment.id, batch)) is not None:
            self.written.add(deployment.id)

    def _between(self) -> None:
        """What happens between two calls."""
        fault, campaign = self._take(*BETWEEN), self.operators[int(self.rng.integers(2))]
        if fault is None or campaign is None or not self.seen:
            return
        known = sorted(self.written)
        if fault.kind == "clock":
            self.now += timedelta(hours=(-1) ** fault.number * 24 * (1 if self.deadline else fault.number))
        elif fault.kind == "snapshots":
            _damage(self.database.url, fault.number)
        elif fault.kind == "twice" and known:
            told = campaign.tell(known[fault.number % len(known)], self.sent[known[fault.number % len(known)]])
            if not told.again:
                raise Broken("told: the same data were written twice")
        elif fault.kind == "other data" and known:
            _refused("with other data", lambda: campaign.tell(known[-1], self.sent[known[-1]] + 1.0))
        elif fault.kind == "stranger":
            first = min(self.seen)
            frame = pandas.DataFrame(np.ones((SAMPLES, 2)), columns=["a", "b"])
            _refused("there is no deployment 999", lambda: campaign.tell(999, frame))
            _refused("unknown client", lambda: campaign.tell_frame(frame.assign(client="Chur")))
            stranger = next(name for name in NAMES if name != self.seen[first][0])
            _refused("belongs to", lambda: campaign.tell_frame(frame.assign(deployment=first, client=stranger)))

    def _note(self, asked: Deployments) -> None:
        for one in asked:
            new = (one.client, one.round, one.step, np.asarray(one.theta).tobytes())
            if self.seen.setdefault(one.id, new) != new:
                raise Broken(f"seen: deployment {one.id} is another than before")

    def _take(self, *kinds: str) -> Mishap | None:
        """The next fault of these kinds that is due; it happens once."""
        for fault in self.left:
            if fault.kind in kinds and fault.call <= self.calls:
                self.left.remove(fault)
                return fault
        return None


def _allowed(work: Callable[[], Any]) -> Any:
    """What the call gives; None where the deployment had ended in another way, which is said in one sentence."""
    try:
        return work() or ()
    except profl.InputError as error:
        if "nothing was written" not in str(error) or "\n" in str(error):
            raise
        return None


def _refused(words: str, work: Callable[[], Any]) -> None:
    try:
        work()
    except profl.InputError as error:
        if words in str(error):
            return
        raise
    raise Broken(f"told: what should be refused ({words}) was taken")


def _damage(url: str, number: int) -> None:
    """Take away or spoil the snapshots."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        if number % 3 == 0:
            connection.execute(sa.text("delete from profl_snapshots"))
        else:
            for seq, data in connection.execute(sa.text("select seq, data from profl_snapshots")).all():
                data = bytes(data)
                spoiled = data[: len(data) // 2] if number % 3 == 1 else data[:90] + bytes([data[90] ^ 1]) + data[91:]
                row = {"seq": seq, "data": spoiled}
                connection.execute(sa.text("update profl_snapshots set data = :data where seq = :seq"), row)


def run(seed: int, folder: Path, database: Any = None) -> str:
    """One schedule, checked; in a line what came of it."""
    world = World(seed, database or SqliteFiles(folder))
    with mock.patch("profl.campaign.database.BUSY_SECONDS", 0.05), quick_starts():
        world.play()
        for campaign in world.operators:
            if campaign is not None:
                campaign.close()
        with world.open() as campaign:
            outcome = check(campaign, world.seen, world.sent, world.written)
            compare(campaign, outcome)
    ends = [how for *_, how in outcome]
    return f"ended with equal bits after {world.calls} calls, {world.starts} starts, {ends.count('told')} told"
