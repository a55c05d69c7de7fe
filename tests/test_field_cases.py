"""Cases from the field: what they state is what the papers' formulas give, and methods reach it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import profl
from profl import trees
from profl.cases.gmsc import STRATEGIC, gmsc3, gmsc10, retrain
from profl.data import credit
from tests.made import made_credit

SHARED = Path(os.environ.get("PROFL_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_files = pytest.mark.skipif(
    not (SHARED / "give_me_some_credit.csv.gz").is_file(), reason="the real data are not here"
)
SMALL = {
    "mean_estimation": lambda: profl.cases.mean_estimation(5, 0.3, mean_heterogeneity=4.0),
    "regression_shift": lambda: profl.cases.regression_shift(3, 0.5, features=4, sensitivity=0.3),
    "nonlinear": lambda: profl.cases.nonlinear(3, 0.5),
    "mixture": lambda: profl.cases.mixture(3, 0.5),
    "logistic_shift": lambda: profl.cases.logistic_shift(3, 0.5),
    "gmsc10": lambda: gmsc10(3, data=credit.table(made_credit(), "all")),
}


DRAWN = ("mean_estimation", "regression_shift", "gmsc10")  # of every kind of family


@pytest.mark.parametrize("name", [n if n in DRAWN else pytest.param(n, marks=pytest.mark.slow) for n in SMALL])
def test_what_is_sampled_is_what_is_stated(name):
    """Mean loss and f of 100,000 samples of a client, up to five standard errors."""
    problem, n = SMALL[name](), 100_000
    theta = np.asarray(problem.initial(jax.random.key(3)))
    client = trees.take(trees.cast(problem.clients), 2)
    batch = jax.jit(problem.reaction.sample, static_argnums=3)(jax.random.key(0), theta, client, n)
    losses = np.asarray(jax.jit(jax.vmap(problem.loss, (None, 0)))(theta, batch), float)
    assert abs(losses.mean() - problem.client_risks(theta)[2]) < 5 * losses.std() / np.sqrt(n)
    equal = np.full(n, 1 / n, np.float32)
    f = jax.jit(problem.family.estimate)(batch, equal)
    variance = np.asarray(jax.jit(problem.family.observed_variance)(batch, equal, f))
    off = (np.asarray(f) - np.asarray(jax.jit(problem.reaction.parameters)(theta, client))) / np.sqrt(variance)
    assert np.max(np.abs(off)) < 5


@pytest.mark.parametrize("name", SMALL)
def test_the_stated_points_are_optimal_and_stable(name):
    """No model nearby is better, on the data that it brings in itself and on those that PS brings in."""
    problem = SMALL[name]()
    for step in np.random.default_rng(0).normal(size=(20, len(problem.optimum))) * 0.01:
        beside = [np.asarray(problem.project(point + step), float) for point in (problem.optimum, problem.stable)]
        assert problem.risk(beside[0]) >= problem.risk(problem.optimum) - 1e-9
        there = problem.decoupled_risk(problem.stable, problem.stable)
        assert problem.decoupled_risk(problem.stable, beside[1]) >= there - 1e-6


def test_mean_estimation_alike():
    case = profl.cases.mean_estimation()
    assert case.count == 25
    np.testing.assert_allclose([case.stable[0], case.optimum[0]], 100, atol=1e-4)
    assert case.risk(case.optimum) == pytest.approx(0.005, abs=1e-8)


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4]])
def test_mean_estimation_of_a_federation(weights):
    """Jin et al.'s stable point needs only the mean sensitivity; the optimum weighs clients by 1 - eps_i."""
    case = profl.cases.mean_estimation(4, 0.5, weights, sensitivity=0.6, mean_heterogeneity=5.0)
    mu, eps, alpha = case.clients["mu"][:, 0], case.clients["eps"], case.weights
    assert case.stable[0] == pytest.approx(alpha @ mu / (1 - alpha @ eps), abs=1e-5)
    assert case.optimum[0] == pytest.approx(alpha @ (mu * (1 - eps)) / (alpha @ (1 - eps) ** 2), abs=1e-6)
    assert abs(case.optimum[0] - case.stable[0]) > 1


@pytest.mark.parametrize("eps", [0.01, 100.0])
def test_regression_shift(eps):
    """PS = beta, PO = (S + mu mu')^-1 S beta where the ball holds it; risks by the formula."""
    inside = 0
    for seed in range(6):
        case = profl.cases.regression_shift(2, seed=seed, sensitivity=eps)
        root, beta, mu = (case.clients[name][0] for name in ("root", "beta", "mu"))
        s = root @ root.T
        assert np.linalg.norm(s, 2) == pytest.approx(0.01)
        assert np.linalg.norm(mu) == pytest.approx(eps)
        best = np.linalg.solve(s + np.outer(mu, mu), s @ beta)
        risk = ((beta - best) @ s @ (beta - best) + (mu @ best) ** 2 + 0.01) / 2
        assert case.decoupled_risk(np.zeros(20), beta) == pytest.approx(0.005)
        assert np.max(np.abs(case.stable_gradient(beta))) < 1e-9
        if np.linalg.norm(best) < 10:
            inside += 1
            assert case.risk(best) == pytest.approx(risk, rel=1e-9)
            assert case.risk(case.optimum) == pytest.approx(risk, rel=1e-6)
            np.testing.assert_allclose(case.optimum, best, atol=1e-4)
    assert inside >= 2


def test_the_cases_of_izzo():
    """Optimum and stable point with their risks, to four digits."""
    expected = {
        "nonlinear": ([-2 / 3], -0.3849, [-1.0], 0.0),
        "mixture": ([-0.357143], -0.0446429, [-0.714286], 0.0),
        "logistic_shift": ([0.1438, -0.3159], 0.6172, [0.5214, -0.6015], 0.6786),
    }
    for name, (optimum, least, stable, risk) in expected.items():
        case = profl.cases.get(name)()
        np.testing.assert_allclose(case.optimum, optimum, atol=6e-5, err_msg=name)
        np.testing.assert_allclose(case.stable, stable, atol=6e-5, err_msg=name)
        assert case.risk(case.optimum) == pytest.approx(least, abs=6e-5), name
        assert case.risk(case.stable) == pytest.approx(risk, abs=6e-5), name


# -- credit with an intercept ------------------------------------------------------------------------------------------


@cache
def real():
    return credit.table(profl.data.load("credit", SHARED), "all")


@pytest.mark.parametrize("eps", [0.01, 1.0, 100.0])
def test_with_a_free_intercept_exact_retraining_ends_after_one_step_at_the_optimum(eps):
    """Whatever eps, on made data: the intercept alone moves, by eps |theta_S|^2."""
    case = gmsc3(sensitivity=eps, data=credit.table(made_credit(), "all"))
    before = retrain(case, np.zeros(11))
    np.testing.assert_allclose(before, case.initial(None), atol=1e-6)
    once = retrain(case, before)
    shift = np.zeros(11)
    shift[-1] = eps * np.sum(before[list(STRATEGIC)] ** 2)
    np.testing.assert_allclose(once, before + shift, atol=1e-9)
    np.testing.assert_allclose(retrain(case, once), once, atol=1e-9)
    assert case.risk(once) == pytest.approx(case.decoupled_risk(np.zeros(11), before), abs=1e-12)
    np.testing.assert_allclose(case.gradient(once), 0, atol=1e-9)


@needs_files
@pytest.mark.parametrize(
    ("lam", "loss", "accuracy", "size", "strategic"),
    [
        (1, 0.609992, 0.719235, 2.513540, 0.099228),
        (10, 0.611437, 0.719072, 2.406668, 0.097111),
        (1000, 0.650441, 0.664270, 0.768202, 0.049150),
    ],
)
def test_perdomos_benchmark(lam, loss, accuracy, size, strategic):
    case = gmsc3(ridge=lam / 18357, data=real())
    assert case.clients["y"].shape == (1, 18357)
    before = retrain(case, np.zeros(11))
    found = [case.decoupled_risk(np.zeros(11), before), np.linalg.norm(before)]
    np.testing.assert_allclose(found, [loss, size], atol=1e-6)
    assert np.linalg.norm(before[list(STRATEGIC)]) == pytest.approx(strategic, abs=1e-6)
    once = retrain(case, before)
    assert case.accuracy(once) == pytest.approx(accuracy, abs=1e-6)
    assert np.linalg.norm(once - before) == pytest.approx(100 * strategic**2, rel=1e-4)
    assert np.linalg.norm(retrain(case, once) - once) < 1e-12


@needs_files
@pytest.mark.slow
def test_perdomos_benchmark_has_one_point():
    """PO = PS, also as the solver finds them; |PS - ERM| is the 0.24157 that was reported after 90 inexact steps."""
    case = gmsc3(data=real())
    before = retrain(case, np.zeros(11))
    np.testing.assert_allclose(case.stable, retrain(case, before), atol=1e-6)
    np.testing.assert_allclose(case.optimum, case.stable, atol=1e-6)
    assert np.linalg.norm(case.stable - before) == pytest.approx(0.24157, abs=1e-5)


@needs_files
def test_gmsc10_retraining_cycles():
    case = gmsc10(data=real())
    np.testing.assert_allclose(case.clients["eps"], np.linspace(0, 5, 10))
    theta = np.asarray(case.initial(None), float)
    assert case.risk(theta) == pytest.approx(0.86783, abs=1e-5)
    assert case.accuracy(theta) == pytest.approx(0.574, abs=6e-4)
    for _ in range(25):
        last, theta = theta, retrain(case, theta)
    assert np.linalg.norm(theta - last) > 0.6
    assert case.risk(theta) == pytest.approx(0.70596, abs=1e-5)
    assert case.accuracy(theta) == pytest.approx(0.585, abs=6e-4)


@needs_files
@pytest.mark.slow
def test_gmsc10_optimum():
    case = gmsc10(data=real())
    assert case.risk(case.optimum) == pytest.approx(0.66172, abs=1e-5)
    assert case.accuracy(case.optimum) == pytest.approx(0.612, abs=6e-4)


@needs_files
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "rounds", "local_steps", "samples", "seeds"),
    [
        (profl.pofl(0.3), 100, 5, 1835, 1),
        (profl.prm(keep=2), 30, 1, 1835, 1),
        (profl.prm(keep=2), 30, 1, 500, 3),
    ],
    ids=["pofl", "prm", "prm, drawn"],
)
def test_gmsc10_is_solved(method, rounds, local_steps, samples, seeds):
    """95 % of the gap between retraining, 0.70596, and the optimum. With all rows nothing is random but what is tried.

    Some features have long tails and others hardly vary until they are moved: the first samples do not show their
    scales, and pofl, whose exploration is sized by these, ended 1650 gaps above the optimum.
    """
    case = gmsc10(data=real())
    settings = {"rounds": rounds, "local_steps": local_steps, "samples": samples, "seeds": range(seeds)}
    run = profl.simulate(case, method, progress=False, **settings)
    closed = 1 - run.excess[:, -1] / (0.70596 - case.risk(case.optimum))
    assert np.all(closed >= 0.95), closed


def test_all_rows_are_drawn_once_where_as_many_are_asked_for():
    case = gmsc10(3, data=credit.table(made_credit(), "all"))
    client, rows = trees.take(trees.cast(case.clients), 0), case.clients["y"].shape[1]
    sample = jax.jit(case.reaction.sample, static_argnums=3)
    batch = sample(jax.random.key(0), np.zeros(11, np.float32), client, rows)
    np.testing.assert_array_equal(batch["x"], client["x"].T)
    drawn = sample(jax.random.key(0), np.zeros(11, np.float32), client, rows - 1)
    assert len(np.unique(drawn["x"], axis=0)) < rows - 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.cases.mean_estimation(sd=0.0), "sd must be"),
        (lambda: profl.cases.mean_estimation(mean_heterogeneity=-1.0), "0 or more"),
        (lambda: profl.cases.regression_shift(features=0), "features must be"),
        (lambda: profl.cases.logistic_shift(spread="odd"), "unknown spread"),
        (lambda: gmsc10(features=(10,), data=credit.table(made_credit(), "all")), "from 0 to 9"),
        (lambda: gmsc10(ridge=0.0, data=credit.table(made_credit(), "all")), "ridge must be"),
        (lambda: gmsc10(10_000, data=credit.table(made_credit(), "all")), "the number of rows"),
        (lambda: gmsc3(data="nowhere"), "no credit data at nowhere"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()
