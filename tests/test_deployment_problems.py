"""The problems of the benchmark ``deployments``: what they state exactly is so, also when it is told in other units."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import profl
from benchmarks.deployments import problems as made
from benchmarks.deployments.units import Units, rescaled, shifted
from profl import trees

OWN = {
    "asymmetric 0": made.asymmetric,
    "asymmetric 1": lambda: made.asymmetric(1),
    "crossed": lambda: made.crossed_pricing(goods=6),
    "small shifts": made.logistic_small,
    "no reaction": made.no_reaction,
    "shifted": lambda: shifted(profl.cases.pricing(), 100.0),
    "mixed units": lambda: rescaled(profl.cases.pricing(goods=4), (1.0, 8.0, 128.0, 1024.0)),
}


@pytest.mark.parametrize("name", OWN)
def test_the_stated_gradient_is_that_of_the_stated_risk_and_vanishes_at_the_optimum(name):
    problem = OWN[name]()
    theta = problem.initial_models([3])[0].astype(float)
    sizes = 1e-3 * np.maximum(np.abs(np.asarray(problem.stable)), 0.1)
    measured = [(problem.risk(theta + e) - problem.risk(theta - e)) / (2 * e.sum()) for e in np.diag(sizes)]
    np.testing.assert_allclose(problem.gradient(theta), measured, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(problem.gradient(problem.optimum) * sizes, 0, atol=1e-7)
    assert problem.risk(problem.optimum) <= min(problem.risk(problem.stable), problem.risk(theta))


@pytest.mark.parametrize("name", OWN)
def test_what_is_sampled_is_what_is_stated(name):
    """The mean loss of 200,000 samples is the stated risk of the first client, up to five standard errors."""
    problem = OWN[name]()
    theta = problem.initial_models([3])[0]

    @jax.jit
    def drawn(key, client):
        return jax.vmap(problem.loss, (None, 0))(theta, problem.reaction.sample(key, theta, client, 200_000))

    losses = np.asarray(drawn(jax.random.key(0), trees.take(problem.clients, 0)), float)
    off = losses.mean() - problem.client_risks(theta)[0]
    assert abs(off) < 5 * losses.std() / np.sqrt(losses.size)


def test_retraining_ends_a_thousandth_above_the_optimum_where_shifts_are_small_and_at_it_where_there_are_none():
    small, none = made.logistic_small(), made.no_reaction()
    assert small.risk(small.stable) - small.risk(small.optimum) == pytest.approx(0.001, rel=0.2)
    assert none.risk(none.stable) - none.risk(none.optimum) == pytest.approx(0, abs=1e-9)


def test_matrices_are_far_from_symmetric_and_pushes_keep_the_risk_convex():
    for seed in range(3):
        a = made.asymmetric(seed).clients["a"]
        mean = a.mean(0)
        assert np.linalg.norm(mean - mean.T) > 0.5 * np.linalg.norm(mean + mean.T)
        assert np.all(np.linalg.norm(a, 2, axis=(1, 2)) < 2)  # retraining, theta <- f(theta) / (1 + RIDGE), contracts
    slope = made.crossed_pricing().jacobian(np.ones(made.GOODS))[0]
    assert np.linalg.eigvalsh(slope + slope.T).max() < 0


@pytest.mark.parametrize("units", [Units(offset=100.0), Units(factor=(1.0, 8.0, 128.0))])
def test_in_other_units_a_problem_is_the_same(units):
    inside = profl.cases.pricing(clients=3, goods=3)
    moved = shifted(inside, units.offset) if units.offset else rescaled(inside, units.factor)
    for theta, start in zip(inside.initial_models(range(3)), moved.initial_models(range(3)), strict=True):
        there = theta.astype(float) * units.factor + units.offset
        np.testing.assert_allclose(start, there, rtol=1e-6)
        assert moved.risk(there) == pytest.approx(inside.risk(theta), rel=1e-9)
        np.testing.assert_allclose(moved.gradient(there) * units.factor, inside.gradient(theta), rtol=1e-6)
    for point in ("optimum", "stable"):
        expected = getattr(inside, point) * units.factor + units.offset
        np.testing.assert_allclose(getattr(moved, point), expected, rtol=1e-6)
    edges = np.array([-1.0, 2.0, 9.0])
    np.testing.assert_allclose(
        moved.project(edges * units.factor + units.offset), [0, 2, 5] * np.array(units.factor) + units.offset
    )
