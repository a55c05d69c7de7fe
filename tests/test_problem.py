"""Every case states its risk, gradient, optimum and stable point; these hold them to each other and to samples."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random, trees
from profl.problem import oracle
from profl.problem import problem as problem_module
from profl.problem.model_space import bounds
from tests.problems import CASES, cross_pricing

slow = pytest.mark.slow
KINDS = ("pricing", "group_pricing", "housing")  # a mean, shares and a regression; the others in the slow form
every_case = pytest.mark.parametrize("name", CASES)
each_kind = pytest.mark.parametrize("name", [n if n in KINDS else pytest.param(n, marks=slow) for n in CASES])


@functools.cache
def made(name: str) -> profl.Problem:
    """Three clients; one object for all tests, so that its points are found once."""
    return CASES[name](clients=3)


def somewhere(problem: profl.Problem, seed: int = 7) -> np.ndarray:
    """A model inside the model space, away from any special point."""
    return np.asarray(problem.initial_models([seed])[0], dtype=np.float64)


@every_case
def test_gradient_is_the_slope_of_the_risk(name):
    problem = made(name)
    theta, step = somewhere(problem), 1e-5
    slopes = [
        (problem.risk(theta + step * e) - problem.risk(theta - step * e)) / (2 * step) for e in np.eye(theta.size)
    ]
    np.testing.assert_allclose(problem.gradient(theta), slopes, rtol=1e-5, atol=1e-7)


@each_kind
def test_risk_agrees_with_samples(name):
    problem = made(name)
    theta = somewhere(problem).astype(np.float32)
    clients = trees.cast(problem.clients, jnp.float32)

    def losses(client, row):
        batch = problem.reaction.sample(random.data_key(random.seed_key(1), client, 0), theta, row, 200_000)
        return jax.vmap(problem.loss, (None, 0))(theta, batch)

    draws = np.asarray(jax.jit(jax.vmap(losses))(np.arange(3), clients), dtype=np.float64)
    errors = draws.std(axis=1) / np.sqrt(draws.shape[1])
    assert np.all(np.abs(draws.mean(axis=1) - problem.client_risks(theta)) < 4 * errors)
    assert np.all(errors < 0.01 * max(1.0, np.abs(draws).max()))  # or the line above could not fail


@each_kind
def test_parameters_agree_with_the_family_estimate(name):
    problem = made(name)
    theta = somewhere(problem).astype(np.float32)
    client = trees.take(trees.cast(problem.clients, jnp.float32), 1)
    n, trials = 2000, 200

    @jax.jit
    @jax.vmap
    def estimate(number):
        key = random.data_key(random.seed_key(3), number, 0)
        batch = problem.reaction.sample(key, theta, client, n)
        weights = jnp.full(n, 1.0 / n)
        f = problem.family.estimate(batch, weights)
        return f, problem.family.variance(batch, weights, f)

    estimates, variances = map(np.asarray, estimate(np.arange(trials)))
    told = np.asarray(jax.jit(problem.reaction.parameters)(theta, client))
    errors = estimates.std(0) / np.sqrt(trials)
    assert np.all(np.abs(estimates.mean(0) - told) < 4 * errors)
    # The stated sampling variance is that of the estimates: a ratio of chi-squares with 199 degrees, so within 40 %.
    np.testing.assert_allclose(variances.mean(0), estimates.var(0), rtol=0.4)


@each_kind
def test_no_feasible_direction_descends_at_the_optimum(name):
    problem = made(name)
    theta = problem.optimum
    step = theta - np.asarray(problem.project(theta - problem.gradient(theta)))
    assert np.max(np.abs(step)) < 1e-6
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0):
        near = np.asarray(problem.project(theta + scale * rng.normal(size=(20, theta.size))))
        assert all(problem.risk(point) >= problem.risk(theta) - 1e-12 for point in near)


@each_kind
def test_repeated_gradient_descent_stays_at_the_stable_point(name):
    problem = made(name)
    theta = problem.stable
    step = theta - np.asarray(problem.project(theta - problem.stable_gradient(theta)))
    assert np.max(np.abs(step)) < 1e-6


@every_case
def test_the_stable_point_is_worse_than_the_optimum(name):
    problem = made(name)
    assert problem.risk(problem.stable) > problem.risk(problem.optimum) + 1e-3


@each_kind
def test_jacobian_is_the_slope_of_the_parameters(name):
    problem = made(name)
    theta, step = somewhere(problem), 1e-6
    with jax.enable_x64(True):
        client = trees.take(trees.to_device(problem.clients, jnp.float64), 0)
        f = jax.jit(problem.reaction.parameters)
        ends = [[np.asarray(f(theta + side * step * e, client)) for side in (1, -1)] for e in np.eye(theta.size)]
    columns = [(above - below) / (2 * step) for above, below in ends]
    np.testing.assert_allclose(problem.jacobian(theta)[0], np.stack(columns, axis=1), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("heterogeneity", "risk"), [(0.0, 5.5565), (0.25, 5.5896), (0.5, 5.6819)])
def test_housing_constants(heterogeneity, risk):
    """PO = -E a (1 + gamma) / (E (1 + gamma)^2 + 10/3) with E = E[x^2] = 34/9, averaged over clients."""
    problem = profl.cases.housing(heterogeneity=heterogeneity)
    gamma = -5 / 3 + heterogeneity * np.linspace(-1, 1, 10)
    second = 34 / 9
    closed = second * (5 / 3) * np.mean(1 + gamma) / (second * np.mean((1 + gamma) ** 2) + 10 / 3)
    assert problem.optimum[0] == pytest.approx(closed, abs=1e-6)
    assert problem.risk(problem.optimum) == pytest.approx(risk, abs=1e-4)
    assert problem.stable[0] == pytest.approx(7.7272727, abs=1e-6)
    if heterogeneity == 0:
        assert problem.optimum[0] == pytest.approx(-0.8374, abs=1e-4)


@pytest.mark.parametrize("weights", [None, [0.1, 0.2, 0.3, 0.4]])
def test_pricing_closed_form(weights):
    problem = profl.cases.pricing(clients=4, weights=weights)
    mu0, gamma = problem.clients["mu0"][0], problem.weights @ problem.clients["gamma"]
    np.testing.assert_allclose(problem.optimum, mu0 / (2 * gamma), atol=1e-6)
    np.testing.assert_allclose(problem.stable, mu0 / gamma, atol=1e-6)


def test_cross_pricing_closed_form():
    problem = cross_pricing()
    a, mu0 = problem.clients["a"][0], problem.clients["mu0"][0]
    np.testing.assert_allclose(problem.optimum, np.linalg.solve(a + a.T, mu0), atol=1e-6)
    np.testing.assert_allclose(problem.stable, np.linalg.solve(a, mu0), atol=1e-6)


def test_heterogeneity_spreads_the_sensitivities():
    assert np.ptp(profl.cases.pricing(heterogeneity=0).clients["gamma"]) == 0
    even = profl.cases.pricing(heterogeneity=0.5).clients["gamma"]
    np.testing.assert_allclose(even, np.linspace(1.0, 2.0, 10))
    drawn = profl.cases.pricing(clients=2000, heterogeneity=0.5, spread="uniform").clients["gamma"]
    assert 1.0 <= drawn.min() < 1.01
    assert 1.99 < drawn.max() <= 2.0
    assert drawn.std() == pytest.approx(1 / np.sqrt(12), rel=0.05)


@pytest.mark.parametrize("name", ["housing", *[pytest.param(name, marks=slow) for name in ("pricing", "retail")]])
def test_numerical_answers_match_the_closed_form(name):
    """A user's problem knows only how to sample (and, for shares, f): the same points come out, to its accuracy."""
    exact = made(name)
    known = exact.reaction.parameters if exact.family.shift is None else None
    sampled = profl.Problem(
        exact.name,
        exact.loss,
        exact.family,
        profl.worlds.SampledReaction(exact.reaction.sample, known),
        exact.clients,
        exact.initial,
        exact.project,
    )
    with pytest.raises(profl.InputError, match="solve"):
        _ = sampled.optimum
    solved = sampled.solve(samples=20_000)
    # Monte-Carlo error of a slope, about 1 / sqrt(20,000), over the curvature there: 0.8 for housing's stable point
    # (which lies at 7.7, so that 0.03 of a slope of 8 moves it by 0.4) and 2 or more elsewhere.
    np.testing.assert_allclose(solved.optimum, exact.optimum, atol=0.05)
    np.testing.assert_allclose(solved.stable, exact.stable, atol=0.4 if name == "housing" else 0.05)


def test_pooling_keeps_the_risk_and_the_known_points():
    problem = profl.cases.housing(clients=3, weights=[0.2, 0.3, 0.5])
    pooled = problem.pooled()
    assert pooled.risk(np.array([1.3])) == pytest.approx(problem.risk(np.array([1.3])))
    np.testing.assert_allclose(pooled.optimum, problem.optimum, atol=1e-6)
    of_counts = jax.jit(pooled.reaction.weights, static_argnums=1)
    weights = np.asarray(of_counts(trees.take(pooled.clients, 0), 4, np.array([4, 2, 1])))
    np.testing.assert_allclose(weights.reshape(3, 4).sum(1), [0.2, 0.3, 0.5], rtol=1e-6)
    np.testing.assert_allclose(weights[8:], [0.5, 0, 0, 0], rtol=1e-6)


def test_accuracy_of_strategic_classification_agrees_with_samples():
    problem = profl.cases.strategic(clients=2)
    theta = np.array([0.5, 1.1], np.float32)
    clients = trees.cast(problem.clients, jnp.float32)

    def right(client, row):
        batch = problem.reaction.sample(random.data_key(random.seed_key(5), client, 0), theta, row, 100_000)
        return jnp.mean((batch["x"] @ theta > 0) == (batch["y"] == 1))

    measured = np.mean(np.asarray(jax.jit(jax.vmap(right))(np.arange(2), clients)))
    assert problem.accuracy(theta) == pytest.approx(measured, abs=4 * 0.5 / np.sqrt(200_000))


def wavy(theta, z):
    """Valleys at 3 pi, pi and -pi, each deeper than the one before."""
    return jnp.sum(jnp.cos(theta) + 0.1 * theta) + 0.01 * jnp.sum(z)


def drawn(key, theta, client, n):
    return client["a"] + 0.0 * theta + random.normal(key, n, 1)


def waves(**changes):
    parts = {
        "name": "waves",
        "loss": wavy,
        "family": profl.GaussianMean(),
        "reaction": drawn,
        "clients": {"a": np.zeros(3)},
        "initial": np.array([8.0]),
        "project": profl.Box(-4.0, 12.0),
    }
    return profl.Problem(**{**parts, **changes})


def test_the_best_of_several_valleys_is_found():
    """cos(x) + x / 10 is least at -pi - arcsin(0.1) in [-4, 12]; the problem starts in the valley at 3 pi."""
    problem = waves().solve(500)
    np.testing.assert_allclose(problem.optimum, [-np.pi - np.arcsin(0.1)], atol=1e-6)
    np.testing.assert_allclose(problem.stable, [3 * np.pi - np.arcsin(0.1)], atol=1e-6)


def test_clients_without_a_risk_are_named():
    bad = waves(clients={"a": np.array([0.0, np.nan, 0.0, np.inf])}).solve(500)
    with pytest.raises(profl.InputError, match=r"risk of client 1, 3 \(2 of 4\) is NaN or Inf.*clients\['a'\]"):
        _ = bad.optimum


def test_a_run_below_the_stated_optimum_says_so(monkeypatch):
    """The search is made to miss the best valley, which the run then starts in: 0.628 below, 2 pi / 10."""
    monkeypatch.setattr(problem_module, "is_user_defined", lambda reaction: False)
    problem = waves().solve(500)
    short = {"rounds": 2, "local_steps": 1, "samples": 20, "seeds": [0], "progress": False}
    run = profl.simulate(problem, profl.pfl(), initial=np.array([3.0]), **short)
    assert "WARNING: the risk fell to 0.62" in run.summary()
    assert "a local one" in run.notes[0]
    other = profl.simulate(problem, profl.pfl(), **short)
    assert not other.notes
    assert problem.risk_error(problem.optimum) == pytest.approx(0.01 / np.sqrt(3 * 500), rel=0.1)


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ([0.0, -1.0, 2.0], [5.0, 1.0, 2.5]),
        (0.0, [5.0, 1.0, 2.5]),
        ([-np.inf, 0.0, 2.0], np.inf),
        ([0, 1, 1], [2, 1, 2]),
    ],
)
def test_a_box_takes_bounds_for_every_coordinate(lower, upper):
    models = np.random.default_rng(0).normal(0.0, 4.0, (20, 3)).astype(np.float32)
    expected = np.clip(models, np.float32(lower), np.float32(upper))
    box = profl.Box(lower, upper)
    np.testing.assert_array_equal(jax.jit(jax.vmap(box))(models), expected)
    tree = {"a": models[:, :2].reshape(20, 2, 1), "b": models[:, 2]}  # in the order of the flattened model
    projected = jax.jit(jax.vmap(box))(tree)
    np.testing.assert_array_equal(projected["a"].reshape(20, 2), expected[:, :2])
    np.testing.assert_array_equal(projected["b"], expected[:, 2])
    if np.isfinite(lower).all() and np.isfinite(upper).all():
        starts = oracle.scattered_models(models[0], bounds(box))
        assert np.all((lower <= starts) & (starts <= upper))
    else:
        assert bounds(box) is None


def test_boxes_with_equal_bounds_share_compiled_code():
    made = [profl.Box(kind([0.0, 1.0]), kind([2.0, 3.0])) for kind in (list, tuple, np.array, jnp.array)]
    assert len(set(made)) == 1
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def project(box, theta):
        traced.append(box)
        return box(theta)

    for box in made:
        assert project(box, np.zeros(2)).tolist() == [0.0, 1.0]
    assert len(traced) == 1


def test_a_run_ends_at_the_bound_of_each_price():
    case = profl.cases.pricing(clients=2, goods=2)  # retraining goes to 4.4 for both, if it may
    bounded = dataclasses.replace(case, project=profl.Box([0.0, 1.0], [3.0, 5.0]))
    run = profl.simulate(bounded, profl.pfl(0.1), rounds=60, samples=100, seeds=[0], progress=False)
    first, second = run.theta[0, -1]
    assert first == 3.0
    assert abs(second - case.stable[1]) < 0.2
    np.testing.assert_allclose(bounded.stable, [3.0, case.stable[1]], rtol=1e-5)
