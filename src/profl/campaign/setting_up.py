"""Making a campaign, and opening it again: settings, the first model, and what tells one campaign from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks, trees
from profl.campaign.events import Arrays, Draft, Event
from profl.campaign.fold import Fold
from profl.campaign.journal import Journal
from profl.campaign.names import names_of
from profl.campaign.past import fitted_history
from profl.campaign.store import MemoryStore, Store
from profl.checks import InputError
from profl.methods.method import Method, check_method
from profl.methods.prm import PRM
from profl.methods.stopping import StopWhenSettled
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem, check_problem
from profl.run.config import RunConfig, one_seed
from profl.run.fingerprint import fingerprint
from profl.run.live.client_round import make_setup
from profl.run.plan import CompiledPlan, make_plan
from profl.storage import archive
from profl.storage.fingerprint import difference
from profl.typing import Theta

USUAL = {
    "local_steps": 1,
    "samples": 500,
    "seed": 0,
    "participation": 1.0,
    "scheme": "uniform",
    "min_reports": 1,
    "deadline": None,
    "rounds": None,
}
"""The settings of a campaign whose maker states none."""
FOREVER = 1_000_000
"""Rounds of a plan that has no last one."""


class Opened(NamedTuple):
    """A campaign that is ready to be asked."""

    problem: Problem
    journal: Journal
    theta_names: list[str]
    columns: list[str] | None


def open_campaign(
    url: str | None,
    problem: Problem | LiveProblem,
    method: Method,
    name: str,
    given: dict[str, Any],
    initial: Theta | None,
    stop: StopWhenSettled | None,
    clock: Callable[[], datetime],
    source: dict[str, Any] | None = None,
) -> Opened:
    """The campaign of that name, made where ``given`` names its clients and there is none.

    Raises ``InputError`` before anything is written, and where it is another campaign than the one in the database.
    """
    if not isinstance(problem, LiveProblem):
        check_problem(problem)
    check_method(method)
    if url is None:  # a database has its own rules for names
        checks.text("name", name)
    if source is not None and not isinstance(source, dict):
        raise InputError(f"source must be a dict of plain values, got {checks.shown(source)}")
    create = given["clients"] is not None
    if create:  # all that can be wrong is found before there is a database
        wanted = {**USUAL, **{name: value for name, value in given.items() if value is not None}}
        make(problem, method, wanted, initial, stop)
    store = open_store(url, name, create)
    try:
        return _open(store, problem, method, given, initial, stop, clock, source)
    except BaseException:
        store.close()
        raise


def _open(
    store: Store,
    problem: Problem | LiveProblem,
    method: Method,
    given: dict[str, Any],
    initial: Theta | None,
    stop: StopWhenSettled | None,
    clock: Callable[[], datetime],
    source: dict[str, Any] | None,
) -> Opened:
    events = store.read(0)
    settings, start = {**USUAL, **{name: value for name, value in given.items() if value is not None}}, initial
    if events:
        settings = events[0].body["settings"]
        _check_same(given, settings)
        start = _first_model(store, events[0], problem)
    elif given["clients"] is None:
        raise InputError("there is no campaign here yet: name its clients to make it")
    world, plan = make(problem, method, settings, start, stop)
    deadline = None if settings["deadline"] is None else timedelta(days=settings["deadline"])

    def with_history(data: Arrays) -> Fold:
        assert isinstance(method, PRM)
        informed = replace(method, history=fitted_history(data))
        return Fold(make_setup(make(problem, informed, settings, start, stop)[1]))

    fold = Fold(make_setup(plan))
    journal = Journal(store, fold, settings["clients"], deadline, settings["rounds"], clock, with_history)
    names, columns = (problem.names, problem.columns) if isinstance(problem, LiveProblem) else (None, None)
    theta_names = names_of(trees.take(plan.models, 0), names)
    more = {"names": theta_names} | ({} if source is None else {"source": source})
    differing = begin(journal, settings, {"identity": identity(world, plan)}, more)
    _check_same(given, journal.ledger.settings)  # another process may have made it in the meantime
    if differing:
        raise InputError(
            f"this campaign was made with something else: {'; '.join(differing)}. Nothing was written; take what it "
            "was made with, or make a new campaign under another name"
        )
    sample = trees.row_shape(journal.fold.setup.like)
    stated = None if columns is None else names_of(sample, columns, "columns")
    return Opened(world, journal, theta_names, stated)


def begin(
    journal: Journal, settings: dict[str, Any], words: dict[str, dict[str, str]], more: dict[str, Any] | None = None
) -> list[str]:
    """Write the first event if there is none, with ``more`` in it; what in it differs from ``words``, and how."""
    theta = jax.tree.map(np.asarray, trees.take(journal.fold.plan.models, 0))

    def drafts() -> list[Draft]:
        if journal.ledger.opened is not None:
            return []
        at = journal.clock().astimezone(UTC).isoformat()
        body = {"settings": settings, **words, **(more or {})}
        return [Draft("opened", at, body, data=archive.named_arrays("theta", theta))]

    journal.tell(drafts)
    assert journal.ledger.opened is not None
    stored = journal.ledger.opened.body
    return [line for name, own in words.items() for line in difference(stored.get(name, {}), own)]


def make(
    problem: Problem | LiveProblem,
    method: Method,
    settings: dict[str, Any],
    initial: Theta | None,
    stop: StopWhenSettled | None,
) -> tuple[Problem, CompiledPlan]:
    """(the problem with its clients, the plan of a run of it that has no end)."""
    clients = settings["clients"]
    world = as_world(problem, len(clients))
    if world.count != len(clients):
        raise InputError(
            f"problem {world.name!r} has {world.count} clients, {len(clients)} are named: try one name per client"
        )
    if method.pooled:
        raise InputError(f"{method.name} pools raw data in one place; try a federated method such as profl.prm()")
    config = RunConfig(
        rounds=FOREVER,
        local_steps=settings["local_steps"],
        samples=settings["samples"],
        seeds=one_seed(settings["seed"]),
        participation=settings["participation"],
        scheme=settings["scheme"],
        initial=initial,
        min_reports=checks.positive_int("min_reports", settings["min_reports"]),
        stop=stop,
    )
    plan = make_plan(world, method, config, patience=FOREVER)
    return world, plan


def as_world(problem: Problem | LiveProblem, clients: int) -> Problem:
    """The problem with so many clients, where it does not state them itself."""
    if isinstance(problem, LiveProblem):
        return problem.problem(clients)
    check_problem(problem)
    return problem


def identity(problem: Problem, plan: CompiledPlan) -> dict[str, str]:
    """What a campaign is, in words: all that decides what is computed, but for the versions of libraries.

    A campaign lives longer than a library's version. Nor is the first model in it: it is in the log.
    """
    return split_fingerprint(problem, plan)[0]


def split_fingerprint(problem: Problem, plan: CompiledPlan) -> tuple[dict[str, str], dict[str, str]]:
    """(``identity``, the words that are left: only where they are the same are the bits)."""
    words = fingerprint("campaign", problem, plan)
    exact = {name: word for name, word in words.items() if name.startswith("package ") or name == "start"}
    return {name: word for name, word in words.items() if name not in exact}, exact


def open_store(url: str | None, name: str, create: bool) -> Store:
    """The log's place."""
    if url is None:
        return MemoryStore()
    from profl.campaign.sql import SqlStore

    return SqlStore(url, name, create)


def client_names(clients: Iterable[str]) -> list[str]:
    """The names, if they are different words."""
    names = list(clients) if isinstance(clients, Iterable) and not isinstance(clients, str) else [clients]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"clients must be their names, such as ['Basel', 'Bern'], got {names!r:.100}")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"every client needs a name of its own, {', '.join(repeated)} is there twice")
    return names


def days(deadline: float | timedelta) -> float:
    """A deadline in days."""
    if isinstance(deadline, timedelta):
        deadline = deadline / timedelta(days=1)
    try:
        datetime.now(UTC) + timedelta(days=checks.positive("deadline", deadline))
    except OverflowError as error:
        raise InputError(f"deadline must be so many days that the calendar has them, got {deadline:g}") from error
    return float(deadline)


def check_clock(clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """The clock, if it says which time zone it means."""
    if getattr(checks.function("clock", "() -> datetime", clock)(), "tzinfo", None) is None:
        raise InputError("clock must give a datetime with a time zone, such as datetime.now(UTC)")
    return clock


def _first_model(store: Store, opened: Event, problem: Problem | LiveProblem) -> Theta:
    """The model that the campaign began with."""
    world = as_world(problem, len(opened.body["settings"]["clients"]))
    like = trees.row_shape(trees.to_device(world.initial_models((0,))))
    try:
        return archive.restore_tree("theta", store.data([opened])[opened.seq], like, same_shape=True)
    except archive.DamagedFile as error:
        raise InputError(f"this campaign was made with another problem: {error}; nothing was written") from error


def _check_same(given: dict[str, Any], stored: dict[str, Any]) -> None:
    """Refuse settings that differ from those that the campaign was made with."""
    for name, value in given.items():
        if value is not None and value != stored[name]:
            raise InputError(
                f"this campaign was made with {name} {checks.words(repr(stored[name]))}, "
                f"got {checks.words(repr(value))}; nothing was written"
            )
