"""Methods of the field that retrain or go by losses alone, held to recursions worked by hand: lazy, rrm, dfo_lambda."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from profl.checks import InputError
from profl_papers.dfo_lambda import ForgettingDFO as dfo_lambda
from profl_papers.lazy import lazy

BUT_FOR_ROUNDING = 1e-5


@dataclass(frozen=True)
class Answer(profl.worlds.Reaction):
    """z = 10 + slope theta, every sample."""

    def parameters(self, theta, client):
        return 10.0 + client["slope"] * theta

    def sample(self, key, theta, client, n):
        return jnp.broadcast_to(self.parameters(theta, client), (n, 1))

    def decoupled(self, deployed, theta, client):
        return 0.5 * jnp.sum((self.parameters(deployed, client) - theta) ** 2)


def squared(theta, z):
    return 0.5 * jnp.sum((z - theta) ** 2)


def estimation(slope=0.5):
    clients = {"slope": np.array([slope])}
    return profl.Problem("mean", squared, profl.GaussianMean(), Answer(), clients, lambda key: jnp.zeros(1))


def path(method, rounds, problem=None):
    """The models of one seed, the start among them."""
    run = profl.simulate(
        problem or estimation(), method, rounds=rounds, samples=4, local_steps=1, seeds=[0], progress=False
    )
    return np.asarray(run.theta)[0, :, 0]


@pytest.mark.parametrize("schedule", ["1", "k", lambda k: 3 + 0 * k])
def test_lazy_holds_the_kth_model_for_n_of_k_steps(schedule):
    """theta <- theta - eta_j (theta - 10 - deployed / 2), with rates that begin anew at each deployment."""
    count = (
        {"1": lambda k: 1, "k": lambda k: k}.get(schedule, lambda k: 3) if isinstance(schedule, str) else lambda k: 3
    )
    theta = deployed = 0.0
    expected, k, j = [0.0], 1, 0
    for _ in range(12):
        if j == count(k):
            deployed, k, j = theta, k + 1, 0
        theta -= 0.5 / (1 + j) * (theta - 10 - 0.5 * deployed)
        j += 1
        expected.append(theta)
    rates = optax.sgd(lambda j: 0.5 / (1 + j))
    found = path(lazy(schedule=schedule, optimiser=rates), 12)
    assert found == pytest.approx(np.array(expected), rel=BUT_FOR_ROUNDING)


@pytest.mark.parametrize("window", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_retraining_on_snapshots_lands_on_their_mean(window):
    """The minimum over the last tau snapshots is the mean of theirs, 10 + theta_i / 2."""
    expected, means = [0.0], []
    for _ in range(6):
        means.append(10 + 0.5 * expected[-1])
        expected.append(np.mean(means[-window:]))
    found = path(profl.rrm(0.5, inner_steps=60, window=window), 6)
    assert found == pytest.approx(np.array(expected), rel=BUT_FOR_ROUNDING)


def test_snapshots_steady_retraining_that_swings():
    """slope -1: retraining swings between 0 and 10 for ever, on two snapshots it ends at the stable point, 5."""
    swings = path(profl.rrm(0.5, inner_steps=60), 20, estimation(slope=-1.0))
    steady = path(profl.rrm(0.5, inner_steps=60, window=2), 20, estimation(slope=-1.0))
    assert set(np.round(swings[-2:])) == {0.0, 10.0}
    assert steady[-1] == pytest.approx(5.0, abs=0.01)


def test_a_minimiser_that_stops_early():
    """Too long a step is cut tenfold; it stops where a step gains no more than asked, not at the minimum."""
    exact = path(profl.rrm(0.5, inner_steps=60), 1)[1]
    fine, coarse = (path(profl.rrm(0.3, until=until), 1)[1] for until in (1e-9, 5.0))
    assert exact == pytest.approx(10.0, rel=BUT_FOR_ROUNDING)
    assert fine == pytest.approx(10.0, abs=1e-3)
    assert 0.5 < 10 - coarse < 9.5
    assert path(profl.rrm(5.0, until=1e-9), 1)[1] == pytest.approx(10.0, abs=1e-2)


def test_losses_alone_where_people_follow():
    """Half the way with each deployment: lambda = 0.75 is nearer to the optimum than lambda = 0, and both come near."""
    case = profl.worlds.slow(profl.cases.pricing(clients=1, goods=1, heterogeneity=0), 0.5)
    ends = {}
    for forgetting in (0.0, 0.75):
        method = dfo_lambda(0.02, 1.0, forgetting, hold=1.0)
        run = profl.simulate(case, method, rounds=400, samples=50, local_steps=1, seeds=range(6), progress=False)
        assert np.all(run.to_optimum[:, -1] < run.to_optimum[:, 0])
        ends[forgetting] = run.to_optimum[:, -1].mean() / run.to_optimum[:, 0].mean()
    assert ends[0.75] < ends[0.0] < 0.8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lazy(schedule="k^4"), "did you mean"),
        (lambda: profl.rrm(window=0), "window must be"),
        (lambda: profl.rrm(until=-1.0), "until must be"),
        (lambda: dfo_lambda(forgetting=1.0), "below 1"),
        (lambda: dfo_lambda(delta=0.0), "delta must be"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "method",
    [
        lazy(0.1, "k"),
        *(pytest.param(m, marks=pytest.mark.slow) for m in (profl.rrm(0.1, inner_steps=5, window=2), dfo_lambda(0.01))),
    ],
    ids=lambda m: m.name,
)
def test_step_by_step_is_the_same_run(method):
    """Three clients, rounds of two steps: compiled, and one step after the other."""
    case = profl.cases.housing(clients=3)
    how = {"rounds": 3, "local_steps": 2, "samples": 20, "seeds": [1], "progress": False}
    whole, stepwise = (profl.simulate(case, method, **how, engine=engine) for engine in ("fast", "debug"))
    np.testing.assert_allclose(whole.theta, stepwise.theta, rtol=1e-4, atol=1e-5)
    assert np.all(np.isfinite(whole.risk))
