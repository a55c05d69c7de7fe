"""Estimators of df/dsignal against exact answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from profl.client.jacobian import ESTIMATORS, Differences, LeastSquares, relative_floor, solve_ridge

TRUE = np.array([[1.0, -2.0, 0.5], [0.3, 0.7, 2.0]], np.float32)  # p = 2, s = 3, far from symmetric


def fed(estimator, signals, f, variance=1e-8):
    """The estimate after the estimator has seen these rows."""
    state = estimator.init(jnp.asarray(signals[0]), jnp.asarray(f[0]))
    for row, value in zip(signals, f, strict=True):
        state = estimator.update(state, jnp.asarray(row), jnp.asarray(value), jnp.full(f.shape[1], variance))
    return np.asarray(estimator.estimate(state))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_linear_reaction_is_found(name):
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(30, 3)).astype(np.float32)
    found = fed(ESTIMATORS[name](10), signals, signals @ TRUE.T + 4)
    np.testing.assert_allclose(found, TRUE, atol=2e-3)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_standing_model_gives_a_finite_estimate(name, window):
    rng = np.random.default_rng(0)
    signals = np.ones((20, 3), np.float32)
    assert np.all(np.isfinite(fed(ESTIMATORS[name](window), signals, rng.normal(size=(20, 2)).astype(np.float32), 1.0)))


def test_differences_are_the_papers_formula():
    """H = 4 rows before the newest: Delta f pinv(Delta theta)."""
    rng = np.random.default_rng(1)
    signals, f = (rng.normal(size=(9, k)).astype(np.float32) for k in (3, 2))
    moves, changes = signals[-5:-1] - signals[-1], f[-5:-1] - f[-1]
    expected = changes.T @ np.linalg.pinv(moves.T)
    np.testing.assert_allclose(fed(Differences(4), signals, f), expected, rtol=0.02, atol=0.02)


def test_differences_with_fewer_rows_than_dimensions():
    rng = np.random.default_rng(2)
    signals, f = (rng.normal(size=(6, k)).astype(np.float32) for k in (3, 2))
    expected = (f[-3:-1] - f[-1]).T @ np.linalg.pinv((signals[-3:-1] - signals[-1]).T)
    np.testing.assert_allclose(fed(Differences(2), signals, f), expected, rtol=0.02, atol=0.02)


def test_differences_wait_for_a_full_window():
    rng = np.random.default_rng(3)
    signals = rng.normal(size=(4, 3)).astype(np.float32)
    assert np.all(fed(Differences(4), signals, signals @ TRUE.T) == 0)


def test_least_squares_keeps_what_the_window_no_longer_shows():
    """First all three directions, then a long time only the first: the other columns must survive."""
    rng = np.random.default_rng(4)
    wide = rng.normal(size=(11, 3))
    line = np.zeros((60, 3))
    line[:, 0] = rng.normal(size=60)
    signals = np.concatenate([wide, line]).astype(np.float32)
    f = (signals @ TRUE.T + 0.03 * rng.normal(size=(71, 2))).astype(np.float32)
    np.testing.assert_allclose(fed(LeastSquares(10), signals, f, 0.03**2), TRUE, atol=0.15)
    lost = fed(Differences(10), signals, f, 0.03**2)
    assert np.max(np.abs(lost - TRUE)) > 0.5


def test_error_falls_with_the_noise():
    """Rate: ten times less noise in f_hat, ten times less error in J."""
    errors = []
    for noise in (0.1, 0.01):
        spread = []
        for seed in range(30):
            rng = np.random.default_rng(seed)
            signals = rng.normal(size=(21, 3)).astype(np.float32)
            f = (signals @ TRUE.T + noise * rng.normal(size=(21, 2))).astype(np.float32)
            spread.append(fed(LeastSquares(20), signals, f, noise**2) - TRUE)
        errors.append(np.sqrt(np.mean(np.square(spread))))
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.35)


def test_solve_ridge_is_finite_for_a_window_that_has_shrunk_to_nothing():
    for scale in (1.0, 1e-12, 1e-30, 0.0):
        moves = scale * jax.random.normal(jax.random.key(0), (5, 4))
        gram = moves.T @ moves
        assert np.all(np.isfinite(solve_ridge(gram, gram, relative_floor(gram))))
