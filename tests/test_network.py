"""Neural networks: the case, what a large model costs, and signals that are too large."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.parts.units import LARGEST_BY_PARAMETER, array_scales, is_large, theta_scales
from profl.problem.families import GaussianMean
from tests.problems import unmeasured

CASE = profl.cases.network()


def wide(width, signal=None):
    """A regression by a network of 3 width + 1 parameters, or of as many more as ``width`` squared."""

    @jax.jit
    def initial(key):
        parts = {"a": (2, width), "b": (width, width), "c": (width,)}
        keys = jax.random.split(key, 3)
        return {name: jax.random.normal(k, shape) / 2 for k, (name, shape) in zip(keys, parts.items(), strict=True)}

    def out(theta, x):
        return jnp.tanh(jnp.tanh(x @ theta["a"]) @ theta["b"] / width**0.5) @ theta["c"] / width**0.5

    def sample(key, theta, client, n):
        return client["gamma"] * out(theta, jnp.ones(2)) + random.normal(key, n, 2)

    more = {} if signal is None else {"signal": lambda theta: out(theta, jnp.eye(2))}
    loss = lambda theta, z: (out(theta, z) - z[0] * z[1]) ** 2  # noqa: E731
    clients = {"gamma": np.ones(2)}
    return profl.Problem("wide", loss, GaussianMean(), sample, clients=clients, initial=initial, **more)


def test_the_gradient_is_that_of_finite_differences():
    """Central differences of the risk along five directions."""
    theta = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), CASE.initial(random.seed_key(3)))
    slope, step = CASE.gradient(theta), 1e-5
    for seed in range(5):
        draw = np.random.default_rng(seed)
        way = jax.tree.map(lambda leaf, draw=draw: draw.normal(size=leaf.shape), theta)
        ends = [jax.tree.map(lambda t, w, side=side: t + side * step * w, theta, way) for side in (1, -1)]
        found = (CASE.risk(ends[0]) - CASE.risk(ends[1])) / (2 * step)
        stated = sum(np.sum(g * w) for g, w in zip(jax.tree.leaves(slope), jax.tree.leaves(way), strict=True))
        np.testing.assert_allclose(stated, found, rtol=1e-6)


def test_pofl_ends_below_pfl():
    """On seeds 0-2, in view when the constants were chosen; on 10-19, which were not, it does on nine of ten."""
    problem, ends = unmeasured(CASE), {}
    for method in (profl.pfl(0.3), profl.pofl(0.3)):
        run = profl.simulate(problem, method, rounds=60, local_steps=5, samples=500, seeds=range(3), record_every=60)
        ends[method.name] = CASE.risks(jax.tree.map(lambda leaf: leaf[:, -1], run.theta))
    assert np.all(ends["pofl"] < ends["pfl"]), ends


@pytest.mark.parametrize(
    "case", [profl.cases.network(2, groups=1, hidden=1), pytest.param(CASE, marks=pytest.mark.slow)]
)
def test_both_known_points_are_stationary(case):
    """The performative gradient at the optimum and that of retraining at the stable point; and each only there."""
    sizes = {
        (point, field): max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(getattr(case, field)(theta)))
        for point, theta in (("optimum", case.optimum), ("stable", case.stable))
        for field in ("gradient", "stable_gradient")
    }
    assert sizes["optimum", "gradient"] < 1e-6
    assert sizes["stable", "stable_gradient"] < 1e-6
    assert sizes["optimum", "stable_gradient"] > 1e-3
    assert sizes["stable", "gradient"] > 1e-3
    assert case.risk(case.optimum) < case.risk(case.stable) - (0.01 if case is CASE else 0)


def measured(width, function, n=64):
    problem = wide(width, signal="few")
    theta = problem.initial(random.seed_key(0))
    sample = jax.jit(problem.reaction.sample, static_argnums=3)
    batch = sample(random.seed_key(1), theta, {"gamma": np.ones((), np.float32)}, n)
    code = jax.jit(lambda t, b: function(problem.functions.view(), t, b, jnp.full(n, 1 / n)))
    return theta, batch, code


def test_scales_by_the_array_are_those_by_the_parameter():
    """The root mean square of 1 / scale over an array, to 40 %: four probes."""
    theta, batch, by_array = measured(64, array_scales)
    assert sum(leaf.size for leaf in jax.tree.leaves(theta)) < LARGEST_BY_PARAMETER
    one = measured(64, theta_scales)[2](theta, batch)
    ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(theta)])[:-1]
    expected = [np.mean(np.asarray(part) ** -2.0) ** -0.5 for part in np.split(np.asarray(one), ends)]
    np.testing.assert_allclose(by_array(theta, batch), expected, rtol=0.4)


def test_no_gradient_of_a_single_sample_is_kept_of_a_large_model():
    theta, batch, code = measured(256, theta_scales)
    size = sum(leaf.size for leaf in jax.tree.leaves(theta))
    assert is_large(theta)
    assert code.lower(theta, batch).compile().memory_analysis().temp_size_in_bytes < 8 * 4 * size  # 64 samples


def test_a_large_model_is_trained():
    run = profl.simulate(wide(130, signal="few"), profl.pofl(0.01), rounds=3, samples=20, seeds=[0])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(run.theta))


def test_a_signal_that_is_too_large_is_refused_before_any_work():
    problem = wide(64)  # reacts to all its parameters
    with pytest.raises(profl.checks.InputError, match="give Problem a signal of a few numbers"):
        profl.simulate(problem, profl.pofl(), rounds=1, samples=10, seeds=[0])
    profl.pofl().check(wide(64, signal="few"))
    profl.pfl().check(problem)
