"""Data without noise: identical rows, noise of rounding, ties, columns that never vary."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.cases.pricing import Demand
from profl.parts.jacobian.kalman import Kalman
from profl.parts.variance_change import log_variance, no_change

pytestmark = pytest.mark.faults
SDS = (0.0, 1e-6, 1e-4, 1e-2)
FEW = {"rounds": 40, "local_steps": 5, "samples": 100, "seeds": range(3), "progress": False}


@dataclass(frozen=True)
class Quiet(profl.worlds.Reaction):
    """A case whose clients differ in how noisy they are: ``noise`` times what is usual."""

    inner: profl.worlds.Reaction

    def parameters(self, theta, client):
        return self.inner.parameters(theta, client)

    def decoupled(self, deployed, theta, client):
        return self.inner.decoupled(deployed, theta, client)

    def sample(self, key, theta, client, n):
        if isinstance(self.inner, Demand):
            return self.parameters(theta, client) + client["noise"] * profl.random.normal(key, n, theta.shape[0])
        draws = profl.random.normal(key, n, 2)
        x = self.inner.centre + draws[:, :1]
        y = x @ self.parameters(theta, client) + client["noise"] * self.inner.noise * draws[:, 1]
        return {"x": x, "y": y}


def quiet(case, noise):
    """The problem with that noise at each of its three clients, in units of the usual one."""
    reaction = Quiet(case.reaction)
    return profl.Problem(
        name=f"quiet {case.name}",
        loss=case.loss,
        family=case.family,
        reaction=reaction,
        clients={**case.clients, "noise": np.broadcast_to(np.asarray(noise, np.float32), (3,))},
        initial=case.initial,
        project=case.project,
    )


def ends(case, method, noise):
    """(mean tail excess, reports that were refused) of a run."""
    run = profl.simulate(quiet(case, noise), method, **FEW)
    return run.tail_excess().mean(), run.refused[:, -1].sum()


CASES = {
    "pricing": (profl.cases.pricing(clients=3), profl.pofl()),
    "pricing, profl": (profl.cases.pricing(clients=3), profl.profl()),
    "housing": (profl.cases.housing(clients=3), profl.pofl()),
}


@pytest.mark.parametrize(
    "name",
    ["pricing", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pricing, profl", "housing"))],
)
def test_less_noise_ends_no_worse(name):
    """Also where one client of three has none. It was NaN or 14, and nearly every report was refused."""
    case, method = CASES[name]
    usual, _ = ends(case, method, 1.0)
    for noise in list(SDS) + [(sd, 1.0, 1.0) for sd in SDS[:2]]:
        excess, refused = ends(case, method, noise)
        assert refused == 0, noise
        assert excess <= usual, noise


def test_a_filter_in_units_far_smaller_than_its_steps():
    """f is linear, a unit a thousandth of a step: single precision made of that a variance below zero, then NaN."""
    kalman, unit, size = Kalman(), 5e-4, 5
    rng = np.random.default_rng(0)
    path = 4 - 2 * (1 - np.exp(-np.arange(200) / 40))[:, None] * rng.uniform(0.5, 1, size)
    perturbed = (path + 0.1 * unit * rng.choice([-1.0, 1.0], (200, size))).astype(np.float32)
    f = -1.5 * (perturbed - perturbed[0])

    @jax.jit
    def last(signals, models, f):
        def one(state, now):
            signal, at, f = now
            return kalman.predict_and_update(state, signal, f, jnp.full(size, 0.01), at)[0], None

        first = kalman.init_filter(signals[0], f[0])
        return jax.lax.scan(one, first, (signals, models, f))[0].posterior

    there = last((perturbed - perturbed[0]) / unit, ((path - path[0]) / unit).astype(np.float32), f)
    np.testing.assert_allclose(np.asarray(there.slope) / unit, -1.5 * np.eye(size), atol=0.1)
    assert np.linalg.eigvalsh(there.slope_cov)[0] > -1e-6


@pytest.mark.parametrize(
    "rows",
    [[[3.1]] * 8, [[0.0]] * 8, [[0.0], [1.0]] * 4, [[2.0]], [[1e-20], [2e-20]]],
    ids=["identical", "all no", "yes or no, evenly", "one row", "tiny"],
)
def test_a_change_of_variance_is_finite_whatever_the_rows(rows):
    """An infinite one made a client's state not finite, and every report of that client was refused."""
    batch = np.asarray(rows, np.float32)
    case = CASES["pricing"][0]

    @jax.jit
    def change(batch, weights):
        first = no_change(case.functions.view(), batch).measure(jnp.asarray(False), log_variance(batch, weights))
        return first.measure(jnp.asarray(True), log_variance(1.5 * batch, weights)).change

    found = change(batch, np.full(len(batch), 1 / len(batch), np.float32))
    assert np.isfinite(found)
    assert found < 13 or len(set(batch.ravel())) > 1  # rows without variance show no change of it
