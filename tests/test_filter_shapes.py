"""The filter on data as they come: clean ones of many shapes stay, junk beside them goes, memory saves the search."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

import profl
from benchmarks import crowds, filter_bars, shapes
from benchmarks.filter_bars import clean_rows, junk_rows, measured, surrounding_rows
from profl import parts
from profl.parts.filters import RobustFilter
from profl.parts.filters.order_statistics import order_statistic
from profl.parts.filters.reference_sample import Known
from tests.problems import unmeasured

TRIALS, SEED, N = 40, 7, 500
WEIGHTS = np.full(N, 1 / N, np.float32)
STEP, CUT = jax.jit(RobustFilter().step), jax.jit(lambda points, weights: RobustFilter()(points, weights))
RECALL, START = jax.jit(RobustFilter().recall), jax.jit(lambda: RobustFilter().start(5))
CLEAN = ("exponential", "lognormal(1)", "Poisson(0.7)", "Poisson(1)", "Bernoulli(0.1)", "95 % zeros", "correlated 0.95")
JUNK = ("exponential, axis", "Poisson(3), random", "correlated, diagonal", "condition 1e4, thin, 50", "axis, 7")


def rows(generator, names):
    """Those of n = 500 and d = 5 by name; the others are slow."""
    return [
        pytest.param(
            row,
            id=f"{row.name}-{row.n}-{row.d}-{row.share}",
            marks=() if row.name in names and (row.n, row.d) == (N, 5) else pytest.mark.slow,
        )
        for row in generator()
    ]


@pytest.mark.parametrize("row", rows(clean_rows, CLEAN))
def test_clean_data_of_any_shape_stay(row):
    """200 trials of the bench: at most 1.11 in one of 192 rows, single claims with 30 % zeros."""
    assert measured(row, RobustFilter(), TRIALS, SEED).error <= 1.15


MISSED = ("Poisson(1), -axis", "Poisson(1), random", "correlated, thin", "condition 1e4, thin", "axis, 5", "random, 5")
"""Rows that the rule misses (docs/methods_evidence.md): too near, or in a thin direction. It does no harm there."""
MISSED_SHARES = {"axis, 7": 0.25, "random, 7": 0.25}


@pytest.mark.parametrize("row", rows(junk_rows, JUNK))
def test_junk_beside_them_goes(row):
    """Up to a third, which is the most that it drops; a larger group is undecided and stays."""
    found = measured(row, RobustFilter(), TRIALS, SEED)
    assert found.plain > 2  # it would have done harm
    decided = row.name not in MISSED and row.share < MISSED_SHARES.get(row.name, RobustFilter().at_most)
    assert found.error <= (row.bar if decided else 1.1 * found.plain)


@pytest.mark.parametrize("row", rows(surrounding_rows, ("ray, 3", "disc, 4", "shell, 6")))
def test_junk_all_around_is_made_no_worse(row):
    """200 trials of the bench: at most 1.06, where 45 % lie on a ray."""
    assert measured(row, RobustFilter(), TRIALS, SEED).error <= 1.08


def test_a_second_kind_six_deviations_off_stays():
    """It is too near for a gap, and a reference changes nothing then; what it decides is in the next test."""
    known, without = filter_bars.two_kinds(TRIALS, SEED)
    assert known <= 1.05
    assert without <= 1.05


def test_a_reference_decides_on_a_second_kind():
    """A fifth of all customers, fifteen deviations off, wherever the model has moved them."""
    kinds = [batch(seed, moved=0.5 * (seed == 11), far=15)[0] for seed in (10, 11)]
    known = Known(kinds[0].T, np.ones(N, np.float32))
    assert np.mean(np.asarray(STEP(kinds[1], WEIGHTS, START())[0]) > 0) == pytest.approx(0.8, abs=0.01)
    assert np.mean(np.asarray(STEP(kinds[1], WEIGHTS, START(), known)[0]) > 0) == 1


def dropped(known):
    """Two kinds, clean: what the filter drops of them in a run, with a reference and without."""
    case = crowds.crowd("two kinds")
    rule = crowds._filter(case, "two kinds") if known else RobustFilter()
    settings = {"rounds": 2, "samples": 500, "seeds": [0], "progress": False}
    filtered = profl.chain(parts.TrustedSamples(rule), parts.PlainGradient(), parts.Optimiser(0.01), name="filtered")
    return profl.simulate(unmeasured(case), filtered, **settings).dropped


@pytest.mark.slow
def test_a_run_with_a_reference_keeps_both_kinds():
    """The second kind stays."""
    assert np.max(dropped(known=True)) == 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (np.zeros((4, 5)), "30 samples or more"),
        (np.full((40, 5), np.nan), "must be finite"),
        ({"x": np.zeros((40, 5)), "y": np.zeros(41)}, "as many rows"),
    ],
)
def test_a_reference_that_is_none_is_refused(reference, message):
    with pytest.raises(profl.checks.InputError, match=message):
        RobustFilter(reference=reference)


def test_a_reference_of_another_form_is_refused_before_any_work():
    method = profl.profl(filter=RobustFilter(reference=np.zeros((40, 3))))
    with pytest.raises(profl.checks.InputError, match="must look like a batch"):
        profl.simulate(profl.cases.pricing(), method, rounds=1, samples=50, seeds=[0], progress=False)


def test_references_compare_by_value():
    first, second = (RobustFilter(reference=np.ones((40, 2))) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != RobustFilter(reference=np.zeros((40, 2)))


def batch(seed, share=0.2, moved=0.0, far=10):
    clean, noise = np.random.default_rng(seed).normal(size=(2, N, 5))
    junk = np.arange(N) < share * N
    return np.where(junk[:, None], noise + far / np.sqrt(5), clean + moved).astype(np.float32), junk


def recalled(memory, points):
    kept, same = RECALL(memory, points.T, WEIGHTS)
    return np.asarray(kept) > 0, bool(same)


def test_a_remembered_cut_does_without_a_search():
    """The next batch is cut where the last one was, wherever people have moved; where it no longer fits, it says so."""
    memory = STEP(batch(0)[0], WEIGHTS, START())[1]
    again, junk = batch(1, moved=0.3)
    kept, same = recalled(memory, again)
    assert same
    assert np.sum(kept == ~junk) >= N - 2
    for changed in (batch(2, share=0.0)[0], batch(3, share=0.33)[0], 2 * batch(4)[0]):
        assert not recalled(memory, changed)[1]


def test_nothing_is_usual_at_first():
    assert not recalled(START(), batch(0)[0])[1]


def test_what_it_remembers_changes_no_result_much():
    """Ten batches in a row, with memory and without: the same samples but for a few at the edge."""
    memory = START()
    for seed in range(10):
        points, junk = batch(seed, moved=0.1 * seed)
        kept, memory = STEP(points, WEIGHTS, memory)
        fresh = STEP(points, WEIGHTS, START())[0]
        assert np.sum((np.asarray(kept) > 0) != (np.asarray(fresh) > 0)) <= 3
        assert np.sum((np.asarray(kept) > 0) == ~junk) >= N - 3


def test_skewed_clean_data_become_usual():
    memory, searched = START(), 0
    for seed in range(30):
        points = np.random.default_rng(seed).exponential(size=(N, 5)).astype(np.float32)
        before = np.asarray(memory.figures)
        kept, memory = STEP(points, WEIGHTS, memory)
        assert np.all(np.asarray(kept) > 0)
        searched += seed >= 15 and np.any(np.asarray(memory.figures) != before)
    assert searched <= 5  # only now and then


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_order_statistics_are_exact(scale):
    values = (np.random.default_rng(0).normal(size=(3, 40)).round(1) * scale).astype(np.float32)
    present = np.arange(40) < 33
    for rank in (1, 16, 33):
        np.testing.assert_array_equal(
            STATISTIC(values, present, np.float32(rank)), np.sort(values[:, :33])[:, rank - 1]
        )


STATISTIC = jax.jit(order_statistic)


def zeros(share, n, d, draw, seed=0):
    """(samples with so many zeros in every coordinate, the generator)."""
    random = np.random.default_rng(seed)
    return np.where(random.random((n, d)) < share, 0.0, draw(random, (n, d))).astype(np.float32)


@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_zeros_are_ordinary(share, d):
    """A product that sells on 70 % of days: 30 % zeros, the rest around 5."""
    points = zeros(share, N, d, lambda random, shape: random.normal(5, 1, shape))
    assert np.all(np.asarray(CUT(points, WEIGHTS)) > 0)


def test_a_group_above_the_limit_is_undecided_and_stays():
    points, junk = batch(0, share=0.4)
    kept = np.asarray(CUT(points, WEIGHTS)) > 0
    assert kept.all()
    known = np.asarray(jax.jit(RobustFilter(at_most=0.45, core=0.9))(points, WEIGHTS)) > 0
    assert np.sum(known == ~junk) >= N - 3


@pytest.mark.parametrize("n", [20, 50, 100])
@pytest.mark.parametrize("d", [1, 5])
def test_small_batches_are_decided(n, d):
    """A fifth of junk 15 deviations away along an axis, in twenty batches."""
    bad, weights, rule = (
        np.arange(n) < n // 5,
        np.full(n, 1 / n, np.float32),
        jax.jit(jax.vmap(RobustFilter(), (0, None))),
    )
    samples = np.random.default_rng(n).normal(size=(20, n, d))
    samples[:, bad, 0] += 15
    kept = np.asarray(rule(samples.astype(np.float32), weights)) > 0
    assert kept[:, bad].mean() <= 0.05
    assert kept[:, ~bad].mean() >= 0.98


def test_drawn_shapes_have_the_moments_they_state():
    for seed in range(12):
        shape = shapes.drawn_shape(seed)
        drawn = shape.sample(np.random.default_rng(seed), 40_000 // shape.n)
        error = (drawn.reshape(-1, shape.d).mean(0) - shape.mean) / shape.sd
        assert np.all(np.abs(error) <= 6 / math.sqrt(drawn[..., 0].size) * math.sqrt(shape.n)), shape.name


@pytest.mark.parametrize("seed", [2, 3, 8, 12, 32])
def test_drawn_rows(seed):
    """Clean data of a drawn shape, and junk beside it, ten deviations away and more."""
    clean, junk = filter_bars.drawn(seed, RobustFilter())
    assert clean.error <= 1.1
    assert junk.error <= 1.4
    assert junk.error <= 1.1 * junk.plain


def test_shapes_have_mean_zero_and_deviation_one():
    every = jax.jit(lambda key: {name: draw(key, (200_000, 1)) for name, draw in shapes.SHAPES.items()})
    for name, drawn in every(jax.random.key(0)).items():
        x = np.asarray(drawn, float)
        assert abs(x.mean()) <= 5 * x.std() / np.sqrt(len(x)), name
        if name not in ("t(3)", "Pareto(3)"):  # whose variance has no variance
            assert x.std() == pytest.approx(1, abs=0.1), name


@pytest.mark.parametrize("shape", [*crowds.SHAPES])
def test_crowds_have_the_mean_they_state(shape):
    case = crowds.crowd(shape)
    client = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32)[0], case.clients)
    theta = np.full(5, 1.5, np.float32)
    key = jax.jit(lambda: profl.random.data_key(profl.random.seed_key(0), 0, 0))()
    drawn = np.asarray(jax.jit(case.reaction.sample, static_argnums=3)(key, theta, client, 40_000))
    error = drawn.std(0) / 200
    assert np.all(np.abs(drawn.mean(0) - np.asarray(jax.jit(case.reaction.parameters)(theta, client))) <= 5 * error)
