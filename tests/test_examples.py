"""The examples run as they stand, and end where they say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import profl
from profl.cli import app
from profl.data import credit
from profl.data.orange_juice import demand
from tests.made import made_credit

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.pages


@pytest.mark.slow
def test_retailers_through_train():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "retailers" / "run.py")], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr  # within 0.1 % of the revenue at the true optimum
    assert "0 incidents" in done.stdout


def test_retailers_through_train_in_short(monkeypatch, tmp_path):
    """The loop with the real markets, each a process; three rounds of a method that is quick to compile."""
    pytest.importorskip("flwr")  # which the example's settings need
    monkeypatch.syspath_prepend(str(EXAMPLES / "retailers"))
    import retailers

    spec = importlib.util.spec_from_file_location("retailers_run", EXAMPLES / "retailers" / "run.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    own = retailers.federation.with_rounds(3)
    own.method = profl.pfl(0.5)
    monkeypatch.setattr(retailers, "federation", own)
    monkeypatch.setitem(retailers.SETTINGS, "rounds", 3)
    with example.markets(tmp_path):
        run = example.through_train(tmp_path)
    assert not run.incidents
    assert run.samples[0].tolist() == [0, *(retailers.RETAILERS * retailers.DAYS * round_ for round_ in (1, 2, 3))]
    assert 0 < example.report(run) < 1


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


@pytest.fixture
def here(monkeypatch):
    """``here(seed)``: the example's retailers, with the market answering in this process."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "retailers"))
    import market
    import retailers

    class Here(retailers.Retailer):
        def __init__(self, number, seed):
            self.number, self.seed = number, seed

        def deploy(self, prices, samples, step):
            connection = market.open_database(":memory:")
            market.answer(connection, self.number, step, [float(p) for p in prices], samples, self.seed)
            return np.array(connection.execute("SELECT a, b, c FROM orders").fetchall(), dtype=float)

    return lambda seed: [Here(number, seed) for number in range(retailers.RETAILERS)]


def test_retailers_deploy_25_times(here):
    import retailers

    assert retailers.federation.config.rounds * retailers.federation.config.local_steps == 25


@pytest.mark.slow
def test_retailers_reach_the_best_revenue_with_other_seeds(here):
    """99.9 % of it, as the example's README says, whatever customers order and whatever is tried."""
    import market
    import retailers

    own, best = retailers.federation, market.revenue(market.best_prices())
    for seed in range(3):
        run = profl.train(own.problem, own.method, here(seed), seed=seed, progress=False, **retailers.SETTINGS)
        assert market.revenue([float(price) for price in run.theta[0, -1]]) / best >= 0.999


@pytest.mark.parametrize("method", [profl.pfl(), pytest.param(None, marks=pytest.mark.slow)], ids=["pfl", "its own"])
def test_retailers_in_process_give_the_same_prices(method, here):
    """The loop and Flower, a few rounds; in single precision a fit to three deployments shows its rounding.

    By default with a method that is quick to compile; ``test_methods`` holds the example's own to one trajectory.
    """
    pytest.importorskip("flwr")
    import retailers

    from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app

    own, clients = retailers.federation.with_rounds(3), here(0)
    if method is not None:
        own.method = method
    with jax.enable_x64(True):
        settings = {**retailers.SETTINGS, "rounds": 3}
        looped = profl.train(own.problem, own.method, clients, progress=False, **settings)
        flower = ProFLStrategy(own).run(InProcessGrid(make_client_app(own, clients), retailers.RETAILERS))
    np.testing.assert_allclose(flower.theta, looped.theta, atol=1e-9)


@pytest.mark.parametrize(
    "names", [("retraining (pfl)",), pytest.param(("retraining (pfl)", "prm"), marks=pytest.mark.slow)]
)
def test_orange_juice(names, monkeypatch, tmp_path):
    """Four stores, few price changes, one or two of the methods, and the picture."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import orange_juice as example

    monkeypatch.setattr(example, "RUNS", {name: example.RUNS[name] for name in names})
    found, prices = example.main(4, changes=8)
    assert found["stable point"] < found["prices as charged"] < found["optimum"]
    assert found["retraining (pfl)"] < found["optimum"]
    if "prm" in names:
        assert max(found["prices as charged"], found["retraining (pfl)"]) < found["prm"] < found["optimum"]
    example.plot(str(tmp_path / "prices.png"), prices, prices)
    assert (tmp_path / "prices.png").stat().st_size > 10_000


@pytest.mark.slow
def test_credit(monkeypatch):
    """On made data: the example runs, and its accuracies are accuracies."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "credit"))
    import run as example

    found = example.main(rounds=3, data=credit.table(made_credit()))
    assert set(found) == {"start", "stable point", "optimum", "retraining (pfl)", "pofl"}
    assert all(0 <= value <= 1 for value in found.values())


@pytest.mark.parametrize(("name", "package"), [("plain", "jax"), ("flax_nnx", "flax"), ("equinox_mlp", "equinox")])
def test_networks(name, package):
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "networks" / f"{name}.py")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = (float(word) for word in done.stdout.replace(",", " ").split() if word.startswith("0."))
    assert last < first, done.stdout


@pytest.fixture
def weekly(tmp_path, monkeypatch):
    """The weekly example in a folder of its own, with two of its stores."""
    for path in (EXAMPLES / "weekly").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "stores.csv").write_text("client\nstore 2\nstore 137\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("problem", "sales"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_weekly_in_short(weekly):
    """The commands of a week, in this process, with a method that is quick to compile."""
    import sales

    def call(*words):
        return CliRunner().invoke(app, ["campaign", *words, "--db", "prices.db"], catch_exceptions=False)

    start = np.ones(len(sales.NAMES))
    call("new", "problem.py:problem", "--clients", "stores.csv", "--samples", "7", "--method", "pfl")
    for _ in range(2):
        assert call("ask", "--csv", "next_week.csv").exit_code == 0
        asked = pandas.read_csv("next_week.csv")
        sales.sell(asked).to_csv("sales.csv", index=False)
        assert "told 2 deployments: 14 rows" in call("tell", "--csv", "sales.csv").output
        assert sales.worth(asked) > 0.5 * sales.worth(asked.assign(**dict(zip(sales.NAMES, start, strict=True))))
    call("page", "--out", "page.html")
    assert "store 137" in (weekly / "page.html").read_text()


def test_weekly_has_every_store():
    stores = pandas.read_csv(EXAMPLES / "weekly" / "stores.csv").client
    assert stores.tolist() == [f"store {number}" for number in demand().store]


@pytest.mark.slow
def test_weekly_as_cron_runs_it(weekly):
    bin_ = str(Path(sys.executable).parent)
    own = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "run.sh", "2"], capture_output=True, text=True, timeout=600, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ a store and week" in done.stdout
    assert (weekly / "page.html").is_file()
