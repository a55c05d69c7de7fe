"""What a callback or ``report`` raises never costs a round: saved first, then told; a failure is an incident."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import numpy as np
import pytest

import profl
from tests.test_loop import SHOP
from tests.test_train import Counted

RUN = {"rounds": 4, "local_steps": 2, "samples": 20, "progress": False}
CASE, METHOD = profl.cases.housing(clients=2), profl.pfl()
SIMULATED = {"rounds": 4, "samples": 20, "seeds": [0], "progress": False}


class Faulty:
    """A callback that raises at some rounds, and notes all."""

    def __init__(self, rounds, error=None):
        self.rounds, self.error, self.seen, self.closed = rounds, error or KeyError("figure"), [], False

    def __call__(self, record):
        self.seen.append(record.round)
        if record.round in self.rounds:
            raise self.error
        return False

    def close(self):
        self.closed = True
        raise OSError("cannot close")


class Failing(Counted):
    """A shop that is told about: its third deployment fails."""

    def deploy(self, theta, samples, step, id):
        batch = super().deploy(theta, samples, step, id)
        if id == 3:
            raise ConnectionError("no route")
        return batch


SAID = "the callback Faulty raised KeyError: 'figure', and 2 times more; the run went on"


@pytest.mark.parametrize("kept", [False, True])
def test_a_live_run_goes_on(kept, tmp_path, caplog):
    shop, faulty, said = Counted(), Faulty([1, 3]), []
    folder = {"checkpoint": tmp_path} if kept else {}
    hooks = {"callbacks": faulty, "report": said.append}
    run = profl.train(SHOP, METHOD, [shop], **RUN, **folder, **hooks)
    assert [id for id, _, _ in shop.asked] == [*range(1, 9)]
    assert faulty.seen == [0, 1, 2, 3, 4]
    assert faulty.closed
    assert run.incidents == ((1, -1, SAID),)
    assert f"round 1: {SAID}" in " ".join(run.summary().split())
    assert said == ["round 1: the callback Faulty raised KeyError: 'figure'; the run went on"]
    assert caplog.text.count("Traceback") == 1  # nobody overlooks it


def test_a_report_that_fails_costs_no_round_and_hides_nothing(tmp_path):
    """Each restart deployed the steps of the last round again."""

    def report(sentence):
        raise BrokenPipeError("nobody reads")

    shop = Failing()
    for _ in range(3):
        run = profl.train(SHOP, METHOD, [shop, Counted(1)], **RUN, report=report, checkpoint=tmp_path)
    assert len({id for id, _, _ in shop.asked}) == len(shop.asked)
    assert run.incidents[0][2].startswith("raised ConnectionError")
    first = profl.train(SHOP, METHOD, [Failing(), Counted(1)], **RUN, report=report)
    assert first.incidents[-1] == (1, -1, "report raised BrokenPipeError: nobody reads; the run went on")


def test_a_simulation_with_a_checkpoint_goes_on(tmp_path):
    faulty = Faulty([1, 3])
    run = profl.simulate(CASE, METHOD, **SIMULATED, checkpoint=tmp_path, callbacks=faulty)
    assert run.rounds[-1] == 4
    assert faulty.seen == [0, 1, 2, 3, 4]
    assert run.incidents == ((1, -1, SAID),)
    assert SAID in " ".join(run.summary().split())
    run.save(tmp_path / "run.npz")
    assert profl.load(tmp_path / "run.npz").incidents == run.incidents


def test_a_simulation_without_one_ends_with_the_error_which_holds_what_was_done():
    faulty, others = Faulty([2]), []
    with pytest.raises(KeyError, match="figure") as found:
        profl.simulate(CASE, METHOD, **SIMULATED, callbacks=[faulty, others.append])
    assert found.value.run.rounds.tolist() == [0, 1, 2]
    assert faulty.seen == [record.round for record in others] == [0, 1, 2]
    with pytest.raises(OSError, match="cannot close") as found:
        profl.simulate(CASE, METHOD, **SIMULATED, callbacks=Faulty([]))
    assert found.value.run.rounds[-1] == 4


def test_a_process_that_dies_in_a_callback_has_saved_the_round(tmp_path):
    with pytest.raises(SystemExit):
        profl.simulate(CASE, METHOD, **SIMULATED, checkpoint=tmp_path, callbacks=Faulty([3], SystemExit(1)))
    assert (tmp_path / "round-00000003.npz").exists()


@pytest.mark.parametrize("how", ["raised", "pressed"])
def test_a_callback_still_ends_a_run_and_so_does_an_interrupt(how):
    def interrupt(record):
        if record.round == 2:
            if how == "raised":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)

    stop = [Faulty([1]), lambda record: record.round == 2]
    run = profl.train(SHOP, METHOD, [Counted()], **RUN, callbacks=stop)
    assert run.rounds[-1] == 2
    assert run.stop_reason == ("a callback asked for it",)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for work in (
            lambda: profl.train(SHOP, METHOD, [Counted()], **RUN, callbacks=interrupt),
            lambda: profl.simulate(CASE, METHOD, **SIMULATED, callbacks=interrupt),
        ):
            with pytest.raises(profl.Interrupted, match="interrupted after round 2 of 4") as found:
                work()
            assert found.value.run.rounds[-1] == 2
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")
def test_flowers_server_saves_a_round_before_it_tells_of_it(tmp_path):
    from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app
    from tests.faults import flower

    own, told = flower.federation(), []

    class Lost(InProcessGrid):
        def deliver(self, message):
            orders = [message.content["order"]["round"]] if "order" in message.content else []
            return [] if orders == [2] and message.metadata.dst_node_id == 100 else super().deliver(message)

    def report(sentence):
        told.append((sentence, max(int(file.name[6:14]) for file in tmp_path.glob("round-*.npz"))))
        raise BrokenPipeError("nobody reads")

    grid = Lost(make_client_app(own), own.clients)
    strategy = ProFLStrategy(own, wait=1.0, checkpoint=tmp_path, report=report, callbacks=Faulty([1, 3]))
    run = strategy.run(grid)
    assert run.rounds[-1] == flower.ROUNDS
    assert told[-1][1] >= 1
    assert all(f"round {saved}" in sentence for sentence, saved in told)
    assert {client for _, client, _ in run.incidents} >= {-1}
    np.testing.assert_array_equal(np.isfinite(run.theta), True)
