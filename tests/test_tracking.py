"""Callbacks are told of every record of a run under way, in every engine, and write its own figures; Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import threading
from importlib.util import find_spec

import numpy as np
import pytest

import profl
from profl import callbacks
from profl.results.callbacks import TOTALS

CASE = profl.cases.housing(clients=2)
METHOD = profl.pfl()
SETTINGS = {"rounds": 7, "samples": 20, "seeds": range(2), "record_every": 3, "progress": False}
ROUNDS = [0, 3, 6, 7]
COMPARED = ("risk", "excess", "deployed_regret", "to_optimum", "deployments", "samples", "bytes_up", "refused")


@pytest.fixture(scope="module")
def told():
    seen = []
    run = profl.simulate(CASE, METHOD, **SETTINGS, callbacks=seen.append)
    return run, seen


def agree(run, seen):
    """Records as they came are those of the finished run."""
    assert [record.round for record in seen] == run.rounds.tolist()
    for name in COMPARED:
        np.testing.assert_allclose(np.stack([record.figures[name] for record in seen], 1), getattr(run, name), 1e-12)
    np.testing.assert_array_equal(np.stack([record.theta for record in seen], 1), run.theta)


def test_callbacks_see_every_record_and_change_nothing(told):
    run, seen = told
    agree(run, seen)
    assert run.rounds.tolist() == ROUNDS
    np.testing.assert_array_equal(profl.simulate(CASE, METHOD, **SETTINGS).theta, run.theta)


def test_with_a_checkpoint_the_same_records_also_after_a_stop(told, tmp_path):
    run, _ = told
    first, rest = [], []
    stop = [first.append, lambda record: record.round == 3]
    short = profl.simulate(CASE, METHOD, **SETTINGS, checkpoint=tmp_path, callbacks=stop)
    assert short.rounds.tolist() == [0, 3]
    assert short.stop_reason == ("a callback asked for it",) * 2
    again = profl.simulate(CASE, METHOD, **SETTINGS, checkpoint=tmp_path, callbacks=rest.append)
    np.testing.assert_allclose(again.theta, run.theta, rtol=1e-6)
    agree(again, [*first, *rest])


def test_train_and_flower_tell_what_simulate_tells(told):
    one = {**SETTINGS, "seeds": [1]}
    del one["seeds"]
    expected = [{name: record.figures[name][1] for name in TOTALS} for record in told[1]]
    seen = []
    clients = profl.worlds.simulated_clients(CASE, METHOD, samples=20, seed=1)
    run = profl.train(CASE, METHOD, clients, **one, seed=1, callbacks=seen.append)
    agree(run, seen)
    assert [{name: record.figures[name][0] for name in TOTALS} for record in seen] == expected
    if find_spec("flwr") is not None:
        from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

        del one["progress"]
        over, federation = [], Federation(CASE, METHOD, 2, seed=1, **one)
        strategy = ProFLStrategy(federation, wait=1.0, callbacks=[over.append, lambda record: record.round == 6])
        run = strategy.run(InProcessGrid(make_client_app(federation), 2))
        agree(run, over)
        assert run.rounds.tolist() == ROUNDS[:3]


def test_what_is_no_function_and_the_debug_engine_are_refused():
    with pytest.raises(profl.InputError, match="every callback must be a function of a record, got 3"):
        profl.simulate(CASE, METHOD, rounds=1, callbacks=[3])
    with pytest.raises(profl.InputError, match="callbacks needs engine='fast'"):
        profl.simulate(CASE, METHOD, rounds=1, engine="debug", callbacks=print)


def test_early_stopping():
    stop = callbacks.EarlyStopping("excess", patience=2, least=1e9)
    run = profl.simulate(CASE, METHOD, **SETTINGS, callbacks=stop)
    assert run.rounds.tolist() == ROUNDS[:3]  # the first is the best; two more are not better by so much
    with pytest.raises(profl.InputError, match=r"unknown figure 'rsk' to stop by; there are: .*risk"):
        profl.simulate(CASE, METHOD, **SETTINGS, callbacks=callbacks.EarlyStopping("rsk"))


def test_files_grow_with_the_run(told, tmp_path):
    lengths = []
    files = [callbacks.JsonLines(tmp_path / "a.jsonl"), callbacks.Csv(tmp_path / "a.csv")]

    def look(record):
        lengths.append(len((tmp_path / "a.jsonl").read_text().splitlines()))

    run = profl.simulate(CASE, METHOD, **SETTINGS, callbacks=[*files, look])
    assert lengths == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    for found in (lines, rows):
        assert [int(row["round"]) for row in found] == ROUNDS
        assert float(found[-1]["excess"]) == pytest.approx(run.excess[:, -1].mean())
        assert "accuracy" not in found[0]
    with pytest.raises(profl.InputError, match="no such folder"):
        callbacks.JsonLines(tmp_path / "no" / "a.jsonl")


def test_terminal(capsys):
    profl.simulate(CASE, METHOD, **SETTINGS, callbacks=callbacks.Terminal(every=2))
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "pfl on housing, round 0",
        "pfl on housing, round 6",
    ]


@pytest.mark.skipif(find_spec("mlflow") is None, reason="needs MLflow")
def test_mlflow_itself(tmp_path):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    run = profl.simulate(CASE, METHOD, **SETTINGS, callbacks=callbacks.MLflow("housing"))
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("housing").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm"] == "pfl"
    history = client.get_metric_history(found.info.run_id, "risk")
    assert {point.step: point.value for point in history} == pytest.approx(
        dict(zip(ROUNDS, run.risk.mean(0), strict=True))
    )


@pytest.mark.skipif(find_spec("tensorboardX") is None, reason="needs tensorboardX")
def test_tensorboard_itself(tmp_path):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    run = profl.simulate(CASE, METHOD, **SETTINGS, callbacks=callbacks.TensorBoard(tmp_path))
    (file,) = tmp_path.iterdir()
    data, found = file.read_bytes(), {}
    while data:  # length, its checksum, the event, its checksum
        size = int.from_bytes(data[:8], "little")
        body = data[12 : 12 + size]
        assert masked_crc32c(body) == int.from_bytes(data[12 + size : 16 + size], "little")
        event, data = Event.FromString(body), data[16 + size :]
        values = {value.tag: value.simple_value for value in event.summary.value}
        if "housing/pfl/risk" in values:
            found[event.step] = values["housing/pfl/risk"]
    assert found == pytest.approx(dict(zip(ROUNDS, run.risk.mean(0), strict=True)), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "module"), [(callbacks.MLflow, "mlflow"), (lambda: callbacks.TensorBoard("x"), "tensorboardX")]
)
def test_a_missing_package_is_named(monkeypatch, make, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"needs {module}: pip install"):
        make()


# -- Ctrl-C


@pytest.fixture
def heard():
    """Python's own answer to Ctrl-C, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press(record):
    if record.round == 3:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("folder", [None, "checkpoint"])
def test_an_interrupt_holds_what_was_done(told, folder, tmp_path):
    kept = {} if folder is None else {"checkpoint": tmp_path}
    with pytest.raises(profl.Interrupted, match="interrupted after round 3 of 7") as found:
        profl.simulate(CASE, METHOD, **SETTINGS, **kept, callbacks=press)
    np.testing.assert_allclose(found.value.run.theta, told[0].theta[:, :2], rtol=1e-6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if kept:
        again = profl.simulate(CASE, METHOD, **SETTINGS, **kept)
        np.testing.assert_allclose(again.theta, told[0].theta, rtol=1e-6)


@pytest.mark.usefixtures("heard")
def test_a_live_run_is_interrupted_while_a_client_waits(told):
    rounds = []
    wait = threading.Event()

    class Slow:
        def __init__(self, client):
            self.client = client

        def deploy(self, theta, samples, step):
            if step == 3 * 5:
                os.kill(os.getpid(), signal.SIGINT)
                wait.wait(30)
            return self.client.deploy(theta, samples, step)

    first, *others = profl.worlds.simulated_clients(CASE, METHOD, samples=20, seed=1)
    clients = [Slow(first), *others]
    one = {name: value for name, value in SETTINGS.items() if name != "seeds"}
    with pytest.raises(profl.Interrupted, match="after round 3 of 7") as found:
        profl.train(CASE, METHOD, clients, **one, seed=1, callbacks=lambda record: rounds.append(record.round))
    wait.set()
    assert rounds == [0, 3]
    np.testing.assert_allclose(found.value.run.theta[0], told[0].theta[1, :2], rtol=1e-5)
