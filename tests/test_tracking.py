"""Callbacks: what they write is the run's own figures, and one that lacks its package says which."""

from __future__ import annotations

import csv
import sys
from types import SimpleNamespace

import pytest

import profl
from profl.results import tracking


@pytest.fixture(scope="module")
def run():
    case = profl.cases.housing(clients=2)
    return profl.simulate(case, profl.pfl(), rounds=3, samples=20, seeds=range(2), progress=False)


def test_simulate_calls_each_in_turn(tmp_path):
    seen = []
    case = profl.cases.housing(clients=2)
    found = profl.simulate(
        case, profl.pfl(), rounds=3, samples=20, seeds=range(2), progress=False, callbacks=[seen.append, seen.append]
    )
    assert seen == [found, found]


def test_csv(run, tmp_path):
    tracking.csv(tmp_path / "run.csv")(run)
    rows = list(csv.DictReader((tmp_path / "run.csv").open()))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[-1]["excess"]) == pytest.approx(run.excess[:, -1].mean())
    assert "accuracy" not in rows[0]


def test_terminal(run, capsys):
    tracking.terminal(every=2)(run)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "pfl on housing, round 0",
        "pfl on housing, round 2",
    ]


class Recorder:
    """Stands for MLflow and for TensorBoard's writer."""

    def __init__(self, *_):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **named: self.calls.append((name, arguments, named)) or self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_mlflow(run, monkeypatch):
    fake = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    tracking.mlflow("paper")(run)
    names = [name for name, _, _ in fake.calls]
    assert names == ["set_experiment", "start_run", "log_params", *["log_metrics"] * 4]
    assert fake.calls[-1][1][0]["risk"] == pytest.approx(run.risk[:, -1].mean())
    assert fake.calls[-1][2] == {"step": 3}


def test_tensorboard(run, monkeypatch, tmp_path):
    writer = Recorder()
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=lambda path: writer))
    tracking.tensorboard(tmp_path)(run)
    last = [call for call in writer.calls if call[1] and call[1][0] == "housing/pfl/risk"][-1]
    assert last[1][1:] == (pytest.approx(run.risk[:, -1].mean()), 3)
    assert writer.calls[-1][0] == "close"


@pytest.mark.parametrize(
    ("make", "module"), [(tracking.mlflow, "mlflow"), (lambda: tracking.tensorboard("x"), "tensorboardX")]
)
def test_a_missing_package_is_named(run, monkeypatch, make, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"needs {module}: pip install"):
        make()(run)
