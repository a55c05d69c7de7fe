"""Free of units and origin: a shifted or rescaled problem gives the same run, shifted or rescaled."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from profl.parts.exploration import Exploration
from profl.parts.part import Step
from profl.parts.units import StepUnits, Unit, initial_units, measure_units

CASE = profl.cases.pricing(clients=3, goods=3)
SETTINGS = {"rounds": 12, "local_steps": 3, "samples": 100, "seeds": range(2), "progress": False}
UNITS = (1.0, 16.0, 1024.0)


@dataclass(frozen=True)
class Elsewhere:
    """prices = (theta - origin) / unit: what the other functions are asked at."""

    origin: float = 0.0
    unit: tuple[float, ...] = (1.0, 1.0, 1.0)

    def inside(self, theta):
        return (theta - self.origin) / np.asarray(self.unit)

    def outside(self, prices):
        return self.origin + prices * np.asarray(self.unit)


@dataclass(frozen=True)
class Moved(profl.worlds.Reaction):
    inner: profl.worlds.Reaction
    place: Elsewhere

    def parameters(self, theta, client):
        return self.inner.parameters(self.place.inside(theta), client)

    def sample(self, key, theta, client, n):
        return self.inner.sample(key, self.place.inside(theta), client, n)

    def decoupled(self, deployed, theta, client):
        return self.inner.decoupled(self.place.inside(deployed), self.place.inside(theta), client)


def moved(case, place):
    """The same problem with its parameters counted from elsewhere, in other units."""
    return replace(
        case,
        loss=lambda theta, z: case.loss(place.inside(theta), z),
        reaction=Moved(case.reaction, place),
        initial=lambda key: place.outside(case.initial(key)),
        project=lambda theta: place.outside(case.project(place.inside(theta))),
    )


def step(unit):
    """Descent that is the same in every unit: eta unit^2."""
    return optax.chain(optax.stateless(lambda g, _: g * jnp.asarray(unit) ** 2), optax.sgd(0.02))


@functools.cache
def seen_inside(where):
    """The models of a run in the problem's own units, and its regret; in double precision."""
    with jax.enable_x64(True):
        run = profl.simulate(moved(CASE, where), profl.pofl(optimiser=step(where.unit)), **SETTINGS)
        return where.inside(np.asarray(run.theta)), run.deployed_regret


@pytest.mark.parametrize(
    "place",
    [
        Elsewhere(256.0, UNITS),
        pytest.param(Elsewhere(256.0), marks=pytest.mark.slow),
        pytest.param(Elsewhere(unit=UNITS), marks=pytest.mark.slow),
    ],
    ids=["both", "shifted", "rescaled"],
)
def test_the_same_run_elsewhere(place):
    """In double precision: 256 more in front costs eight bits."""
    runs = [seen_inside(where) for where in (Elsewhere(), place)]
    np.testing.assert_allclose(runs[1][0], runs[0][0], atol=1e-5)
    np.testing.assert_allclose(runs[1][1], runs[0][1], atol=1e-5)
    assert np.ptp(runs[0][0][0], axis=0).min() > 0.1  # it went somewhere


@pytest.mark.slow
def test_far_from_zero_exploring_costs_what_it_costs_near_it():
    """Single precision, plain SGD, prices of 100 to 105: it was 130 when the size of a price set that of a step.

    In short it is the test above.
    """
    settings = {**SETTINGS, "rounds": 60, "samples": 500}
    near, far = (profl.simulate(moved(CASE, Elsewhere(o)), profl.pofl(0.03), **settings) for o in (0.0, 100.0))
    assert far.deployed_regret[:, -1].mean() == pytest.approx(near.deployed_regret[:, -1].mean(), rel=0.02)
    assert far.tail_excess().mean() < 0.05


@jax.jit
def measured(*arguments):
    """``measure_units`` for the problem that all of these look at, as one program."""
    return measure_units(CASE.functions.view(), *arguments)


def test_the_first_deployment_is_the_model_itself():
    view, theta = CASE.functions.view(), np.array([2.0, 3.0, 1.0], np.float32)
    batch, weights = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 1.0]], np.float32), np.full(2, 0.5, np.float32)
    explore, flat = Exploration(0.1, fade=0.0), np.zeros((3, 3), np.float32)
    deploy = jax.jit(functools.partial(explore.deploy, view))
    deployed, state = deploy(jax.jit(functools.partial(explore.init, view))(theta, batch), jax.random.key(0), theta)
    np.testing.assert_array_equal(deployed, theta)
    before = jax.jit(initial_units)(theta, theta, theta)
    after = measured(before, theta, batch, weights, np.zeros(3, np.float32), np.array([1.0, 4.0, 0.0], np.float32))

    @jax.jit
    def updated(state, after):
        units = StepUnits(after, jnp.asarray(False), jnp.ones(3))
        step = Step(theta, theta, batch, weights, False, {}, units=units, jacobian=flat, jacobian_error=flat)
        return explore.update(view, state, step, None)[1]

    state = updated(state, after)
    deployed, state = deploy(state, jax.random.key(1), theta)
    deployed = np.asarray(deployed)
    np.testing.assert_allclose(abs(deployed - theta), 0.1 * np.asarray(after.scales), rtol=1e-5)
    np.testing.assert_allclose(after.f.scale, [1.0, 2.0, 2.0])  # of one sample; where none shows, the largest
    opposite, _ = deploy(state, jax.random.key(2), theta)
    np.testing.assert_allclose(opposite + deployed, 2 * theta, rtol=1e-6)


def test_a_jacobian_in_natural_units_and_back():
    """Prices in cents: df/dcent is a hundredth of df/deuro; f in dozens, a twelfth."""
    cents, dozens = Unit(jnp.zeros(2), jnp.array([1.0, 100.0])), Unit(jnp.zeros(1), jnp.array([12.0]))

    @jax.jit
    def there_and_back():
        place = initial_units(jnp.zeros(2), jnp.zeros(2), jnp.zeros(1))._replace(signal=cents, f=dozens)
        jacobian, error = place.to_problem_units(jnp.ones((1, 2)), jnp.ones((1, 2)))
        return jacobian, error, place.to_natural_units(jacobian, error)

    jacobian, error, back = jax.tree.map(np.asarray, there_and_back())
    np.testing.assert_allclose(jacobian, [[12.0, 0.12]], rtol=1e-6)
    np.testing.assert_allclose(error, jacobian**2, rtol=1e-6)
    np.testing.assert_allclose(back, np.ones((2, 1, 2)), rtol=1e-6)


def test_a_scale_that_was_far_too_large_is_taken_anew():
    """Loss -theta.z: demand for the third good hardly varies in the first batch, and ten times as much as the others in
    the second.

    Its price is zero, so that it adds nothing to the spread of the loss, and the other scales stay.
    """
    theta, weights = np.array([2.0, 3.0, 0.0], np.float32), np.full(4, 0.25, np.float32)
    around = np.array([[1.0, 1.0, 0.01], [-1.0, 1.0, -0.01], [1.0, -1.0, 0.01], [-1.0, -1.0, -0.01]])
    unknown = jax.jit(initial_units)(theta, theta, theta)

    def measured_with(old, size):
        batch = (around * [1.0, 1.0, size]).astype(np.float32)
        new = measured(old, theta, batch, weights, np.zeros(3, np.float32), np.ones(3, np.float32))
        return jax.tree.map(np.asarray, new)

    first, later = measured_with(unknown, 1.0), measured_with(unknown, 1000.0)
    again = measured_with(first, 1000.0)
    assert later.scales[2] < first.scales[2] / 4
    np.testing.assert_array_equal(again.scales, [*first.scales[:2], later.scales[2]])
    np.testing.assert_allclose(again.signal.scale, again.scales, rtol=1e-6)
    for one, size, other in ((first, 1.0, first), (unknown, 1000.0, later)):
        same = measured_with(one, size)
        np.testing.assert_array_equal(same.scales, other.scales)
        np.testing.assert_array_equal(same.signal.scale, other.signal.scale)
