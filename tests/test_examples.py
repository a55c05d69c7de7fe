"""The examples run as they stand, and end where they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from profl.data import credit
from tests.made import made_credit

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_retailers_through_train():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "retailers" / "run.py")], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr  # within 2 % of the revenue at the true optimum
    assert "0 incidents" in done.stdout


@pytest.mark.slow
def test_retailers_through_flower():
    pytest.importorskip("flwr")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "retailers" / "run.py"), "--flower"],
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 incidents" in done.stdout


def test_retailers_in_process_give_the_same_prices(tmp_path, monkeypatch):
    """The loop and Flower, a few rounds, with the market answering in this process."""
    pytest.importorskip("flwr")
    monkeypatch.syspath_prepend(str(EXAMPLES / "retailers"))
    import market
    import retailers

    import profl
    from profl.engines.flower import InProcessGrid, ProFLStrategy, make_client_app

    class Here(retailers.Retailer):
        def __init__(self, number):
            self.number = number

        def deploy(self, prices, samples, step):
            connection = market.open_database(":memory:")
            market.answer(connection, self.number, step, [float(p) for p in prices], samples)
            return np.array(connection.execute("SELECT a, b, c FROM orders").fetchall(), dtype=float)

    own = retailers.federation.with_rounds(3)
    clients = [Here(i) for i in range(retailers.RETAILERS)]
    looped = profl.train(clients, own.method, own.problem, schedule=own.schedule, progress=False)
    flower = ProFLStrategy(own).run(InProcessGrid(make_client_app(own, clients), retailers.RETAILERS))
    np.testing.assert_allclose(flower.theta, looped.theta, atol=1e-5)


@pytest.mark.slow
def test_credit(monkeypatch):
    """On made data: the example runs, and its accuracies are accuracies."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "credit"))
    import run as example

    found = example.main(rounds=3, data=credit.table(made_credit()))
    assert set(found) == {"start", "stable point", "optimum", "retraining (pfl)", "pofl"}
    assert all(0 <= value <= 1 for value in found.values())
