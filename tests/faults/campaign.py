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

import json
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas
import sqlalchemy as sa

import profl
from profl.campaign import Campaign, Deployment, Deployments, setting_up
from profl.campaign.database import Database
from profl.campaign.store import DatabaseError
from tests.faults.common import Broken, Killed, same
from tests.problems import QUICK, unmeasured

NAMES = ["Basel", "Bern"]
CASE = unmeasured(profl.cases.pricing(clients=len(NAMES), goods=2))
METHOD = profl.pofl(jacobian=QUICK)
ROUNDS, STEPS, SAMPLES, DEADLINE = 3, 2, 4, 7.0
START = datetime(2026, 1, 5, tzinfo=UTC)
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


def answer(deployment: Deployment) -> np.ndarray:
    """What a deployment brings in."""
    client = NAMES.index(deployment.client)
    rng = np.random.default_rng([client, deployment.round, deployment.step])
    return rng.normal(6.0, 1.0, (SAMPLES, 2)) - (1.0 + client) * np.asarray(deployment.theta)


def open_campaign(url: str | None, deadline: float | None = None, clock: Any = None) -> Campaign:
    settings: dict[str, Any] = {"local_steps": STEPS, "samples": SAMPLES, "rounds": ROUNDS, "deadline": deadline}
    return Campaign(url, CASE, METHOD, NAMES, **settings, clock=clock)


MADE: dict[Any, Any] = {}  # what each start would trace again: the plan, and what makes states by it


@contextmanager
def quick_starts() -> Iterator[None]:
    """Keep the plan from one start to the next, which is made of settings and first model alone."""
    real_make, real_fold = setting_up.make, setting_up.Fold

    def make(problem: Any, method: Any, settings: Any, initial: Any, stop: Any) -> Any:
        key = json.dumps(settings), None if initial is None else np.asarray(initial).tobytes()
        if key not in MADE:
            MADE[key] = real_make(problem, method, settings, initial, stop)
        return MADE[key]

    def fold(setup: Any) -> Any:
        plan = setup.plan
        if id(plan) not in MADE:
            MADE[id(plan)] = real_fold(setup)
        return MADE[id(plan)]

    with mock.patch.multiple(setting_up, make=make, Fold=fold):
        yield


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


Seen = dict[int, tuple[str, int, int, bytes]]  # what ``ask`` returned: {id: (client, round, step, model)}


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


Outcome = tuple[tuple[int, str, int, str], ...]  # (round, client, step, how it ended)


# -- what must hold ----------------------------------------------------------------------------------------------------


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


def compare(campaign: Campaign, outcome: Outcome) -> None:
    """The campaign's trajectory is that of one without faults, to the bit."""
    ended, expected = campaign.run(), undisturbed(outcome)
    if not (same(ended.theta, expected[0]) and same(ended.live.risk, expected[1])):
        raise Broken("bits: the trajectory is another than without faults")


def check(campaign: Campaign, seen: Seen, sent: dict[int, np.ndarray], written: set[int]) -> Outcome:
    """The log as it must be, with all that was seen, sent and written; how each deployment ended."""
    events = campaign.events()  # opening has verified the chain
    of = {kind: [event for event in events if event.kind == kind] for kind in {event.kind for event in events}}
    asked = {event.deployment: event for event in of["asked"]}
    ended = [e.deployment for kind in ("told", "skipped", "withdrawn") for e in of.get(kind, [])]
    if [event.deployment for event in of["asked"]] != list(range(1, len(asked) + 1)):
        raise Broken("log: the ids are not 1, 2, ...")
    if len(set(ended)) < len(ended):
        raise Broken("log: a deployment ended twice")
    steps = {number: (e.body["round"], e.body["client"], e.body["step"]) for number, e in asked.items()}
    if len(set(steps.values())) < len(steps):
        raise Broken("log: one step was asked for under two ids")
    if [event.body["round"] for event in of["closed"]] != list(range(1, ROUNDS + 1)):
        raise Broken("log: a round is missing, or twice there")
    if len(events) != 1 + len(asked) + len(ended) + ROUNDS:
        raise Broken("log: there are more events than calls can have made")
    for number, (client, round_, step, theta) in seen.items():
        if steps.get(number) != (round_ - 1, client, step - 1):
            raise Broken(f"seen: deployment {number} was asked for, the log does not know it")
        if campaign.data(asked[number])["theta"].tobytes() != theta:
            raise Broken(f"seen: the model of deployment {number} is another in the log")
    told = {event.deployment: event for event in of.get("told", [])}
    if lost := written - set(told):
        raise Broken(f"told: {lost} were written, and are lost")
    for number, event in told.items():
        np.testing.assert_array_equal(campaign.data(event)["batch"], sent[number].astype(np.float32))
    how = {e.deployment: e.kind for kind in ("told", "skipped", "withdrawn") for e in of.get(kind, [])}
    return tuple(sorted((*steps[number], how.get(number, "expired")) for number in steps))


@cache
def undisturbed(outcome: Outcome) -> tuple[Any, Any]:
    """(theta, the risks) of a campaign in memory whose deployments end in these ways."""
    ends = {step: how for *step_, how in outcome for step in [tuple(step_)]}
    deadline = DEADLINE if "expired" in ends.values() else None
    now = [START]
    with open_campaign(None, deadline, lambda: now[0]) as campaign:
        while asked := campaign.ask():
            before = len(campaign.events())
            for one in asked:
                how = ends[one.round - 1, one.client, one.step - 1]
                if how == "told":
                    campaign.tell(one.id, answer(one))
                elif how != "expired":
                    {"skipped": campaign.skip, "withdrawn": campaign.withdraw}[how](one.id, "closed")
            if len(campaign.events()) == before:
                now[0] += timedelta(days=2 * DEADLINE)
        run = campaign.run()
    return run.theta, run.live.risk
