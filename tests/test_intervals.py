"""Intervals: quantiles that are known exactly, the model space's edge, and errors at the stable point."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import special, stats

import profl
from profl import theory
from profl.methods.intervals import Posterior, minimisers
from profl.problem.polyhedron import Region, nearest_point
from profl.results.forecast import intervals_of


def known(gradient, curvature, covariance, **others):
    d = len(gradient)
    plain = {
        "incumbent": np.zeros(d),
        "units": np.ones(d),
        "best": np.zeros(d),
        "decrease": 0.0,
        "fall": 0.0,
        "fall_variance": 0.0,
        "lower": np.full(d, -np.inf),
        "upper": np.full(d, np.inf),
        "A": np.zeros((0, d)),
        "b": np.zeros(0),
    }
    figures = {"gradient": np.array(gradient), "curvature": np.array(curvature), "covariance": np.array(covariance)}
    return Posterior(**{**plain, **figures, **others})


def test_of_one_number_they_are_quantiles_of_a_normal_and_of_its_square():
    """H = 2, g ~ N(0, 4): the optimum is N(0, 1), the excess its square."""
    found = intervals_of(known([0.0], [[2.0]], [[4.0]]), np.zeros(1), 0.9)
    np.testing.assert_allclose(found.optimum.upper, [special.ndtri(0.95)], rtol=0.005)
    np.testing.assert_allclose(found.optimum.lower, [special.ndtri(0.05)], rtol=0.005)
    ends = found.excess.lower, found.excess.estimate, found.excess.upper
    np.testing.assert_allclose(ends, [stats.chi2.ppf(0.05, 1), 1.0, stats.chi2.ppf(0.95, 1)], rtol=0.02)


def test_what_is_left_has_a_generalised_chi_square():
    """Three numbers of the same curvature and error: half of chi-square with three degrees of freedom."""
    found = intervals_of(known(np.zeros(3), np.eye(3), np.eye(3)), np.zeros(3), 0.8)
    ends = 2 * np.array([found.excess.lower, found.excess.upper])
    np.testing.assert_allclose(ends, stats.chi2.ppf([0.1, 0.9], 3), rtol=0.02)


def test_units_and_the_best_model_are_counted_from_the_incumbent():
    """At 3, a unit of 10 and half a unit to go: the optimum is at 8, and half of 0.25 is left."""
    far = {"incumbent": np.array([3.0]), "units": np.array([10.0]), "best": np.array([0.2]), "decrease": 0.08}
    found = intervals_of(known([-0.3], [[1.0]], [[1e-12]], **far), {"price": np.zeros(1)}, 0.9)
    np.testing.assert_allclose(found.optimum.estimate["price"], [8.0])
    np.testing.assert_allclose(found.excess.estimate, 0.08 + 0.045, rtol=1e-4)


def test_the_gain_is_the_observed_fall_and_what_is_left():
    found = intervals_of(known([0.0], [[1.0]], [[1e-12]], fall=5.0, fall_variance=4.0), np.zeros(1), 0.9)
    np.testing.assert_allclose([found.gain.lower, found.gain.upper], 5 + 2 * special.ndtri([0.05, 0.95]), rtol=0.005)


def test_a_number_that_the_model_space_holds_ends_at_its_edge():
    """The minimum lies at 1 +- 0.1 and the space ends at 0.5: there is nothing else to expect."""
    found = intervals_of(known([-1.0], [[1.0]], [[0.01]], upper=np.array([0.5])), np.zeros(1), 0.9)
    assert found.optimum.lower == found.optimum.upper == [0.5]


def test_each_draw_is_minimised_exactly_in_a_space_of_bounds_and_rows():
    chance = np.random.default_rng(0)
    root = chance.normal(size=(3, 3))
    H, gradient = root @ root.T + 0.3 * np.eye(3), 2 * chance.normal(size=(50, 3))
    space = Region(np.array([[1.0, -1.0, 0.0]]) / 2**0.5, np.array([0.1]), np.full(3, -0.5), np.full(3, 0.7))
    found = minimisers(known(np.zeros(3), H, np.eye(3), **space._asdict()), gradient)
    exact = [nearest_point(space, -np.linalg.solve(H, g), H, np)[0] for g in gradient]
    np.testing.assert_allclose(found, exact, atol=1e-4)


@pytest.fixture(scope="module")
def run():
    case = profl.cases.pricing(clients=3, goods=2)
    return case, profl.simulate(
        case, profl.prm(), rounds=14, local_steps=1, samples=500, seeds=range(3), progress=False
    )


def test_a_run_tells_what_it_knows(run):
    """Of six numbers of the optimum five and more lie in their intervals, and every gain does (at 99 %)."""
    case, run = run
    found = [run.forecast(seed, level=0.99) for seed in range(len(run.seeds))]
    held = [(one.optimum.lower <= case.optimum) & (case.optimum <= one.optimum.upper) for one in found]
    assert np.sum(held) >= 0.75 * np.size(held)
    for one, truth in zip(found, run.excess[:, 0], strict=True):
        assert one.gain.lower < truth < one.gain.upper
        assert one.gain.upper - one.gain.lower < truth  # and not because they are wide
    narrow = run.forecast(0, level=0.5)
    assert np.all(narrow.optimum.upper - narrow.optimum.lower < found[0].optimum.upper - found[0].optimum.lower)


def test_a_table_shows_them_and_a_file_keeps_them(run, tmp_path):
    _, run = run
    text = str(run.forecast(1))
    lines = text.splitlines()
    assert lines[0].split() == ["90", "%", "intervals", "lower", "estimate", "upper"]
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "theta[0]",
        "theta[1]",
        "gain over the first model",
        "left to gain",
    ]
    assert len({len(line) for line in lines}) == 1  # aligned
    run.save(tmp_path / "run.npz")
    assert str(profl.load(tmp_path / "run.npz").forecast(1)) == text


def test_what_is_no_level_and_what_states_nothing_are_refused(run):
    _, run = run
    with pytest.raises(profl.InputError, match="level must lie between 0 and 1"):
        run.forecast(level=1.0)
    with pytest.raises(profl.InputError, match="seed"):
        run.forecast(3)
    with pytest.raises(profl.InputError, match=r"pfl states nothing of the optimum.*run.stable_errors"):
        dataclasses.replace(run, posterior=None, algorithm="pfl").forecast()


def test_the_covariance_at_the_stable_point_is_the_exact_one():
    """Mean estimation with weights: V = 1 - mean eps, S = sd^2 sum alpha^2. Pricing: V = mean gamma."""
    case = profl.cases.mean_estimation(clients=3, sensitivity=0.5, sd=0.1, weights=[0.5, 0.25, 0.25])
    found = theory.stable_covariance(case)
    np.testing.assert_allclose(found.jacobian, [[0.5]], rtol=1e-9)
    np.testing.assert_allclose(found.noise, [[0.01 * 0.375]], rtol=0.03)
    np.testing.assert_allclose(found.errors(4, 25), np.sqrt(found.noise[0] / 0.25 / 100), rtol=1e-6)


@pytest.fixture(scope="module")
def retraining():
    case = profl.cases.mean_estimation(clients=3, sensitivity=0.5, sd=0.1, mean_heterogeneity=1.0)
    method = profl.rgd(0.5)
    return case, profl.simulate(case, method, rounds=400, local_steps=1, samples=20, seeds=40, progress=False)


def test_errors_at_the_stable_point_need_no_model_of_the_data(retraining):
    """Forty seeds know the error to a tenth, and 36 +- 2 of the intervals hold the stable point."""
    case, run = retraining
    found = run.stable_errors()
    exact = theory.stable_covariance(case).errors(found.batches * found.length, 20)
    np.testing.assert_allclose(np.sqrt(np.mean(found.error**2, 0)), exact, rtol=0.2)
    held = np.mean((found.lower <= case.stable) & (case.stable <= found.upper))
    assert 0.75 <= held <= 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": 100}, "100 batches of at least 5 are needed"),
        ({"batches": 40}, "batches of 5 records are correlated"),
        ({"batches": 2}, "batches"),
        ({"burn_in": 1.0}, "burn_in must be a share of the run"),
        ({"level": 90}, "level must lie between 0 and 1"),
    ],
)
def test_too_few_records_are_refused(retraining, options, message):
    with pytest.raises(profl.InputError, match=message):
        retraining[1].stable_errors(**options)
