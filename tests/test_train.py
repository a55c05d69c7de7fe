"""``train`` as a driver of a campaign: deployments have numbers, what is open is collected or deployed again."""

from __future__ import annotations

import numpy as np
import pytest

import profl
from profl.campaign.crew import Crew
from tests.test_loop import SHOP, Shop

RUN = {"rounds": 3, "local_steps": 2, "samples": 20, "progress": False}


class Crash(Exception):
    pass


class Counted(Shop):
    """A shop that writes down what it was asked for."""

    def __init__(self, number=0):
        super().__init__(number)
        self.asked = []

    def deploy(self, theta, samples, step, id):
        self.asked.append((id, step, theta.tolist()))
        return self.demand(theta, samples)


class Kept(Counted):
    """One that can hand over again what a deployment brought in."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.collected = answer, []

    def collect(self, id, theta, samples):
        self.collected.append((id, theta.tolist()))
        theta[:] = np.nan  # its own copy
        return self.answer(samples)


class KeptLater(Kept):
    async def collect(self, id, theta, samples):
        return super().collect(id, theta, samples)


def test_numbers_of_deployments_never_repeat_and_steps_count_a_clients_own():
    shops = [Counted(0), Counted(1)]
    profl.train(SHOP, profl.pfl(), shops, **RUN)
    assert [step for _, step, _ in shops[0].asked] == [0, 1, 2, 3, 4, 5]
    assert sorted(id for shop in shops for id, _, _ in shop.asked) == list(range(1, 13))


@pytest.fixture
def open_run(tmp_path):
    """A folder whose run ended when its first deployment had been asked for."""

    def crash(self, *arguments):
        begin(self, *arguments)
        raise Crash

    begin = Crew._start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Crew, "_start", crash)
        with pytest.raises(Crash):
            profl.train(SHOP, profl.pfl(), [Counted()], **RUN, checkpoint=tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", [Kept, KeptLater])
def test_what_is_open_is_collected(kind, open_run):
    shop = kind(lambda samples: np.full((samples, 2), 3.0))
    run = profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=open_run)
    assert shop.collected == [(1, [3.0, 3.0])]
    assert [id for id, _, _ in shop.asked] == [2, 3, 4, 5, 6]
    assert not run.incidents
    assert run.samples[0, -1] == 6 * 20


@pytest.mark.parametrize("kind", [Kept, KeptLater])
def test_who_never_deployed_it_deploys(kind, open_run):
    shop = kind(lambda samples: None)
    run = profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=open_run)
    assert shop.collected == [(1, [3.0, 3.0])]
    assert shop.asked[0] == (1, 0, [3.0, 3.0])
    assert len(shop.asked) == 6
    assert not run.incidents


def test_data_that_cannot_be_used_are_an_incident_when_collected_too(open_run):
    shop = Kept(lambda samples: np.full((samples, 2), np.nan))
    run = profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=open_run)
    assert run.incidents[0][2].endswith("is NaN or Inf in 20 of 20 rows")
    assert [id for id, _, _ in shop.asked] == [2, 3, 4, 5]  # from the second round on


def test_what_is_told_is_in_the_log_before_anybody_hears_of_it(tmp_path):
    """A callback that fails costs no data: the run goes on after the round that it was told of."""

    def fails(record):
        if record.round == 2:
            raise Crash

    shop = Counted()
    with pytest.raises(Crash):
        profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=tmp_path, callbacks=fails)
    profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=tmp_path)
    assert [id for id, _, _ in shop.asked] == [1, 2, 3, 4, 5, 6]


def test_a_run_that_was_given_up_stays_so(tmp_path):
    class Broken(Counted):
        def deploy(self, theta, samples, id):
            self.asked.append(id)
            raise ConnectionError("no route")

    shop = Broken()
    for _ in range(2):
        with pytest.raises(profl.TooFewReports, match="no route"):
            profl.train(SHOP, profl.pfl(), [shop], **{**RUN, "rounds": 9}, patience=2, checkpoint=tmp_path)
    assert shop.asked == [1, 2]


def test_clients_that_pause_are_asked_again_much_later():
    """Of clients that are drawn seldom, the log in memory keeps what the next deployment is compared with."""
    run = profl.train(SHOP, profl.pfl(), [Counted(i) for i in range(5)], **{**RUN, "rounds": 12, "participation": 0.2})
    assert not run.incidents
