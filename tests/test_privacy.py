"""Local differential privacy: clipping, noise, the stated epsilon against an independent accountant."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from tests.killed import CASE


def test_moves_are_clipped_and_noised():
    """Over many reports: the mean is the clipped move, the spread is 2 C z in every entry."""
    privacy = profl.Privacy(noise=0.5, clip=2.0)
    sent, own = {"a": jnp.zeros(2), "b": jnp.ones(1)}, {"a": jnp.array([30.0, 40.0]), "b": jnp.ones(1)}
    draws = [privacy.model(sent, own) for _ in range(2000)]
    a = np.stack([np.asarray(draw["a"]) for draw in draws])
    np.testing.assert_allclose(a.mean(0), [1.2, 1.6], atol=4 * 2 / math.sqrt(2000))
    np.testing.assert_allclose(a.std(0), 2.0, rtol=0.07)
    still = np.stack([np.asarray(privacy.jacobian(jnp.ones((2, 2)))) for _ in range(500)])
    np.testing.assert_allclose(still.mean(0), 1.0, atol=4 * 5 / math.sqrt(500))  # |J| = 2 < 5: not clipped


def test_noise_differs_from_report_to_report_unless_a_seed_is_given():
    sent, own = jnp.zeros(3), jnp.ones(3)
    assert not np.array_equal(profl.Privacy(1.0).model(sent, own), profl.Privacy(1.0).model(sent, own))
    fixed = profl.Privacy(1.0, seed=0)
    np.testing.assert_array_equal(fixed.model(sent, own, 4), fixed.model(sent, own, 4))
    assert not np.array_equal(fixed.model(sent, own, 4), fixed.model(sent, own, 5))


def exact_epsilon(noise: float, reports: int, delta: float) -> float:
    """k Gaussian mechanisms are one with noise z / sqrt(k), whose delta(epsilon) is known (Balle and Wang 2018)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    mu = math.sqrt(reports) / noise

    def gap(epsilon):
        first = norm.cdf(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(gap, 1e-6, 1e4)


@pytest.mark.parametrize(("noise", "reports", "share"), [(1.0, 1, False), (2.0, 50, False), (8.0, 100, True)])
def test_epsilon_matches_an_independent_accountant(noise, reports, share):
    pytest.importorskip("dp_accounting")
    stated = profl.Privacy(noise).epsilon(reports, 1e-5, share=share)
    assert stated == pytest.approx(exact_epsilon(noise, reports * (2 if share else 1), 1e-5), rel=1e-3)


def test_a_private_run_sends_noised_reports_and_nothing_else_about_the_data():
    method = profl.pofl()
    clients = profl.simulated_clients(CASE, method, samples=30)
    settings = {"rounds": 3, "local_steps": 2, "samples": 30, "progress": False}
    plain = profl.train(clients, method, CASE, **settings)
    run = profl.train(clients, method, CASE, privacy=profl.Privacy(0.01, clip=0.5, seed=1), **settings)
    assert 0 < np.max(np.abs(run.theta - plain.theta)) < 0.5
    assert np.all(run.live.risk[0, 1:] == 0)  # losses stay at the clients
    assert run.samples[0, -1] == plain.samples[0, -1]
    again = profl.train(clients, method, CASE, privacy=profl.Privacy(0.01, clip=0.5, seed=1), **settings)
    np.testing.assert_array_equal(again.theta, run.theta)


@pytest.mark.parametrize("bad", [{"noise": 0.0}, {"noise": 1.0, "clip": -1.0}, {"noise": 1.0, "clip_jacobian": 0}])
def test_bad_input(bad):
    with pytest.raises(profl.InputError):
        profl.Privacy(**bad)
