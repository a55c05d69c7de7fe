"""The live loop: the same trajectory as the simulation, and what it does when clients are slow, silent or broken."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from tests.killed import CASE, revenue

SMALL = {"rounds": 4, "local_steps": 2, "progress": False}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(profl.pfl(), marks=pytest.mark.slow),
        pytest.param(profl.pofl(), marks=pytest.mark.slow),
        profl.profl(filter="none", share=2),  # the same step, and what is shared
        pytest.param(
            profl.profl(filter="none", samples=profl.parts.AdaptiveSamples(0.2, 20, 80)), marks=pytest.mark.slow
        ),
    ],
    ids=["pfl", "pofl", "shared", "adaptive"],
)
def test_loop_flower_and_simulate_agree(method):
    settings = {**SMALL, "samples": [20, 30, 40, 30], "participation": 0.75}
    fast = profl.simulate(CASE, method, seeds=[3], **settings)
    clients = profl.worlds.simulated_clients(CASE, method, samples=settings["samples"], seed=3)
    live = profl.train(CASE, method, clients, seed=3, **settings)
    np.testing.assert_allclose(live.theta, fast.theta, atol=1e-5)
    for name in ("deployments", "samples", "bytes_up", "bytes_down", "refused"):
        np.testing.assert_array_equal(getattr(live, name), getattr(fast, name))
    if getattr(method, "share", None) is not None:
        np.testing.assert_array_equal(live.jacobians.groups, fast.jacobians.groups)
    if find_spec("flwr") is None:
        return
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    del settings["progress"]
    federation = Federation(CASE, method, 4, seed=3, **settings)
    strategy = ProFLStrategy(federation, wait=1.0)
    over = strategy.run(InProcessGrid(make_client_app(federation), 4))
    assert not over.incidents
    np.testing.assert_allclose(over.theta, fast.theta, atol=1e-5)
    for name in ("deployments", "samples", "refused"):
        np.testing.assert_array_equal(getattr(over, name), getattr(fast, name))
    assert over.settings["wire_bytes_up"] == strategy.bytes_up > fast.bytes_up[0, -1]
    if getattr(method, "share", None) is not None:
        np.testing.assert_array_equal(over.jacobians.groups, fast.jacobians.groups)
        np.testing.assert_allclose(over.jacobians.own, fast.jacobians.own, atol=1e-4)


@pytest.mark.slow
def test_exact_figures_where_the_problem_states_them():
    case, method = profl.cases.housing(clients=2), profl.pofl()
    fast = profl.simulate(case, method, seeds=[1], **SMALL, samples=30)
    live = profl.train(
        case, method, profl.worlds.simulated_clients(case, method, samples=30, seed=1), seed=1, **SMALL, samples=30
    )
    for name in ("theta", "excess", "deployed_regret"):
        np.testing.assert_allclose(getattr(live, name)[:, 1:], getattr(fast, name)[:, 1:], atol=1e-5)


SHOP = profl.LiveProblem("shop", revenue, profl.GaussianMean(), np.zeros(2), np.array([3.0, 3.0]), profl.Box(0.0, 6.0))


class Shop:
    """Demand 6 - 2 theta plus noise, one batch per deployment."""

    def __init__(self, number=0, form=np.asarray):
        self.rng, self.form = np.random.default_rng(number), form

    def demand(self, theta, samples):
        return 6.0 - 2.0 * theta + self.rng.normal(size=(samples, 2))

    def deploy(self, theta, samples):
        return self.form(self.demand(theta, samples))


def test_a_loss_and_a_family_are_enough():
    """With demand 6 - 2 theta the best price is 1.5; retraining would go to 3."""
    run = profl.train(SHOP, profl.pofl(0.05), [Shop(i) for i in range(3)], rounds=30, samples=100, progress=False)
    np.testing.assert_allclose(run.theta[0, -1], 1.5, atol=0.1)
    assert run.live.risk[0, -1] == pytest.approx(-9.0, abs=0.5)
    assert np.isnan(run.risk).all()  # nothing exact is known
    assert run.live.jacobian_error[0, -1] > 0
    assert "clients' own risk" in run.summary()


def test_forms_of_a_batch():
    """numpy, nested lists, pandas, JAX, fewer rows than asked, more rows: the same numbers are the same run."""
    import pandas

    forms = [np.asarray, lambda z: z.tolist(), lambda z: pandas.DataFrame(z, columns=["a", "b"]), jnp.asarray]
    runs = [profl.train(SHOP, profl.pfl(), [Shop(0, form)], **SMALL, samples=20) for form in forms]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.theta, runs[0].theta)
    for rows in (7, 50):
        run = profl.train(SHOP, profl.pfl(), [Shop(0, lambda z, n=rows: np.resize(z, (n, 2)))], **SMALL, samples=20)
        assert run.samples[0, -1] == rows * 8
        assert not run.incidents


def test_a_frame_stands_for_a_dict():
    import pandas

    def loss(theta, z):
        return 0.5 * (z["x"] @ theta - z["y"]) ** 2

    class Frame:
        def deploy(self, theta, samples):
            x = np.random.default_rng(0).normal(size=(samples, 2))
            return pandas.DataFrame({"age": x[:, 0], "y": x @ [1.0, 2.0], "income": x[:, 1]})

    problem = profl.LiveProblem("frame", loss, profl.LinearGaussian(), {"x": np.zeros(2), "y": 0.0}, np.zeros(2))
    run = profl.train(problem, profl.pfl(0.3), [Frame()], rounds=20, samples=50, progress=False)
    np.testing.assert_allclose(run.theta[0, -1], [1.0, 2.0], atol=1e-3)


class Slow(Shop):
    def deploy(self, theta, samples):
        time.sleep(2.0)
        return super().deploy(theta, samples)


class Broken(Shop):
    def deploy(self, theta, samples):
        raise ConnectionError("no route")


class Silent(Shop):
    def deploy(self, theta, samples):
        return None


class NotNumbers(Shop):
    def deploy(self, theta, samples):
        return np.full((samples, 2), np.nan)


class WrongShape(Shop):
    def deploy(self, theta, samples):
        return np.zeros((samples, 3))


class Coroutine(Shop):
    async def deploy(self, theta, samples):
        await asyncio.sleep(0.001)
        return self.demand(theta, samples)


class SlowCoroutine(Shop):
    async def deploy(self, theta, samples):
        await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (Slow, "took longer than 0.4 s"),
        (SlowCoroutine, "took longer than 0.4 s"),
        (Broken, "raised ConnectionError: no route"),
        (Silent, "sent nothing"),
        (NotNumbers, "NaN or Inf in 20 of 20 rows"),
        (WrongShape, r"must have shape \(2,\), got \(3,\)"),
    ],
)
def test_a_client_that_fails_is_left_out_of_its_round_and_reported(bad, what):
    """The others' run is the one they would have had among themselves."""
    profl.train(SHOP, profl.pfl(), [Shop(0)], **SMALL, samples=20)  # compiles
    said = []
    started = time.monotonic()
    run = profl.train(
        SHOP, profl.pfl(), [Shop(0), bad(1)], rounds=2, local_steps=2, samples=20, timeout=0.4, report=said.append,
        progress=False,
    )  # fmt: skip
    assert time.monotonic() - started < 20
    alone = profl.train(SHOP, profl.pfl(), [Shop(0)], rounds=2, local_steps=2, samples=20, progress=False)
    np.testing.assert_allclose(run.theta, alone.theta, atol=1e-6)
    assert run.live.absent[0].tolist() == [0, 1, 1]
    assert all(client == 1 for _, client, _ in run.incidents)
    assert re.search(what, run.incidents[0][2])
    assert said[0].startswith("round 1, client 1: ")


def test_asynchronous_clients():
    plain = profl.train(SHOP, profl.pfl(), [Shop(i) for i in range(2)], **SMALL, samples=20)
    waits = profl.train(SHOP, profl.pfl(), [Coroutine(i) for i in range(2)], **SMALL, samples=20)
    np.testing.assert_array_equal(plain.theta, waits.theta)


def test_clients_work_at_the_same_time():
    gate = threading.Barrier(3, timeout=10)

    class Meets(Shop):
        def deploy(self, theta, samples):
            gate.wait()
            return super().deploy(theta, samples)

    run = profl.train(SHOP, profl.pfl(), [Meets(i) for i in range(3)], **SMALL, samples=20)
    assert not run.incidents


def test_a_delayed_batch_counts_for_the_model_that_brought_it_in():
    """Data that are one deployment late still show the true reaction, and the run ends at the optimum."""

    class Late(Shop):
        last = None

        def deploy(self, theta, samples):
            earlier, self.last = self.last, (theta, self.demand(theta, samples))
            return self.last[1] if earlier is None else profl.worlds.Delayed(earlier[1], earlier[0])

    run = profl.train(SHOP, profl.pofl(0.05), [Late(0)], rounds=40, samples=100, progress=False)
    np.testing.assert_allclose(run.theta[0, -1], 1.5, atol=0.15)


def test_nobody_answers():
    with pytest.raises(profl.TooFewReports, match=r"2 rounds in a row.*no route") as caught:
        profl.train(SHOP, profl.pfl(), [Broken()], rounds=9, samples=20, patience=2, progress=False)
    assert caught.value.run.live.absent.sum() == 2


def test_the_guard_stops_a_run_that_explodes():
    def loss(theta, z):
        return jnp.sum(z) - jnp.sum(theta**2)

    climbing = profl.LiveProblem("up", loss, profl.GaussianMean(), np.zeros(2), np.ones(2))

    class Grows(Shop):
        def deploy(self, theta, samples):
            return np.broadcast_to(theta**2 * 5, (samples, 2))

    with pytest.raises(profl.DivergedError, match=r"estimated risk.*smaller learning_rate"):
        profl.train(climbing, profl.pfl(0.1), [Grows()], rounds=60, samples=8, progress=False)


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        ([], {}, "at least one client"),
        ([object()], {}, r"clients\[0\] must have a method deploy"),
        ([Shop()], {"timeout": 0.0}, "timeout"),
        ([Shop()], {"min_reports": 0}, "min_reports"),
        ([Shop()], {"patience": 0}, "patience"),
        ([Shop()], {"rounds": 0}, "rounds"),
    ],
)
def test_bad_input(clients, settings, message):
    with pytest.raises(profl.InputError, match=message):
        profl.train(SHOP, profl.pfl(), clients, **{"rounds": 1, "progress": False, **settings})


def test_pooled_methods_and_wrong_counts_are_refused():
    with pytest.raises(profl.InputError, match="pools raw data"):
        profl.train(SHOP, profl.pg(), [Shop()], rounds=1)
    with pytest.raises(profl.InputError, match="method must be one such as"):
        profl.train(SHOP, "pofl", [Shop()], rounds=1)
    with pytest.raises(profl.InputError, match=r"problem must be a profl\.Problem"):
        profl.train("shop", profl.pfl(), [Shop()], rounds=1)
    with pytest.raises(profl.InputError, match="has 4 clients, got 1"):
        profl.train(CASE, profl.pfl(), [Shop()], rounds=1)


def test_double_precision_reaches_the_threads():
    with jax.enable_x64(True):
        run = profl.train(SHOP, profl.pfl(), [Shop()], **SMALL, samples=20)
    assert run.theta.dtype == np.float64
    assert not run.incidents


def test_a_live_run_is_saved_whole(tmp_path):
    run = profl.train(SHOP, profl.pfl(), [Shop(0), Broken(1)], **SMALL, samples=20)
    run.save(tmp_path / "run.npz")
    back = profl.load(tmp_path / "run.npz")
    assert back.incidents == run.incidents
    np.testing.assert_array_equal(back.live.risk, run.live.risk)
