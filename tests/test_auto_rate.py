"""A learning rate that is found: against closed forms, in other units, and in every part it goes with."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from profl import random
from profl.parts import learning_rate
from profl.parts.optimiser import Optimiser
from tests.problems import unmeasured
from tests.test_units import CASE, SETTINGS, UNITS, Elsewhere, moved

started, update = jax.jit(learning_rate.initial_server_state), jax.jit(learning_rate.next_step)


def followed(curvature, noise=0.0, rounds=40):
    """A model that follows the rate on x^T H x / 2, R = 1, from (1, 1): models and rates."""
    rng = np.random.default_rng(0)
    hessian, x, state = np.asarray(curvature, np.float32), np.ones(2, np.float32), started(np.zeros(2, np.float32))
    models, found = [], []
    for _ in range(rounds):
        one, copy = (noise * rng.normal(size=2).astype(np.float32) for _ in range(2))
        gradient = hessian @ x + one
        state = update(state, x, gradient, copy, np.ones(2, np.float32))
        x = x - np.asarray(state.step) * gradient
        models.append(x)
        found.append(float(state.step))
    return np.array(models), np.array(found)


@pytest.mark.parametrize(
    "curvature", [[[1.0, 0.0], [0.0, 1.0]], [[300.0, 0.0], [0.0, 100.0]], [[1e-3, 8e-4], [-8e-4, 1e-3]]]
)
def test_without_noise_it_goes_to_the_optimum_whatever_the_curvature(curvature):
    """From 0.001 to 300, and one that turns as much as it pulls: (1, 1) to below a hundredth in 40 rounds."""
    models, _ = followed(curvature)
    assert np.linalg.norm(models[-1]) < 0.01
    assert np.abs(models).max() < 3


def test_one_dimension_by_hand():
    """H = 4 from x = 1: the first move is 0.1 scales, the next as far as the radius, then 1 / H times the share."""
    ones = np.ones(1, np.float32)

    def rate(state, x):
        state = update(state, x, 4 * x, 0 * ones, ones)
        return np.asarray(state.step), state

    eta, state = rate(started(0 * ones), ones)
    assert float(eta) * 4 == pytest.approx(learning_rate.SECANT_SHARE * learning_rate.FIRST_MOVE)
    x = ones - eta * 4
    eta, state = rate(state, x)
    move = learning_rate.SECANT_SHARE * learning_rate.FIRST_MOVE
    assert float(eta * 4 * x[0]) == pytest.approx(learning_rate.FACTOR * move, rel=1e-3)
    for _ in range(2):
        x = x - eta * 4 * x
        eta, state = rate(state, x)
    assert float(eta) == pytest.approx(learning_rate.SECANT_SHARE / 4, rel=1e-3)


def test_steps_shrink_once_the_gradient_is_noise():
    models, rates = followed([[1.0, 0.0], [0.0, 1.0]], noise=0.1, rounds=300)
    assert 1 / 3000 < rates[-50:].mean() < 0.2 * rates.max()  # ... as one over their number, and no faster
    assert np.linalg.norm(models[-50:].mean(0)) < 0.02


def test_the_same_run_in_other_units():
    """No settings at all: neither origin nor units matter."""
    runs = []
    with jax.enable_x64(True):
        for where in (Elsewhere(), Elsewhere(256.0, UNITS)):
            case = unmeasured(moved(CASE, where))
            run = profl.simulate(case, profl.pofl("auto", correction="scaffold"), **SETTINGS)
            runs.append(where.inside(run.theta))
    np.testing.assert_allclose(runs[1], runs[0], atol=1e-5)
    assert np.all(np.ptp(runs[0], axis=1) > 0.1)  # it went somewhere


@dataclass(frozen=True)
class Feedback(profl.worlds.Reaction):
    """z ~ N(mu + 1.5 tanh(theta), I): the risk has local minima, and a step that is too long goes far up."""

    def parameters(self, theta, client):
        return client["mu"] + 1.5 * jnp.tanh(theta)

    def sample(self, key, theta, client, n):
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed, theta, client):
        return jnp.sum(theta**2 / 2 - theta * self.parameters(deployed, client))


def test_few_samples_do_not_end_above_the_start():
    """Seven samples, ten starts: before rounds were taken back three ended at 1.6 to 5.7 times their first excess."""
    problem = profl.Problem(
        "feedback",
        lambda theta, z: jnp.sum(theta**2 / 2 - theta * z),
        profl.GaussianMean(),
        Feedback(),
        {"mu": 0.5 * np.random.default_rng(0).normal(size=(5, 3))},
        lambda key: 3 * jax.random.normal(key, (3,)),
    )
    run = profl.simulate(problem, profl.pofl("auto"), rounds=30, local_steps=1, samples=7, seeds=range(10))
    assert np.all(run.excess[:, -1] < run.excess[:, 0])


@dataclass(frozen=True)
class Turning(profl.worlds.Reaction):
    """z ~ N(mu + A theta, I) with an A that is far from symmetric."""

    def parameters(self, theta, client):
        return client["mu"] + client["a"] @ theta

    def sample(self, key, theta, client, n):
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed, theta, client):
        return jnp.sum((theta - self.parameters(deployed, client)) ** 2) / 2


def test_retraining_ends_at_the_stable_point_of_a_reaction_that_turns():
    """Spectral norm one, five parameters: PS = (I - A)^-1 mu."""
    rng = np.random.default_rng(0)
    a, mu = rng.normal(size=(5, 5)), 3 * rng.normal(size=5)
    a /= np.linalg.norm(a, 2)
    clients = {"mu": np.tile(mu, (2, 1)), "a": np.tile(a, (2, 1, 1))}
    problem = profl.Problem(
        "turning",
        lambda theta, z: jnp.sum((theta - z) ** 2) / 2,
        profl.GaussianMean(),
        Turning(),
        clients,
        lambda key: jnp.zeros(5),
    )
    run = profl.simulate(problem, profl.pfl("auto"), **{**SETTINGS, "rounds": 80, "samples": 400})
    stable = np.linalg.solve(np.eye(5) - a, mu)
    np.testing.assert_allclose(run.theta[:, -20:].mean((0, 1)), stable, atol=0.05)
    assert run.info["rate"].shape == run.excess.shape


def test_the_server_takes_nobodys_word_for_the_number_of_steps():
    """It sends R times the rate, and each client divides by the steps that it made itself."""
    method, theta = profl.pfl("auto"), jnp.zeros(2)
    part = method.part(learning_rate.FoundLearningRate)
    state = learning_rate.RateClient(*[jnp.zeros(())] * len(learning_rate.RateClient._fields))
    zeros = jnp.zeros(2)
    state = state._replace(scales=zeros, gradient=zeros, noise=zeros, deployed=zeros, steepness=zeros)
    state = state._replace(loss=jnp.zeros(2), reference=jnp.zeros(3), steps=jnp.float32(5.0))
    assert not [name for name in part.report(None, state, theta) if "steps" in name]
    mail = learning_rate.RateMail(jnp.float32(0.1), jnp.ones(2), jnp.zeros(2, bool))
    assert float(part.receive(None, state, mail).rate) == pytest.approx(0.02)
    assert float(part.receive(None, state, mail).steps) == 0


def test_it_scales_another_optimiser():
    method = profl.pfl("auto", optimiser=optax.sgd)
    assert method.part(Optimiser).transformation is profl.pofl("auto").part(Optimiser).transformation
    with pytest.raises(profl.InputError, match="did you mean 'auto'"):
        profl.pofl("aut")
