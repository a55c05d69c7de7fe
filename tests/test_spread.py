"""A family whose spread moves: f_hat and its noise, what becomes of odd batches, and where methods end with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random, trees
from profl.parts import variance_shift as watching
from tests.problems import QUICK, Spreading, spread_loss, spreading, unmeasured

FAMILY = profl.LocationScale()
NOISES = {
    "normal": jax.random.normal,
    "laplace": jax.random.laplace,  # kurtosis 6
    "uniform": lambda key, shape: jax.random.uniform(key, shape, minval=-1.0),  # kurtosis 1.8
}


@pytest.mark.parametrize("noise", NOISES)
def test_the_stated_variance_is_that_of_the_estimate(noise):
    """4,000 batches of 200: their variance is known to sqrt(2 / 4000), 2 %; the mean kurtosis of 200 is low by some."""
    n, equal = 200, jnp.full(200, 1 / 200)
    batches = jnp.array([3.0, -1.0]) + jnp.array([1e-2, 1e2]) * NOISES[noise](jax.random.key(0), (4000, n, 2))
    f = jax.vmap(FAMILY.estimate, (0, None))(batches, equal)
    stated = jnp.mean(jax.vmap(FAMILY.variance, (0, None, 0))(batches, equal, f), 0)
    np.testing.assert_allclose(stated, jnp.var(f, 0), rtol=0.12)


def test_moved_samples_have_the_f_that_was_asked_for():
    batch, equal = 3 + jax.random.laplace(jax.random.key(1), (50, 2)), jnp.full(50, 1 / 50)
    f, delta = FAMILY.estimate(batch, equal), jnp.array([1.0, -2.0, 0.5, -1.0])
    moved = jax.vmap(FAMILY.moved, (0, None, None))(batch, delta, f)
    np.testing.assert_allclose(FAMILY.estimate(moved, equal), f + delta, atol=1e-5)


def test_samples_of_weight_zero_are_not_there():
    batch = jax.random.normal(jax.random.key(2), (30, 2))
    padded = jnp.concatenate([batch, jnp.full((10, 2), 1e6)])
    few, many = jnp.full(30, 1 / 30), jnp.where(jnp.arange(40) < 30, 1 / 30, 0.0)
    f = FAMILY.estimate(batch, few)
    np.testing.assert_allclose(FAMILY.estimate(padded, many), f, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(FAMILY.variance(padded, many, f), FAMILY.variance(batch, few, f), rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
@pytest.mark.parametrize("n", [1, 2, 100])
def test_a_coordinate_that_does_not_vary(value, n):
    """Its estimate, noise and score are finite, and scaling leaves it where it is."""
    noise = 1.0 * jnp.arange(n)
    batch, equal = jnp.stack([jnp.full(n, value), noise], 1), jnp.full(n, 1 / n)
    f = FAMILY.estimate(batch, equal)
    stated, seen = FAMILY.variance(batch, equal, f), FAMILY.observed_variance(batch, equal, f)
    score = jax.vmap(jax.grad(FAMILY.log_prob, argnums=1), (0, None))(batch, f)
    assert all(np.all(np.isfinite(each)) for each in (f, stated, seen, score))
    assert stated[0] == 0  # as exact as rounding, which the batch's other coordinates must not hear of
    assert np.all(stated[2:] > 0.1 / n)  # a spread is never known without error, not from two samples either
    assert np.all(seen > 0)
    moved = jax.vmap(FAMILY.moved, (0, None, None))(batch, jnp.array([0.0, 0.0, 2.0, 0.0]), f)
    np.testing.assert_allclose(moved, batch, rtol=1e-5)


SETTINGS = {"samples": 300, "seeds": range(5), "progress": False}
METHODS = {
    "pofl": (profl.pofl(0.1), {"rounds": 60, "local_steps": 2}),
    "prm": (profl.prm(), {"rounds": 15, "local_steps": 2}),
}


def closed(problem, run):
    """The share of the gap from the stable point's risk to the optimum's that every seed closed."""
    best, stable = problem.risk(problem.optimum), problem.risk(problem.stable)
    return 1 - (problem.risks(run.theta[:, -1]) - best) / (stable - best)


@pytest.mark.parametrize("name", ["pofl", pytest.param("prm", marks=pytest.mark.slow)])
def test_a_spread_that_grows_needs_a_family_that_has_one(name):
    """Answers found numerically. The mean alone closes some of the gap: a little of the risk is the mean's."""
    method, settings = METHODS[name]
    gaps = {}
    for family in (profl.GaussianMean(), FAMILY):
        sampled = spreading(family=family, reaction=Spreading().sample).solve(2000)
        gaps[family] = closed(sampled, profl.simulate(sampled, method, **SETTINGS, **settings))
    assert np.all(gaps[FAMILY] >= 0.92)
    assert np.all(gaps[profl.GaussianMean()] <= 0.4)


def test_the_numerical_answers_are_the_exact_ones():
    """20,000 draws know the spread to 0.5 %."""
    exact = spreading()
    solved = unmeasured(exact).solve()
    np.testing.assert_allclose(solved.optimum, exact.optimum, rtol=0.02)
    np.testing.assert_allclose(solved.stable, exact.stable, rtol=0.02)


def test_engines_agree_on_a_family_whose_shift_needs_f():
    problem, method = spreading(clients=2), profl.pofl(0.05, jacobian=QUICK)
    settings = {"rounds": 3, "local_steps": 2, "samples": 30, "progress": False}
    with jax.enable_x64(True):
        fast = profl.simulate(problem, method, seeds=[3], **settings)
        slow = profl.simulate(problem, method, seeds=[3], engine="debug", **settings)
        clients = profl.worlds.simulated_clients(problem, method, samples=30, seed=3)
        live = profl.train(problem, method, clients, seed=3, **settings)
    for run in (slow, live):
        np.testing.assert_allclose(run.theta, fast.theta, atol=1e-8)


@pytest.mark.parametrize("method", [profl.pofl(0.05), pytest.param(profl.prm(keep=4), marks=pytest.mark.slow)])
def test_runs_stay_finite_where_a_coordinate_does_not_vary(method):
    """The second coordinate is what was deployed, without noise: f moves, and its spread is none."""

    def sample(key, theta, client, n):
        noisy = client["base"] + jnp.exp(0.2 * theta[0]) * random.normal(key, n, 1)
        return jnp.concatenate([noisy, jnp.broadcast_to(5 - theta[1:], (n, 1))], 1)

    problem = profl.Problem(
        "half noise", spread_loss, FAMILY, sample, {"base": np.ones(2)}, lambda key: jnp.ones(2), profl.Box(-3.0, 6.0)
    )
    run = profl.simulate(problem, method, rounds=15, local_steps=2, samples=50, seeds=[0], progress=False)
    assert trees.all_finite(run.theta)
    assert not np.any(run.refused)


# -- whether it moves, where the family takes it for fixed -------------------------------------------------------------

MEAN = profl.GaussianMean()
RUN = {"rounds": 20, "local_steps": 5, "samples": 500, "seeds": range(10), "progress": False, "record_every": 20}


def growing(b, family=MEAN):
    """The mean reacts as it does, and log sd by b; the natural unit of theta is about 1.4 here."""
    case = spreading(family=family, reaction=Spreading().sample)
    return replace(case, clients={**case.clients, "b": np.full(3, b)})


def told(series, signals):
    """The figures after such y, (steps, m), at such signals, (steps, s)."""
    state = watching.begin(series.shape[1], signals.shape[1])

    def step(state, row):
        return watching.update(state, *row, jnp.float32(1 / 500)), None

    return watching.figures(jax.lax.scan(step, state, (signals, series))[0])


def test_the_evidence_is_that_of_conjugate_regressions():
    """log of the ratio of two marginal likelihoods: y - y_1 Student's t with 4 degrees, its scale I + X V X^T."""
    rng, steps = np.random.default_rng(0), 30
    signals = np.concatenate([np.zeros((1, 2)), rng.normal(size=(steps - 1, 2))])
    y = 0.1 * rng.normal(size=(steps, 1)) + 0.2 * signals[:, :1]
    x, later = np.concatenate([np.ones((steps - 1, 1)), signals[1:]], 1), (y - y[0])[1:, 0]

    def likely(x, prior):
        shape = np.eye(steps - 1) + x @ np.diag(prior) @ x.T
        left = watching.BELIEVED * 2 / 500 + later @ np.linalg.solve(shape, later)
        return -np.linalg.slogdet(shape)[1] / 2 - (watching.BELIEVED + steps - 1) / 2 * np.log(left)

    evidence = likely(x, [1.0, watching.SLOPE, watching.SLOPE]) - likely(x[:, :1], [1.0])
    found = told(jnp.asarray(y, jnp.float32), jnp.asarray(signals, jnp.float32))
    assert evidence > 5
    assert float(found["spread"]) == pytest.approx(evidence, rel=1e-3)
    assert abs(float(found["spread_change"]) - 0.1) < 4 * float(found["spread_error"])  # of log sd: half


def test_chance_gives_little_evidence():
    """One of 20 series at most shows a factor of 20; five coordinates, three signals, noise of kurtosis 6 as well."""
    keys = jax.random.split(jax.random.key(0), 3)
    signals = jnp.cumsum(0.1 * jax.random.normal(keys[0], (1000, 100, 3)), 1)
    for y in (jax.random.normal(keys[1], (1000, 100, 5)), jax.random.laplace(keys[2], (1000, 100, 5))):
        evidence = jax.vmap(told)(0.07 * y, signals)["spread"]
        assert np.mean(evidence > np.log(20)) < 1 / 20


def test_a_run_says_that_the_spread_moves():
    """By 20 % with a natural unit, within 100 deployments, in 10 of 10 seeds; and not where the family has it."""
    run = profl.simulate(growing(0.13), profl.pofl(), **RUN)
    assert run.spread.found.all()
    np.testing.assert_allclose(run.spread.change.mean(), np.log(1.2), atol=0.03)
    assert "spread of the data moves with the model: a standard deviation by " in run.summary()
    assert "profl.LocationScale()" in run.summary()
    for quiet in (growing(0.0), growing(0.13, FAMILY)):
        run = profl.simulate(quiet, profl.pofl(), **RUN)
        assert not run.spread.found.any()
        assert "spread of the data" not in run.summary()


@dataclass(frozen=True)
class Waiting(profl.Family):
    """Waiting times: f is the mean and says the spread as well."""

    def estimate(self, batch, weights):
        return weights @ batch

    def log_prob(self, z, f):
        return -jnp.sum(jnp.log(f) + z / f)


def test_a_spread_that_follows_the_mean_needs_a_family_that_knows():
    """There is nothing to say then; a family with a fixed spread is told."""

    def sample(key, theta, client, n):
        return client["base"] * jnp.exp(-0.5 * theta) * jax.random.exponential(key, (n, 1))

    parts = (sample, {"base": np.full(3, 8.0)}, lambda key: jnp.full(1, 0.5), profl.Box(0.1, 3.0))
    problem = profl.Problem("waiting", lambda theta, z: -jnp.sum(theta * z), MEAN, *parts)
    few = {**RUN, "seeds": range(3)}
    assert profl.simulate(problem, profl.pofl(0.02), **few).spread.found.all()
    assert profl.simulate(replace(problem, family=Waiting()), profl.pofl(0.02), **few).spread is None


@pytest.mark.slow
@pytest.mark.parametrize("case", ["pricing", "exponential", "housing", "strategic"])
def test_no_alarm_where_the_spread_does_not_move(case):
    """100 runs of each; shares of groups have no spread of their own."""
    name, more = ("pricing", {"reaction": "exponential"}) if case == "exponential" else (case, {})
    problem = unmeasured(getattr(profl.cases, name)(**more))
    run = profl.simulate(problem, profl.pofl(), **{**RUN, "seeds": range(100)})
    assert run.spread.found.sum() <= 1
