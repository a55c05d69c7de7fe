"""What the speed rests on, without a clock: the same numbers by the short way, and benchmarks that do the same work."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random, trees
from profl.client.filters import suspicious
from profl.experiments import peers
from profl.problem import oracle

N, D = 500, 5
EQUAL = jnp.full(N, 1 / N)


def batches(count, share=0.0, distance=0.0):
    """Clean Gaussian batches (count, d, n) with a share moved along the diagonal."""
    clean = jax.vmap(lambda key: random.normal(key, N, D).T)(jax.random.split(random.seed_key(0), count))
    return clean + jnp.where(jnp.arange(N) < share * N, distance / np.sqrt(D), 0.0)


def test_few_clean_batches_are_suspicious_and_all_with_junk_are():
    look = jax.jit(jax.vmap(lambda points: suspicious(points, EQUAL)))
    assert float(look(batches(2000)).mean()) < 0.003
    for share, distance in [(0.05, 5), (0.2, 5), (0.45, 5), (0.1, 10), (0.45, 300)]:
        assert bool(look(batches(100, share, distance)).all()), (share, distance)
    assert bool(look(3 * batches(100) ** 3).all())  # heavy tails
    assert bool(look(batches(100).at[:, 1].set(batches(100)[:, 0] + 0.1 * batches(100)[:, 1])).all())  # correlated


def test_scale_place_and_samples_of_weight_zero_do_not_matter_to_the_look():
    points = batches(1)[0]
    for seen in (points, 1e3 * points + 7, points.at[:, 400:].set(jnp.float32(1e6))):
        weights = jnp.where(jnp.arange(N) < 400, 1 / 400, 0.0)
        assert not bool(suspicious(seen, weights))
    assert bool(suspicious(points.at[0, 3].set(jnp.nan), EQUAL))  # what cannot be told is looked at


def test_what_is_written_out_is_what_was_made():
    def make():
        return {"x": random.normal(random.seed_key(0), 6, 2), "y": jnp.arange(6)}

    made = jax.jit(lambda yes: trees.written(make, yes))(jnp.asarray(True))
    jax.tree.map(np.testing.assert_array_equal, made, make())


def test_the_risk_of_many_clients_is_summed_in_chunks(monkeypatch):
    case = profl.cases.pricing(clients=23)
    theta = np.full(5, 2.0)
    whole = case.risk(theta), case.gradient(theta), case.optimum, case.stable
    monkeypatch.setattr(oracle, "_CHUNK", 5)
    case = profl.cases.pricing(clients=23, seed=0)
    jax.clear_caches()
    parts = case.risk(theta), case.gradient(theta), case.optimum, case.stable
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_numpy_versions_find_the_optimum(threads):
    mu0 = peers._start(4, 1)[0]
    best = mu0 / (2 * 1.5)
    np.testing.assert_allclose(peers.numpy_batched(4, 2, 150, threads), np.tile(best, (2, 1)), atol=0.3)


def test_the_plain_loop_does_the_same():
    best = peers._start(2, 1)[0] / (2 * 1.5)
    np.testing.assert_allclose(peers.numpy_loop(2, 150), best, atol=0.3)


ON_EIGHT = """
import json, sys, jax, profl
run = profl.simulate(profl.cases.pricing(clients=3, goods=2), profl.pofl(), **json.loads(sys.argv[1]))
print(json.dumps([jax.local_device_count(), run.theta.tolist()]))
"""


@pytest.mark.parametrize("seeds", [8, 6])
def test_seeds_spread_over_devices_give_the_same_run(seeds):
    """Eight seeds on eight devices; six on six of them."""
    settings = {"rounds": 4, "local_steps": 2, "samples": 40, "seeds": list(range(seeds)), "progress": False}
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT, json.dumps(settings)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    devices, theta = json.loads(done.stdout.splitlines()[-1])
    alone = profl.simulate(profl.cases.pricing(clients=3, goods=2), profl.pofl(), **settings)
    assert devices == 8
    np.testing.assert_allclose(theta, alone.theta, atol=2e-6)
