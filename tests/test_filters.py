"""Filters: how well the filtered mean does against the mean of the truly clean samples."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.client.filters import FILTERS, PaperFilter, RobustFilter
from profl.client.filters.points import top_direction
from profl.quantiles import quick_quantiles

pytestmark = pytest.mark.slow  # the filter takes half a minute to compile

N, D, TRIALS = 500, 5, 100


def junk(source, key, clean, distance):
    """Junk around clean N(0, I) samples, as far away as ``distance`` says."""
    u, noise = jnp.ones(D) / jnp.sqrt(D), jax.random.normal(key, (N, D))
    return {
        "blob": distance * u + noise,
        "point": jnp.broadcast_to(distance * u, (N, D)),
        "uniform": distance * jax.random.uniform(key, (N, D), minval=-1, maxval=1),
        "heavy_tail": distance * jax.random.cauchy(key, (N, D)),
        "two_blobs": jnp.where(jax.random.bernoulli(key, 0.5, (N, 1)), distance, -distance) * u + noise,
        "scaled": distance * clean,
    }[source]


@lru_cache
def compiled(source, filter_):
    """Squared errors of the filtered, the clean and the plain mean, and what was kept: one program per source."""

    def one(key, share, distance):
        first, second = jax.random.split(key)
        clean = jax.random.normal(first, (N, D))
        bad = jnp.arange(N) < jnp.round(share * N)
        samples = jnp.where(bad[:, None], junk(source, second, clean, distance), clean)
        kept = filter_(samples, jnp.full(N, 1 / N))
        means = [kept @ samples / kept.sum(), (~bad) @ samples / (~bad).sum(), samples.mean(0)]
        return [jnp.sum(mean**2) for mean in means], jnp.sum(kept)

    return jax.jit(jax.vmap(one, (0, None, None)))


def trials(source, share, distance, filter_):
    """Root mean square errors of the three means; exactly ``share`` of the samples are junk."""
    keys = jax.random.split(jax.random.key(17), TRIALS)
    squares, kept = compiled(source, filter_)(keys, share, float(distance))
    return [float(np.sqrt(np.mean(square))) for square in squares], np.asarray(kept)


@pytest.mark.parametrize("source", ["blob", "point", "uniform", "heavy_tail", "two_blobs", "scaled"])
def test_robust_filter_is_nearly_as_good_as_knowing_the_clean_samples(source):
    for distance, share in [(5, 0.1), (5, 0.2), (10, 0.1), (10, 0.4), (10, 0.45), (30, 0.3), (300, 0.45)]:
        (filtered, clean, plain), kept = trials(source, share, distance, RobustFilter())
        assert filtered <= (1.5 if share > 0.4 else 1.25) * clean, (distance, share)
        assert filtered <= 1.1 * plain, (distance, share)
        assert kept.min() >= 0.5 - 1e-6, (distance, share)


@pytest.mark.parametrize("source", ["blob", "point", "two_blobs"])
def test_it_does_no_harm_where_it_cannot_tell(source):
    for share in (0.3, 0.4, 0.45):
        (filtered, _, plain), _ = trials(source, share, 5, RobustFilter())
        assert filtered <= 1.1 * plain, share


def test_it_leaves_clean_data_alone():
    (filtered, clean, _), kept = trials("blob", 0.0, 10, RobustFilter())
    assert filtered <= 1.03 * clean
    assert kept.mean() > 0.995


@pytest.mark.parametrize("d", [1, 50, 2000])
def test_any_dimension(d):
    clean = jax.random.normal(jax.random.key(0), (400, d))
    samples = clean.at[:100].add(30.0 * np.sqrt(d))
    kept = RobustFilter()(samples, jnp.full(400, 1 / 400))
    assert float(kept[:100].sum()) == 0
    assert float(kept[100:].sum()) > 0.74


def test_scales_of_coordinates_do_not_matter():
    clean = jax.random.normal(jax.random.key(0), (400, 3))
    samples = clean.at[:100, 0].add(20.0)
    scales = jnp.array([1e-4, 1.0, 1e4])
    plain = RobustFilter()(samples, jnp.full(400, 1 / 400))
    scaled = RobustFilter()(samples * scales, jnp.full(400, 1 / 400))
    assert float(plain[:100].sum()) == 0
    assert float(scaled[:100].sum()) < 0.01


def test_samples_of_weight_zero_count_for_nothing():
    samples = jax.random.normal(jax.random.key(0), (300, 2)).at[200:].set(1e6)
    weights = jnp.where(jnp.arange(300) < 200, 1 / 200, 0.0)
    kept = RobustFilter()(samples, weights)
    assert float(kept[200:].sum()) == 0
    assert float(kept.sum()) > 0.98


def test_the_literal_rule_fails_where_the_mean_lies_between():
    """40 % at 10 sigma: the first segment around the mean is empty, phi = 0; it says so and keeps everything."""
    clean = jax.random.normal(jax.random.key(0), (N, D))
    samples = clean.at[:200].add(10 / np.sqrt(D))
    kept, failed = PaperFilter().run(samples, jnp.full(N, 1 / N))
    assert bool(failed)
    assert float(kept.sum()) == pytest.approx(1.0)


def test_the_literal_rule_works_where_junk_is_rare_and_far():
    clean = jax.random.normal(jax.random.key(0), (N, D))
    samples = clean.at[:25].add(30.0)
    kept, failed = PaperFilter().run(samples, jnp.full(N, 1 / N))
    assert not bool(failed)
    assert float(kept[:25].sum()) == 0


def test_top_direction_with_and_without_a_gram_matrix():
    points = jax.random.normal(jax.random.key(0), (80, 300))
    points = points.at[7].multiply(10.0)
    for part in (points[:20], points):
        exact = np.linalg.svd(np.asarray(part))[0][:, 0]
        assert abs(float(exact @ top_direction(part, jnp.ones(300)))) > 0.999


def test_quantiles_by_bisection():
    values = jax.random.normal(jax.random.key(0), (501,))
    for level in (0.1, 0.25, 0.5, 0.9):
        exact = np.quantile(np.asarray(values), level, method="inverted_cdf")
        assert float(quick_quantiles(values, jnp.full(501, 1 / 501), (level,))[0]) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PaperFilter(segments=1), "B"),
        (lambda: PaperFilter(sparse=0.0), "J1"),
        (lambda: PaperFilter(settled=1.0), "J2"),
    ],
)
def test_bad_filters_are_refused(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()


def test_every_filter_has_a_name_in_the_table():
    assert list(FILTERS) == ["none", "paper", "robust"]
