"""Clients learn from each other's Jacobians as far as their errors say, and nobody is the worse for it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.server.clusters import Clusters
from profl.server.shrinkage import ALLOWED_MOVE, Shrinkage, shrink_rows

CLIENTS, GOODS, DRAWS, SIGMA = 10, 3, 100, 0.15
ALIKE, SPREAD = np.full(CLIENTS, 1.5), np.linspace(0.0, 3.0, CLIENTS)
UNLIKE = np.append(np.zeros(1), ALIKE[1:])  # one does not react at all
EVEN, HEAVY = np.full(CLIENTS, 0.1), np.append(0.6, np.full(CLIENTS - 1, 0.4 / (CLIENTS - 1)))


@jax.jit
def shrunk(jacobians, weights, accepted, errors):
    one = jax.vmap(Shrinkage().share, (None, 0, None, None, None))
    return one(jax.random.key(0), jacobians, weights, accepted, errors)[0]


def draw(gamma, sigma=SIGMA):
    """(draws of J_i = -gamma_i I + noise, the truth)."""
    truth = -gamma[:, None, None] * np.eye(GOODS)
    noise = sigma * np.random.default_rng(0).normal(size=(DRAWS, CLIENTS, GOODS, GOODS))
    return (truth + noise).astype(np.float32), truth


def off(found, truth):
    """Mean squared error of every client's entries."""
    return np.mean((np.asarray(found) - truth) ** 2, axis=(0, 2, 3))


def stated(sigma=SIGMA):
    return np.full((CLIENTS, GOODS, GOODS), sigma**2, np.float32)


@pytest.mark.parametrize("weights", [EVEN, HEAVY], ids=["even", "heavy"])
@pytest.mark.parametrize("sigma", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("gamma", [ALIKE, SPREAD, UNLIKE], ids=["alike", "spread", "unlike"])
def test_sharing_is_never_worse_than_not_sharing(gamma, sigma, weights):
    own, truth = draw(gamma, sigma)
    found = shrunk(own, weights, np.ones(CLIENTS, bool), stated(sigma))
    assert np.all(off(found, truth) <= 1.05 * off(own, truth))  # each client
    assert np.mean(off(found, truth)) <= 0.6 * np.mean(off(own, truth))  # and all together gain


def test_what_is_zero_everywhere_is_learned_to_be_zero():
    """Diagonals differ widely, the rest is nothing: there James and Stein leave three tenths of the noise."""
    own, truth = draw(SPREAD)
    found = np.asarray(shrunk(own, EVEN, np.ones(CLIENTS, bool), stated()))
    rest = ~np.eye(GOODS, dtype=bool)
    assert np.mean((found - truth)[..., rest] ** 2) <= 0.35 * np.mean((own - truth)[..., rest] ** 2)


def test_hostile_and_broken_reports_do_no_harm():
    own, truth = draw(ALIKE)
    sent, accepted = own.copy(), np.arange(CLIENTS) != 2
    sent[:, :2], sent[:, 2], sent[:, 3] = -50 * own[:, :2], 1e9, np.nan  # two hostile, one refused, one not finite
    found = shrunk(sent, EVEN, accepted, stated())
    assert np.all(np.isfinite(found))
    assert np.all(off(found, truth)[2:] <= 1.05 * off(own, truth)[2:])
    lying = stated()
    lying[:2] = 0.0  # as if they knew it exactly
    assert np.all(off(shrunk(sent, EVEN, accepted, lying), truth)[2:] <= 1.05 * off(own, truth)[2:])


def test_fewer_than_three_clients_keep_their_own():
    own, _ = draw(SPREAD)
    np.testing.assert_array_equal(shrunk(own, EVEN, np.arange(CLIENTS) < 2, stated())[:, :2], own[:, :2])
    assert np.all(np.isnan(shrunk(own, EVEN, np.zeros(CLIENTS, bool), stated())))


def test_worked_example():
    """Five clients off by 1, -1, 1, -1, 2 with errors of 1: tau^2 = 8 / 4 - 1, and the last one is unlike, s = 4 / 2.
    B = 2 / 4 / (s (1 + 1)) = 1/4 and 1/8. The sum moves by D = (2 / 8) / 5, of variance V = 1/5: D^2 / V = 1/80, where
    1/100 is allowed, so that 4/5 of B remain. A last client that weighs nothing moves no sum."""
    off, weights = np.array([[1.0], [-1.0], [1.0], [-1.0], [2.0]], np.float32), np.full(5, 0.2, np.float32)
    everyone, ones, shrink = np.ones(5, bool), np.ones((5, 1), np.float32), jax.jit(shrink_rows)
    assert ALLOWED_MOVE == 0.01
    found = np.asarray(shrink(3 + off, ones, 3 * ones, weights, everyone, everyone[None]))
    np.testing.assert_allclose(found.ravel() - 3, [0.8, -0.8, 0.8, -0.8, 1.8], rtol=1e-5)
    weights[4] = 0
    found = np.asarray(shrink(3 + off, ones, 3 * ones, weights, everyone, everyone[None]))
    np.testing.assert_allclose(found.ravel() - 3, [0.75, -0.75, 0.75, -0.75, 1.75], rtol=1e-5)


@pytest.mark.parametrize(
    "way",
    [Clusters(1), Shrinkage(), pytest.param(Clusters(), marks=pytest.mark.slow)],
    ids=["one cluster", "shrink", "auto"],
)
def test_what_the_risk_follows_is_known_no_worse(way):
    """The sum of alpha_i J_i, its mean squared error over 100 draws: whoever weighs most, whoever differs."""
    share = jax.jit(jax.vmap(way.share, (0, 0, None, None, None)))
    keys, everyone = jax.random.split(jax.random.key(0), DRAWS), np.ones(CLIENTS, bool)
    for gamma in (ALIKE, SPREAD, SPREAD[::-1], UNLIKE):
        for weights in (EVEN, HEAVY, np.random.default_rng(1).dirichlet(np.ones(CLIENTS))):
            own, truth = draw(gamma)
            found = share(keys, own, weights.astype(np.float32), everyone, stated())[0]
            error = [np.mean(np.einsum("k,dkij->dij", weights, each - truth) ** 2) for each in (found, own)]
            assert error[0] <= 1.05 * error[1]
            assert gamma is not ALIKE or weights is EVEN or error[0] <= 0.6 * error[1]  # a sum of ten, not of one


def test_in_clusters_too_a_heavy_client_decides_nothing_for_the_others():
    """0.6 of the weight does not react: the others, who do, are not told that nobody does, nor it that all do."""
    own, truth = draw(UNLIKE, 0.05)
    share, sure = jax.jit(Clusters().share), np.full(CLIENTS, 0.0025)
    found = [share(jax.random.key(i), own[i], HEAVY.astype(np.float32), np.ones(CLIENTS, bool), sure) for i in range(5)]
    found = np.stack([shared for shared, _ in found])
    assert np.all(off(found, truth)[1:] <= off(own[:5], truth)[1:])
    assert np.mean(np.einsum("k,dkij->dij", HEAVY, found - truth) ** 2) <= 1.05 * np.mean(
        np.einsum("k,dkij->dij", HEAVY, own[:5] - truth) ** 2
    )


def test_engines_agree():
    case = profl.cases.pricing(clients=4, goods=1)
    method = profl.profl(filter="none", share="shrink", jacobian="kalman")
    settings = {"rounds": 3, "local_steps": 2, "samples": 20, "seeds": [0], "progress": False}
    fast, slow = (profl.simulate(case, method, **settings, engine=engine) for engine in ("fast", "debug"))
    np.testing.assert_allclose(fast.theta, slow.theta, atol=1e-5)
    np.testing.assert_allclose(fast.jacobians.shared, slow.jacobians.shared, atol=1e-4)
    assert np.any(fast.jacobians.shared != fast.jacobians.own)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["auto", "shrink"])
@pytest.mark.parametrize("gamma", [(0.0, 3.0, 3.5, 4.0, 4.5), (1.5,) * 5, (0.5, 1.0, 1.5, 2.0, 2.5)])
def test_runs_that_share_end_no_worse(gamma, way):
    """Excess after sixty rounds, geometric mean over seeds 0-9, with 0.6 of the weight at the first client."""
    case = profl.cases.pricing(clients=5, goods=2, weights=[0.6, 0.1, 0.1, 0.1, 0.1])
    case = replace(case, clients={**case.clients, "gamma": jnp.asarray(gamma)})
    settings = {"rounds": 60, "local_steps": 5, "samples": 100, "seeds": range(10), "progress": False}
    alone, together = (
        profl.simulate(case, profl.profl(0.02, filter="none", share=share), **settings).tail_excess()
        for share in (None, way)
    )
    assert np.exp(np.mean(np.log(together / alone))) <= 1.05
