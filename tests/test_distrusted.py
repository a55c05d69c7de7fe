"""A run names the clients that its rule distrusts: which, since when, why; and says where there are too few for it."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from tests.problems import QUICK, unmeasured
from tests.test_loop import SHOP, Shop

SETTINGS = {"rounds": 6, "local_steps": 1, "samples": 20, "progress": False}
METHOD = profl.profl(filter="none", jacobian=QUICK)


@dataclass(frozen=True)
class Corner(profl.server.Attack):
    """A corner of the space of prices, in every round."""

    def reports(self, reports, sent, first, hostile):
        model = reports["theta"]
        return {**reports, "theta": model.replace(jnp.full_like(model.value, 5.0))}


@pytest.fixture(scope="module")
def attacked():
    case = unmeasured(profl.cases.pricing(clients=5))
    return profl.simulate(case, METHOD, seeds=range(2), attack=Corner(), hostile=[3], **SETTINGS)


def test_a_hostile_client_is_named_with_its_first_round(attacked, tmp_path):
    assert {(one.seed, one.client) for one in attacked.distrusted} == {(0, 3), (1, 3)}
    assert all(1 <= one.since <= 2 and "far from the others'" in one.why for one in attacked.distrusted)
    sentence = next(line for line in attacked.summary().splitlines() if "count less" in line)
    assert "client 3 since round 1" in sentence
    assert "2 of 2 seeds" in sentence
    attacked.save(tmp_path / "run.npz")
    assert profl.load(tmp_path / "run.npz").distrusted == attacked.distrusted


def test_in_a_live_run_it_is_an_incident():
    class Off(Shop):
        def deploy(self, theta, samples):
            return self.demand(theta, samples) + 50.0

    told = []
    shops = [Off(number) if number == 3 else Shop(number) for number in range(5)]
    run = profl.train(SHOP, profl.pfl(aggregate="history"), shops, report=told.append, **SETTINGS)
    assert {(client, what) for _, client, what in run.incidents} == {
        (3, "counts less from now on: models far from the others'")
    }
    assert {one.client for one in run.distrusted} == {3}
    assert sum("counts less" in line for line in told) == 1


def test_too_few_clients_for_the_rule_are_said_and_enough_are_not(attacked):
    case = unmeasured(profl.cases.pricing(clients=3))
    few = profl.simulate(case, METHOD, seeds=[0], **SETTINGS)
    assert any("nobody can be outvoted" in note and "from 5 on" in note for note in few.notes)
    assert not any("outvoted" in note for note in attacked.notes)
    assert few.distrusted == ()


def test_rules_without_a_memory_distrust_nobody_by_name():
    method = profl.pfl(aggregate="median")
    assert method.averaging.distrusted({}) == {}
    assert profl.dfo().distrusted(()) == {}
    history = profl.dfo(aggregate="history")
    server = history.open(profl.cases.pricing(clients=2).functions.view()._replace(client_count=2), np.ones(5))
    assert set(history.distrusted(server)) == {
        "models far from the others'",
        "models copied or computed from the others'",
    }
