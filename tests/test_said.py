"""What goes wrong is said, in one sentence, with the client's number where there is one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.run.live import batch_alerts
from profl.run.live.batch_alerts import NO_BATCH

pytestmark = pytest.mark.faults
FEW = {"rounds": 4, "local_steps": 2, "samples": 50, "progress": False}
SHOP = profl.LiveProblem(
    "shop",
    lambda price, z: -jnp.sum(price * z),
    profl.GaussianMean(),
    np.zeros(1),
    np.ones(1),
    project=profl.Box(0.0, 4.0),
)


class Shop:
    """Demand that falls with the price; ``deployed`` counts."""

    def __init__(self, number, noise=1.0):
        self.rng, self.noise, self.deployed = np.random.default_rng(number), noise, 0

    def deploy(self, price, samples):
        self.deployed += 1
        return 6 - 1.5 * price + self.noise * self.rng.normal(size=(samples, 1))


class Stuck(Shop):
    """It sends its third batch for ever."""

    def deploy(self, price, samples):
        if self.deployed < 3:
            self.last = super().deploy(price, samples)
        return self.last


class Switches(Shop):
    """It switches JAX to 64 bit for the process, in its second deployment."""

    def deploy(self, price, samples):
        if self.deployed == 1:
            jax.config.update("jax_enable_x64", True)
        return super().deploy(price, samples)


def trained(clients, problem=SHOP, method=None, **settings):
    return profl.train(problem, method or profl.pfl(), clients, **{**FEW, **settings})


def test_a_site_that_sends_the_same_batch_for_ever_is_named():
    run = trained([Shop(0), Stuck(1)])
    assert [(round_, client) for round_, client, _ in run.incidents] == [(2, 1)]
    assert "same 50 rows again and again, since round 2" in run.incidents[0][2]
    assert "client 1: sends the same" in run.summary()


def test_equal_batches_are_only_told_of_where_chance_does_not_make_them():
    rng = np.random.default_rng(0)
    for batch, told in (
        (rng.normal(size=(20, 2)), True),
        ({"x": rng.normal(size=(20, 2)), "y": np.arange(20) % 2}, True),
        (np.ones((500, 1)), False),
        ((np.arange(5) % 2)[:, None], False),
        ((np.arange(500) % 2)[:, None], True),
    ):
        once, words = NO_BATCH.next(batch, 3)
        assert words == ""
        again, words = once.next(jax.tree.map(np.copy, batch), 4)
        assert bool(words) == told
        assert not told or "since round 3" in words
        assert again.next(batch, 5)[1] == ""  # said once
        assert again.next(jax.tree.map(lambda leaf: leaf + 1, batch), 5)[0].since == 5


def test_a_stated_noise_far_from_that_of_the_data_is_said():
    from dataclasses import replace

    wrong = replace(SHOP, family=profl.GaussianMean(sd=1e-6))
    run = trained([Shop(0), Shop(1)], wrong, rounds=2)
    assert [client for _, client, _ in run.incidents] == [0, 1]
    assert "e+05 times what the family states" in run.incidents[0][2]
    batch = np.random.default_rng(0).normal(size=(50, 1))
    assert batch_alerts.misstated_noise(profl.GaussianMean(), batch) == ""
    assert "profl.LocationScale()" in batch_alerts.misstated_noise(profl.GaussianMean(sd=0.05), batch)
    assert batch_alerts.misstated_noise(profl.GaussianMean(), 0 * batch) == ""  # data may have no noise
    assert batch_alerts.misstated_noise(profl.LocationScale(), 1e6 * batch) == ""  # it states none
    targets = {"x": 1 + np.abs(batch), "y": 3 * batch[:, 0]}
    assert batch_alerts.misstated_noise(profl.LinearGaussian(sd=2.0), targets) == ""
    assert batch_alerts.misstated_noise(profl.LinearGaussian(sd=1e-5), targets)


def test_a_client_that_switches_the_process_to_64_bit_is_refused_and_undone():
    before = jax.config.read("jax_enable_x64")
    run = trained([Shop(0), Switches(1)])
    assert jax.config.read("jax_enable_x64") == before
    assert run.theta.dtype == np.float32
    assert (1, 1) in [(round_, client) for round_, client, _ in run.incidents]
    assert any("client 1: switched JAX to 64 bit" in line for line in run.summary().splitlines())


def hill(top, project, initial, learning_rate, rounds=20):
    """A run that climbs to ``top``; what is deployed changes nothing."""
    problem = profl.LiveProblem(
        "hill",
        lambda theta, z: 0.5 * jnp.sum((theta - z) ** 2),
        profl.GaussianMean(),
        np.zeros(2),
        np.asarray(initial),
        project=project,
    )

    class Site:
        rng = np.random.default_rng(0)

        def deploy(self, theta, samples):
            return top + self.rng.normal(size=(samples, 2))

    return trained([Site()], problem, profl.pfl(learning_rate), rounds=rounds, local_steps=1)


def box(theta):
    """A user's own projection, which is no ``profl.Box``."""
    return jnp.clip(theta, -1.0, 1.0)


@pytest.mark.parametrize(
    ("project", "learning_rate", "top", "said"),
    [
        (profl.Box(-1.0, 1.0), 50.0, 0.0, "jumped from bound to bound"),
        (box, 50.0, 0.0, "jumped from bound to bound"),
        (box, 0.5, 9.0, "lay at a bound"),
        (box, 0.5, 0.0, ""),
        (lambda theta: theta, 0.5, 3.0, ""),
    ],
    ids=["jumps in a Box", "jumps in a box of one's own", "rests at a bound", "inside", "no bounds"],
)
def test_a_model_at_the_bounds_of_its_space_is_said(project, learning_rate, top, said):
    lines = [line for line in hill(top, project, [0.1, -0.2], learning_rate).notes if "bound" in line]
    assert bool(lines) == bool(said)
    assert all(said in line and "Try a smaller learning_rate, or 'auto'" in line for line in lines)


def test_an_end_that_is_the_optimum_is_no_fault():
    """Retraining of ``izzo``-like problems may rest at a bound: where the stable point is known to lie there, fine."""
    from profl.results.motion import motion_notes

    case = profl.cases.pricing(clients=2, goods=2)
    theta = np.full((1, 20, 2), 5.0, np.float32) - np.float32(1.0) * (np.arange(20) < 2)[:, None]
    assert motion_notes(case, theta, [case.optimum, case.stable], True)
    assert motion_notes(case, theta, [np.float32([5.0, 5.0])], True) == ()
    assert motion_notes(case, theta, [], False) == ()  # no learning rate, no advice


def test_prices_that_float32_cannot_move_are_refused_or_said():
    space = profl.Box(9_999_997.0, 10_000_003.0)
    with pytest.raises(profl.InputError, match=r"float32 has a number only every 1 there"):
        hill(1e7, space, np.full(2, 1e7), 0.01)
    run = hill(1e7 + 2, lambda theta: theta, np.full(2, 1e7), 0.01)  # steps of 0.02
    assert "the model has not moved at all" in run.summary()
    assert "theta - 1e+07" in run.summary()
    assert not [line for line in hill(2.0, lambda theta: theta, np.ones(2), 0.01).notes if "moved" in line]


def test_a_live_run_keeps_no_arrays_of_the_device_for_its_records():
    """Each round kept sixteen: 10 of the 29 KiB by which a run of three clients and two steps grew with it."""
    counts = []
    clients = [Shop(0), Shop(1)]
    trained(clients, rounds=30, callbacks=[lambda record: counts.append(len(jax.live_arrays())) and None])
    assert counts[-1] <= counts[5] + 5
