"""Estimators of df/dsignal against exact answers."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.parts.exploration import Exploration
from profl.parts.jacobian.estimators import ESTIMATORS, Differences, LeastSquares, get, relative_floor, solve_ridge
from profl.parts.jacobian.kalman import Kalman
from profl.parts.jacobian.tracking import Tracking
from profl.parts.part import Step
from profl.parts.units import StepUnits, Unit, initial_units

ESTIMATED = [name for name in ESTIMATORS if name != "exact"]
TRUE = np.array([[1.0, -2.0, 0.5], [0.3, 0.7, 2.0]], np.float32)  # p = 2, s = 3, far from symmetric


def fed(estimator, signals, f, variance=1e-8, around=None):
    """The estimate after the estimator has seen these rows."""
    return np.asarray(_scanned(estimator, *_rows(signals, f, variance, around))[1])


def memory(estimator, signals, f, variance, around=None):
    return _scanned(estimator, *_rows(signals, f, variance, around))[0]


def _rows(signals, f, variance, around):
    rows = (np.asarray(leaf, np.float32) for leaf in (signals, f, signals if around is None else around))
    return *rows, np.full(f.shape[1], variance, np.float32)


ESTIMATED = [name for name in ESTIMATORS if name != "exact"]  # which estimates nothing


@partial(jax.jit, static_argnums=0)
def _scanned(estimator, signals, f, around, variance):
    def update(state, row):
        return estimator.update(state, row[0], row[1], variance, row[2]), None

    state = jax.lax.scan(update, estimator.init(signals[0], f[0]), (signals, f, around))[0]
    return state, estimator.estimate(state)


_error = jax.jit(lambda estimator, state: estimator.error(state), static_argnums=0)


@pytest.mark.parametrize("name", ESTIMATED)
def test_a_linear_reaction_is_found(name):
    """Deployments around one model, as exploration makes them; what came in without noise."""
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(30, 3)).astype(np.float32)
    straight = dataclasses.replace(Kalman(), curvature=0.0)
    estimator = {"kalman": straight, "tracking": Tracking(line=straight)}.get(name) or get(name, 10)
    found = fed(estimator, signals, signals @ TRUE.T + 4, around=np.zeros_like(signals))
    np.testing.assert_allclose(found, TRUE, atol=2e-3)


@pytest.mark.parametrize("name", ESTIMATED)
@pytest.mark.parametrize("window", [1, *(pytest.param(window, marks=pytest.mark.slow) for window in (2, 5))])
def test_a_standing_model_gives_a_finite_estimate(name, window):
    rng = np.random.default_rng(0)
    signals = np.ones((20, 3), np.float32)
    assert np.all(np.isfinite(fed(get(name, window), signals, rng.normal(size=(20, 2)).astype(np.float32), 1.0)))


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
        moves = scale * np.random.default_rng(0).normal(size=(5, 4))
        gram = (moves.T @ moves).astype(np.float32)
        assert np.all(np.isfinite(jax.jit(solve_ridge)(gram, gram, jax.jit(relative_floor)(gram))))


def explored(rng, count, spread, noise, reaction):
    """Deployments of +-spread around a standing model, and what comes in."""
    centre = np.array([1.0, 2.0, 1.5])
    signs = np.repeat(rng.choice([-1.0, 1.0], size=(count // 2, 3)), 2, axis=0)
    signs[1::2] *= -1
    signals = centre + spread * signs
    f = reaction(signals) + noise * rng.normal(size=(count, 2))
    return signals.astype(np.float32), f.astype(np.float32), np.tile(centre, (count, 1)).astype(np.float32)


def test_kalman_states_the_error_it_makes():
    """Square error over what it states: one, within three standard errors of 40 runs x 6 entries (0.09)."""
    ratios, line = [], Kalman(curvature=0.0)
    for seed in range(40):
        signals, f, around = explored(np.random.default_rng(seed), 100, 0.1, 0.05, lambda s: s @ TRUE.T + 4)
        state, found = _scanned(line, *_rows(signals, f, 0.05**2, around))
        error = np.asarray(_error(line, state))
        ratios.append((np.asarray(found) - TRUE) ** 2 / error)
    assert 0.73 <= np.mean(ratios) <= 1.27
    # ... and it is what least squares with an intercept would reach: noise / (spread sqrt(count))
    np.testing.assert_allclose(np.sqrt(error), 0.05 / (0.1 * 10), rtol=0.1)


def test_kalman_reads_the_slope_where_the_run_rests_not_that_of_the_way_there():
    """f = -2 exp(-s / 4): on the way from s = 6 to s = 2 the chord is half as steep as the end."""
    rng = np.random.default_rng(0)
    way, rest = np.linspace(6, 2, 60), np.full(400, 2.0)
    around = np.concatenate([way, rest])[:, None]
    signs = np.tile([1.0, -1.0], 230)[:, None]
    signals = (around + 0.1 * signs).astype(np.float32)
    f = (2 * np.exp(-signals / 4) + 0.01 * rng.normal(size=signals.shape)).astype(np.float32)
    true = -0.5 * np.exp(-0.5)
    found = fed(Kalman(), signals, f, 1e-4, around.astype(np.float32))[0, 0]
    straight = fed(Kalman(curvature=0.0), signals, f, 1e-4, around.astype(np.float32))[0, 0]
    assert found == pytest.approx(true, abs=0.02)  # four standard errors: 0.01 / (0.1 sqrt(400)) = 0.005
    assert abs(straight - true) > 0.05


def test_kalman_does_not_forget_by_exploring():
    """At rest the stated error falls as one over the root of the deployments, however long."""
    errors = []
    for count in (100, 1600):
        signals, f, around = explored(np.random.default_rng(0), count, 0.1, 0.05, lambda s: s @ TRUE.T)
        errors.append(float(np.sqrt(np.mean(_error(Kalman(), memory(Kalman(), signals, f, 0.05**2, around))))))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)


TWO = np.full(5, 2.0, np.float32)


@partial(jax.jit, static_argnums=(0, 1))
def informed(explore, view, theta, error):
    """The state once a step has shown units, J = I and its squared error."""
    known = {"batches": jnp.int32(1), "scales": TWO, "signal": Unit(0 * TWO, TWO)}
    units = StepUnits(initial_units(TWO, TWO, TWO)._replace(**known), jnp.asarray(False), jnp.ones(5))
    step = Step(theta, theta, None, None, False, {}, units=units, jacobian=jnp.eye(5))
    step = step._replace(jacobian_error=jnp.full((5, 5), error))
    return explore.update(view, explore.init(view, theta, jnp.zeros((2, 5))), step, None)[1]


def test_perturbations_cancel_in_pairs_and_fade():
    view = profl.cases.pricing().functions.view()
    explore, theta = Exploration(scale=0.1, fade=0.5, settle=4.0), np.full(5, 2.0, np.float32)
    state, moves = informed(explore, view, theta, 1e-4), []
    deploy = jax.jit(lambda i, state: explore.deploy(view, state, jax.random.fold_in(jax.random.key(0), i), theta))
    for i in range(60):
        deployed, state = deploy(i, state)
        moves.append(np.asarray(deployed) - theta)
    pairs = np.array(moves).reshape(30, 2, 5)
    np.testing.assert_allclose(pairs.sum(axis=1), 0, atol=1e-6)
    sizes = np.abs(pairs[:, 0])
    np.testing.assert_allclose(sizes[0], 0.1 * 2.0, rtol=1e-5)
    np.testing.assert_allclose(sizes[-1], 0.2 * np.sqrt(4 / 62), rtol=1e-5)


def test_at_an_edge_only_the_ignorant_move_inwards():
    """Prices at most 5: a coordinate that is at 5 has no room, and moving down costs in the first order."""
    view, theta = profl.cases.pricing().functions.view(), np.array([5.0, 2.0, 2.0, 2.0, 2.0], np.float32)
    deploy = jax.jit(
        lambda i, state: Exploration().deploy(view, state, jax.random.fold_in(jax.random.key(1), i), theta)
    )
    for error, moved in ((1e-4, False), (1e4, True)):
        deltas = []
        state = informed(Exploration(), view, theta, error)
        for i in range(8):
            deployed, state = deploy(i, state)
            deltas.append(float(np.asarray(deployed)[0] - 5.0))
        assert (min(deltas) < -0.1) == moved
        assert max(deltas) <= 0


@pytest.mark.parametrize("window", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_the_default_needs_no_window(window):
    """Housing with the paper's own H = 1: differences explode, the default does not."""
    settings = {"rounds": 100, "samples": 500, "seeds": range(4), "progress": False}
    run = profl.simulate(profl.cases.housing(), profl.pofl(0.01, window), **settings)
    assert run.tail_excess().mean() <= 0.01
