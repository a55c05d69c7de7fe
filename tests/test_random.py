"""Random numbers: Threefry as published, the stock bits whatever the implementation, and statistics of the normals."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from profl import random

STOCK = "threefry2x32"
DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "normal": lambda key: jax.random.normal(key, (3, 5)),
    "fold_in": lambda key: jax.random.bits(random.data_key(key, 3, 4), (7,)),
    "split": lambda key: jax.vmap(lambda own: jax.random.bits(own, (3,)))(jax.random.split(key, 4)),
    "permutation": lambda key: jax.random.permutation(key, 20),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (50,)),
    "eight bits": lambda key: jax.random.bits(key, (9,), "uint8"),
}


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_vectors_that_were_published_with_it(key, counter, expected):
    """Random123's known answers for threefry2x32 with 20 rounds."""
    words = random.threefry(jnp.array(key, jnp.uint32), *map(jnp.uint32, counter))
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize("name", DRAWS)
def test_unrolled_keys_give_the_stock_bits(name):
    unrolled, stock = (jax.random.key(7, impl=impl) for impl in (random.UNROLLED, STOCK))
    compiled = jax.jit(DRAWS[name])
    for draw in (DRAWS[name], compiled):
        np.testing.assert_array_equal(draw(unrolled), compiled(stock))


def test_they_do_in_double_precision():
    with jax.enable_x64(True):
        draws = [jax.random.normal(jax.random.key(7, impl=impl), (11,)) for impl in (random.UNROLLED, STOCK)]
    assert draws[0].dtype == np.float64
    np.testing.assert_array_equal(*draws)


def test_the_choice_follows_the_backend(monkeypatch):
    assert random.seed_key(0).dtype == jax.random.key(0, impl=random.UNROLLED).dtype  # tests run on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert random.seed_key(0).dtype == jax.random.key(0, impl=STOCK).dtype


def test_moments_and_distribution_of_normals():
    """Two million: moments within five standard errors, Kolmogorov-Smirnov below its 1e-4 point."""
    drawn = np.sort(np.asarray(random.normal(random.seed_key(1), 2_000_000), np.float64))
    n = drawn.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(drawn**power) - mean) < 5 * math.sqrt(variance / n), power
    normal = 0.5 * (1 + np.vectorize(math.erf)(drawn[::100] / math.sqrt(2)))
    assert np.max(np.abs(normal - np.arange(0, n, 100) / n)) < 2.23 / math.sqrt(n)
    assert np.all(np.isfinite(drawn))


def test_streams_of_clients_steps_and_seeds_are_uncorrelated():
    """64 streams that differ in one number: no pair is correlated beyond what 2016 pairs of independent ones show."""
    n = 20_000

    @jax.jit
    @jax.vmap
    def draw(seed, client, step):
        return random.normal(random.data_key(random.seed_key(seed), client, step), n)

    every, none = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    for differing in range(3):
        numbers = [every if place == differing else none for place in range(3)]
        drawn = np.asarray(draw(*numbers), np.float64)
        pairs = np.corrcoef(drawn)[np.triu_indices(64, 1)]
        assert np.max(np.abs(pairs)) < 5 / math.sqrt(n)
        assert abs(np.mean(pairs**2) * n - 1) < 5 * math.sqrt(2 / pairs.size)
        lagged = np.mean(drawn[:, 1:] * drawn[:, :-1])
        assert abs(lagged) < 5 / math.sqrt(drawn.size)
