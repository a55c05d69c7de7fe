"""The error of the estimated L2 where shares and means both move: against closed forms and against simulation."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import theory, trees
from profl.parts.gradient import terms

THETA = np.ones(2)
WINDOW = THETA + 0.4 * np.random.default_rng(0).normal(size=(6, 2))
CASE = profl.cases.unified_pricing(clients=2)


def curved(theta, z):
    """A loss that is not linear in x, and knows the group."""
    return -jnp.sum(theta * z["x"]) + 0.2 * (1 + z["group"]) * jnp.sum(z["x"] ** 2)


PROBLEMS = {"pathwise": CASE, "score": replace(CASE, loss=curved)}


@pytest.mark.parametrize("second", PROBLEMS)
def test_the_sampling_error_has_its_closed_form(second):
    """For l = -theta.x: V_k = sd^2 |theta|^2, g_k = -theta; with a_k, B_k the rows of J, b_k = B_k^T theta and m = sum
    nu_k b_k, n times the error is sum_k V_k |a_k|^2 / nu_k - |m|^2, plus sum_k nu_k |b_k|^2 (pathwise) or, by Isserlis,
    sum_k nu_k (|theta|^2 |B_k|^2 + 2 |b_k|^2) (score)."""
    jacobian, f = CASE.jacobian(THETA)[1], CASE.reaction.parameters(THETA, trees.take(CASE.clients, 1))
    nu, a, rows = np.asarray(f, float)[:2], jacobian[:2], jacobian[2:].reshape(2, 2, 2)
    b = np.einsum("kxd,x->kd", rows, THETA)
    by_mean = np.sum(b**2, 1)
    if second == "score":
        by_mean = 2 * by_mean + THETA @ THETA * np.sum(rows**2, (1, 2))
    expected = THETA @ THETA * np.sum(np.sum(a**2, 1) / nu) + nu @ by_mean - np.sum((nu @ b) ** 2)
    found = theory.second_term_error(CASE, THETA, 1, client=1, second_term=second)
    assert found.total == pytest.approx(expected, rel=1e-5)
    assert theory.second_term_error(CASE, THETA, 50, client=1, second_term=second).total == pytest.approx(
        expected / 50, rel=1e-5
    )


def test_each_dynamics_alone_is_a_part():
    """With shares that stand still (a budget without end) the error is that of class means alone."""
    still = profl.cases.unified_pricing(clients=1, budget=1e9)
    gamma = still.clients["gamma"][0]
    # nu = 1/2 each and B_k = -gamma I: every b_k = -gamma theta, whose variance over groups is zero
    found = theory.second_term_error(still, THETA, 100)
    assert found.total == pytest.approx(0, abs=1e-9)
    score = theory.second_term_error(still, THETA, 100, second_term="score")
    assert score.total == pytest.approx(gamma**2 * (2 * THETA @ THETA + THETA @ THETA) / 100, rel=1e-6)


def squared_errors(second, n, trials):
    """|J_hat^T u_hat - L2|^2 and |J^T u_hat - L2|^2 (2, trials), with u_hat as methods compute it.

    J_hat is that of least squares over ``WINDOW``.

    ``curved`` has L_k = -theta.mu_k + c_k (|mu_k|^2 + 2) and g_k = -theta + 2 c_k mu_k, c_k = 0.2 (1 + k).
    """
    problem = PROBLEMS[second]
    client = trees.take(trees.cast(problem.clients, jnp.float32), 0)
    view, equal, theta = problem.functions.view(), jnp.full(n, 1 / n), jnp.asarray(THETA, jnp.float32)
    window = jnp.asarray(WINDOW, jnp.float32)
    loadings = jnp.asarray(np.linalg.pinv(WINDOW - WINDOW.mean(0)).T, jnp.float32)
    known = jnp.asarray(problem.jacobian(THETA)[0], jnp.float32)

    def one(key):
        keys = jax.random.split(key, len(WINDOW) + 1)
        batch = problem.reaction.sample(keys[0], theta, client, n)
        u = terms(view, second, theta, batch, equal, problem.family.estimate(batch, equal)).f_gradient
        f = jax.vmap(lambda k, t: problem.family.estimate(problem.reaction.sample(k, t, client, n), equal))
        return jnp.stack([(f(keys[1:], window).T @ loadings).T @ u, known.T @ u])

    draw = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=100))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), trials)), float)
    f = np.asarray(problem.reaction.parameters(theta, client), float)
    nu, mu, c = f[:2], f[2:].reshape(2, 2), np.array([0.2, 0.4]) * (problem.loss is curved)
    group_loss = -mu @ THETA + c * (np.sum(mu**2, 1) + 2)
    u = np.concatenate([group_loss, (nu[:, None] * (-THETA + 2 * c[:, None] * mu)).ravel()])
    return np.sum((found - problem.jacobian(THETA)[0].T @ u) ** 2, axis=-1).T


@pytest.mark.parametrize(
    ("second", "n", "trials", "within"),
    [
        ("pathwise", 200, 4_000, 0.05),
        ("score", 200, 4_000, 0.05),
        pytest.param("pathwise", 400, 100_000, 0.01, marks=pytest.mark.slow),
        pytest.param("score", 400, 100_000, 0.01, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_error_that_methods_make(second, n, trials, within):
    """The standard error of the simulation is below ``within`` / 2; what leading order leaves out is some 1 / n."""
    window = theory.least_squares_error(PROBLEMS[second], WINDOW, n, THETA)
    for measured, error in zip(squared_errors(second, n, trials), (window, None), strict=True):
        stated = theory.second_term_error(PROBLEMS[second], THETA, n, jacobian_error=error, second_term=second).total
        assert measured.std() / np.sqrt(trials) < within / 2 * stated
        assert measured.mean() == pytest.approx(stated, rel=within)


def test_the_jacobian_of_a_window_has_the_bias_of_its_curvature():
    """Of means, which are lines, none; of shares, that of the slopes of exact f; and E dJ dJ^T falls to it with n."""
    error = theory.least_squares_error(CASE, WINDOW, 10**12, THETA)
    np.testing.assert_allclose(error.bias[2:], 0, atol=1e-9)
    np.testing.assert_allclose(error.bias[:2].sum(0), 0, atol=1e-9)  # shares sum to one, whatever is estimated
    assert np.abs(error.bias[:2]).max() > 1e-3
    np.testing.assert_allclose(error.square, error.bias @ error.bias.T, atol=1e-9)


def test_what_has_no_such_error_is_refused():
    with pytest.raises(profl.InputError, match="must have the family GroupMixture"):
        theory.second_term_error(profl.cases.pricing(), THETA, 10)
    with pytest.raises(profl.InputError, match="differ in all d directions"):
        theory.least_squares_error(CASE, [[1.0, 1.0], [2.0, 2.0]], 10, THETA)
    with pytest.raises(profl.InputError, match="client must be below 2, got 2"):
        theory.second_term_error(CASE, THETA, 10, client=2)
    with pytest.raises(profl.InputError, match="take nodes=1000"):
        theory.second_term_error(CASE, THETA, 10, nodes=10**4)
