"""Drift correction: clients that differ much, R = 5, and yet the point that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from profl import random
from profl.parts.drift_correction import DriftCorrection, mean_gradient
from profl.parts.part import Step


@dataclass(frozen=True)
class Shifting(profl.worlds.Reaction):
    """z ~ N(mu + gamma theta, I)."""

    def parameters(self, theta, client):
        return client["mu"] + client["gamma"] * theta

    def sample(self, key, theta, client, n):
        return self.parameters(theta, client) + random.normal(key, n, theta.shape[0])

    def decoupled(self, deployed, theta, client):
        return jnp.sum((theta - self.parameters(deployed, client)) ** 2) / 2


def half_square(theta, z):
    return jnp.sum((theta - z) ** 2) / 2


def mean_estimation():
    """gamma from -3 to 0.6: slopes of L1 from 0.4 to 4 at the clients. PS = mean(mu) / (1 - mean(gamma))."""
    clients = {"mu": np.array([[4.0], [1.0], [-2.0], [3.0]]), "gamma": np.array([0.6, 0.2, -1.0, -3.0])}
    return profl.Problem(
        "mean estimation", half_square, profl.GaussianMean(), Shifting(), clients, lambda key: jnp.zeros(1)
    )


def pricing():
    """Customers of the first of ten retailers do not mind the price; the others' do, by 1.5 on average over all."""
    case = profl.cases.pricing()
    gamma = np.linspace(0.0, 3.0, 10)
    return replace(case, clients={**case.clients, "gamma": gamma})


PROBLEMS = {"pricing": pricing(), "mean estimation": mean_estimation()}
METHODS = {"pfl": (profl.pfl, {}), "pofl": (profl.pofl, {"jacobian": "exact"})}
SETTINGS = {"rounds": 100, "local_steps": 5, "samples": 300, "seeds": range(4), "progress": False}
ROWS = [(name, problem) for name in METHODS for problem in PROBLEMS]
SLOW = [("pfl", "mean estimation"), ("pofl", "pricing")]


def off(problem, method):
    """How far from where the method aims a run ends, without what is noise: tails of four seeds, averaged."""
    run = profl.simulate(problem, method, **SETTINGS)
    target = problem.stable if method.name == "pfl" else problem.optimum
    return float(np.linalg.norm(run.theta[:, -50:].mean((0, 1)) - target))


def test_the_points_in_closed_form():
    mu, gamma = (PROBLEMS["mean estimation"].clients[name].ravel() for name in ("mu", "gamma"))
    np.testing.assert_allclose(PROBLEMS["mean estimation"].stable, mu.mean() / (1 - gamma.mean()), rtol=1e-5)
    best = np.sum((1 - gamma) * mu) / np.sum((1 - gamma) ** 2)
    np.testing.assert_allclose(PROBLEMS["mean estimation"].optimum, best, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "problem"), [pytest.param(*row, marks=[pytest.mark.slow] if row in SLOW else []) for row in ROWS]
)
def test_corrected_runs_end_where_they_aim(name, problem):
    """The noise of a tail is 0.001; plain averaging is off by 0.06 to 0.4."""
    make, parts = METHODS[name]
    plain, corrected = (off(PROBLEMS[problem], make(0.03, **parts, correction=c)) for c in (None, "scaffold"))
    assert plain > 0.05
    assert corrected < 0.005


def test_two_clients_by_hand():
    """Gradients 3 and 5 at one, -1 and -1 at the other: means 4 and -1, of which 1.5 is common."""
    means, part = [], DriftCorrection()

    def followed(state, gradient):
        step = Step(None, None, None, None, False, {}, gradient=jnp.array([gradient]))
        step, state = part.update(None, state, step, None)
        return float(step.gradient[0]), state

    for own in ([3.0, 5.0], [-1.0, -1.0]):
        state = part.init(None, jnp.zeros(1), None)
        for gradient in own:
            follow, state = followed(state, gradient)
            assert follow == gradient  # nothing is known yet
        means.append(state)
    assert [float(mean_gradient(state)[0]) for state in means] == [4.0, -1.0]
    follow, state = followed(part.receive(None, means[0], jnp.array([1.5])), 4.5)
    assert follow == 4.5 - 4.0 + 1.5
    assert mean_gradient(state)[0] == 4.5  # the last round is not in it


def test_a_hostile_client_does_not_move_what_is_common():
    """One of four sends ten times its own; the median does not mind, the mean does."""
    ends = {}
    for rule in ("mean", "median"):
        method = profl.pfl(0.1, correction="scaffold", aggregate=rule)
        place = method.parts.index(DriftCorrection())
        control = np.array([[1.0], [1.2], [0.8], [100.0]], np.float32)

        @jax.jit
        def combined(reports, key, method=method):
            theta, everyone = jnp.zeros(1), (jnp.full(4, 0.25), jnp.ones(4, bool))
            return method.combine(None, method.open(None, theta), theta, reports, *everyone, key)

        _, server, mail = combined({"theta": np.zeros((4, 1), np.float32), "control": control}, jax.random.key(0))
        assert mail[place].shape == (4, 1)
        ends[rule] = float(np.asarray(server[place])[0])
    assert ends["mean"] == pytest.approx(25.75)
    assert ends["median"] == pytest.approx(1.1)


def test_an_optimiser_and_partial_participation_go_with_it():
    """Every client's turn comes in half of the rounds, with momentum: it ends near the stable point of the four."""
    problem = PROBLEMS["mean estimation"]
    method = profl.pfl(optimiser=optax.sgd(0.003, momentum=0.5), correction="scaffold")
    run = profl.simulate(problem, method, **{**SETTINGS, "rounds": 400, "participation": 0.5})
    assert abs(run.theta[:, -200:].mean() - problem.stable[0]) < 0.05


def test_a_correction_that_does_not_exist_is_refused():
    with pytest.raises(profl.InputError, match="did you mean 'scaffold'"):
        profl.pofl(correction="scafold")
