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
    """A process that dies in a callback costs no data: the run goes on after the round that it was told of."""

    def dies(record):
        if record.round == 2:
            raise SystemExit

    shop = Counted()
    with pytest.raises(SystemExit):
        profl.train(SHOP, profl.pfl(), [shop], **RUN, checkpoint=tmp_path, callbacks=dies)
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


class Fails(Counted):
    """A shop whose every ``last``-th deployment of a round fails."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def deploy(self, theta, samples, step, id):
        batch = super().deploy(theta, samples, step, id)
        if step % 5 == self.last - 1:
            raise ConnectionError("no route")
        return batch


FIVE = {**RUN, "rounds": 2, "local_steps": 5}


@pytest.mark.parametrize("last", [1, 3, 5])
def test_what_was_deployed_counts_where_no_report_came_of_it(last, tmp_path):
    """A client that fails in its last step has deployed five times, and its samples were paid for."""
    seen = []
    clients = [Counted(), Fails(last)]
    run = profl.train(SHOP, profl.pfl(), clients, **FIVE, checkpoint=tmp_path, callbacks=seen.append)
    made = [len(shop.asked) for shop in clients]
    assert made == [10, 2 * last]
    assert run.deployments[0].tolist() == [0, 5 + last, sum(made)]
    assert run.samples[0].tolist() == [0, 20 * (5 + last - 1), 20 * (sum(made) - 2)]
    assert run.live.absent[0].tolist() == [0, 1, 1]
    alone = profl.train(SHOP, profl.pfl(), [Counted(), Counted(1)], **FIVE)
    assert run.bytes_up[0, -1] == alone.bytes_up[0, -1] / 2  # of reports there were half as many
    for name in ("deployments", "samples"):
        assert [record.figures[name][0] for record in seen] == getattr(run, name)[0].tolist()
        again = profl.train(SHOP, profl.pfl(), clients, **FIVE, checkpoint=tmp_path)
        np.testing.assert_array_equal(getattr(again, name), getattr(run, name))
    log = profl.Campaign(f"sqlite:///{tmp_path}/campaign.db", SHOP.problem(2), profl.pfl(), name="train")
    log._journal.store.snapshots = lambda: iter(())
    with log:  # folded from the start
        np.testing.assert_array_equal(log.run().deployments, run.deployments)
        np.testing.assert_array_equal(log.run().samples, run.samples)


def test_the_deployments_of_a_round_without_enough_reports_count():
    clients = [Counted(), Fails(5)]
    with pytest.raises(profl.TooFewReports) as found:
        profl.train(SHOP, profl.pfl(), clients, **{**FIVE, "rounds": 9}, min_reports=2, patience=2)
    assert sum(len(shop.asked) for shop in clients) == 20
    assert found.value.run.deployments[0, -1] == 20
    assert found.value.run.samples[0, -1] == 20 * 18


def test_what_was_never_put_to_use_does_not_count():
    campaign = profl.Campaign(None, SHOP.problem(3), profl.pfl(), clients=["Basel", "Bern", "Chur"], samples=20)
    campaign.ask()
    campaign.tell(1, np.full((20, 2), 3.0))
    campaign.withdraw(2)
    campaign.skip(3, "no data were kept")
    campaign.ask()
    assert campaign.run().deployments[0].tolist() == [0, 2]
    assert campaign.run().samples[0].tolist() == [0, 20]
