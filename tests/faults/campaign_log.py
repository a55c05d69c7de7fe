"""The campaign of the schedules of faults, and what must hold of its log in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

import profl
from profl.campaign import Campaign, Deployment, setting_up
from tests.faults.common import Broken, same
from tests.problems import QUICK, unmeasured

NAMES = ["Basel", "Bern"]
CASE = unmeasured(profl.cases.pricing(clients=len(NAMES), goods=2))
METHOD = profl.pofl(jacobian=QUICK)
ROUNDS, STEPS, SAMPLES, DEADLINE = 3, 2, 4, 7.0
START = datetime(2026, 1, 5, tzinfo=UTC)
Seen = dict[int, tuple[str, int, int, bytes]]  # what ``ask`` returned: {id: (client, round, step, model)}
Outcome = tuple[tuple[int, str, int, str], ...]  # (round, client, step, how it ended)


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
