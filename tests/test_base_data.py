"""Cases whose base data differ between clients, and housing with several features: closed forms and samples."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import profl
from profl import trees
from profl.cases.common import base_data

SPREAD = 0.2
BASE = {  # the base data of a client, and what they are without a spread
    "pricing": {"mu0": None},
    "group_pricing": {"mu": [[7.0, 1.0], [1.0, 2.0]]},
    "unified_pricing": {"mu": [[7.0, 1.0], [1.0, 2.0]]},
    "strategic": {"mean": [[-1.0, -1.0], [1.0, 1.0]]},
    "housing": {"a": [5 / 3], "centre": [5 / 3]},
    "retail": {"centre": [5 / 3, 1.0], "slope": [6.0, -2.0]},
}


def spread(name, clients=3, **changes):
    return profl.cases.get(name)(clients=clients, base_spread=SPREAD, **changes)


@pytest.mark.parametrize("name", BASE)
def test_every_number_of_every_client_has_its_own_factor(name):
    many = spread(name, clients=2000).clients
    for key, value in BASE[name].items():
        same = profl.cases.get(name)(clients=1).clients[key][0] if value is None else np.array(value)
        factor = many[key].reshape(2000, -1) / np.ravel(same)
        assert 1 - SPREAD <= factor.min() < 1 - 0.95 * SPREAD
        assert 1 + 0.95 * SPREAD < factor.max() <= 1 + SPREAD
        # independent and uniform: means and correlations of 2000 draws, up to five standard errors
        assert np.abs(factor.mean(0) - 1).max() < 5 * SPREAD / np.sqrt(3 * 2000)
        together = np.corrcoef(np.column_stack([factor, many["gamma"]]).T) - np.eye(factor.shape[1] + 1)
        assert np.abs(together).max() < 5 / np.sqrt(2000)
    assert all(
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (many, spread(name, 2000).clients)), strict=True)
    )
    other = spread(name, 2000, seed=1).clients
    assert not any(np.array_equal(many[key] * 1, other[key]) for key in BASE[name])


def test_no_spread_is_no_difference():
    np.testing.assert_array_equal(base_data([[1.0, -2.0]], 0.0, 3, seed=0), np.tile([[1.0, -2.0]], (3, 1, 1)))
    assert set(profl.cases.housing(3).clients) == {"a", "gamma"}  # as it was: the same programs
    assert set(profl.cases.strategic(3).clients) == {"gamma"}


@pytest.mark.parametrize("value", [-0.1, 1.0, "x", float("nan")])
def test_what_is_no_share_is_refused(value):
    with pytest.raises(profl.InputError, match="base_spread must"):
        profl.cases.housing(base_spread=value)


def exact_points(name, case):
    """(PO, PS) of cases that are linear, from the clients alone."""
    alpha, gamma = np.asarray(case.weights), case.clients["gamma"]
    if name == "pricing":
        mu0 = alpha @ case.clients["mu0"]
        return mu0 / (2 * alpha @ gamma), mu0 / (alpha @ gamma)
    a, mu = case.clients["a"], case.clients["centre"]
    second = np.eye(a.shape[1]) + mu[:, :, None] * mu[:, None, :]
    right, ridge = np.einsum("nij,nj->ni", second, a), 10 / 3 * np.eye(a.shape[1])
    return [
        np.linalg.solve(
            np.tensordot(alpha * (1 + gamma) ** k, second, 1) + ridge, (alpha * (1 + gamma) ** (k - 1)) @ right
        )
        for k in (2, 1)
    ]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("pricing", {"goods": 2}),
        ("housing", {}),
        ("housing", {"features": 3}),  # the bounds stand off: 1 + gamma is small
    ],
)
def test_the_points_of_linear_cases_solve_their_equations(name, changes):
    weights = [0.2, 0.3, 0.5]
    inside = {"sensitivity": -1.2, "heterogeneity": 0.3} if name == "housing" else {}
    case = spread(name, weights=weights, **changes, **inside)
    optimum, stable = exact_points(name, case)
    assert np.all(np.asarray(case.project(stable)) == np.asarray(stable, np.float32)) or name == "pricing"
    np.testing.assert_allclose(case.optimum, optimum, atol=1e-5)
    np.testing.assert_allclose(case.stable, np.clip(stable, *((0, 5) if name == "pricing" else (-10, 10))), atol=1e-5)


def test_features_leave_each_entry_of_the_points_as_it_was():
    one, three = profl.cases.housing(heterogeneity=0), profl.cases.housing(heterogeneity=0, features=3)
    np.testing.assert_allclose(three.optimum, np.repeat(one.optimum, 3), atol=1e-5)
    np.testing.assert_allclose(three.stable, np.repeat(one.stable, 3), atol=1e-4)
    noise = 0.5 * (61 / 30) ** 2
    assert three.risk(three.optimum) - noise == pytest.approx(3 * (one.risk(one.optimum) - noise), rel=1e-6)


CASES = {name: (lambda name=name: spread(name)) for name in BASE} | {"features": lambda: spread("housing", features=3)}


@pytest.mark.parametrize("name", CASES)
def test_what_is_sampled_is_what_is_stated(name):
    """Risk and f of client 2 from 100,000 samples at one model on the data of another, up to five standard errors."""
    case, n = CASES[name](), 100_000
    deployed, theta = case.initial_models([3, 4])
    client = trees.take(trees.cast(case.clients), 2)

    @jax.jit
    def draw(key, deployed, theta, client):
        batch, weights = case.reaction.sample(key, deployed, client, n), np.full(n, 1 / n, np.float32)
        f = case.family.estimate(batch, weights)
        losses = jax.vmap(case.loss, (None, 0))(theta, batch)
        stated = case.reaction.parameters(deployed, client), case.reaction.decoupled(deployed, theta, client)
        return losses, f, case.family.variance(batch, weights, f), stated

    losses, f, variance, (exact_f, exact_risk) = draw(jax.random.key(0), deployed, theta, client)
    losses = np.asarray(losses, float)
    assert abs(losses.mean() - exact_risk) < 5 * losses.std() / np.sqrt(n)
    assert losses.std() / np.sqrt(n) < 0.01 * (1 + abs(exact_risk))  # or the line above could not fail
    assert np.max(np.abs(f - exact_f) / np.sqrt(variance)) < 5
