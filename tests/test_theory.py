"""The convergence bound: closed forms of its constants, its trends, and that it holds where it can be checked."""

from __future__ import annotations

import math

import numpy as np
import pytest

import profl
from profl import theory

CALL = {"eta": 0.01, "H": 20, "n": 500, "R": 5, "T": 1000}


@pytest.fixture(scope="module")
def found():
    """Constants of pricing with two goods, where each is known."""
    case = profl.cases.pricing(clients=3, goods=2)
    method = profl.pofl(0.01, jacobian="exact", explore=None)
    run = profl.simulate(case, method, rounds=60, local_steps=1, samples=100, seeds=[0], progress=False)
    return case, run, theory.estimate(case, run)


def test_constants_of_pricing(found):
    """f = mu0 - gamma theta, so J = -gamma I, M = 0 and samples move by gamma |move|; grad l = -z, so L = 1."""
    case, run, c = found
    gamma = np.asarray(case.clients["gamma"])
    assert pytest.approx(gamma.max(), rel=1e-5) == c.F
    assert c.M == 0
    assert pytest.approx(1, rel=1e-3) == c.L
    np.testing.assert_allclose(c.gamma, gamma, rtol=1e-3)
    assert c.noise == pytest.approx(math.log(40), rel=0.5)  # variance 1, the largest of 36 estimates
    assert c.rho == pytest.approx(2 * gamma.mean(), rel=1e-3)  # L is quadratic with curvature 2 gamma-bar
    assert c.start == pytest.approx(run.excess[0, 0], rel=1e-4)
    assert c.d == 2


def test_the_bound_holds_and_keeps_the_division(found):
    """It lies above what was measured; what the paper prints is smaller by rho eta in its second part."""
    _, run, c = found
    proved, printed = theory.bound(c, **CALL), theory.bound(c, **CALL, paper=True)
    assert run.excess[0, -1] < printed < proved
    gone = (1 - c.rho * 0.01) ** 1000
    assert (printed - gone * c.start) / (proved - gone * c.start) == pytest.approx(c.rho * 0.01 / (1 - gone), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "grows"),
    [({"n": 5000}, False), ({"H": 40}, True), ({"R": 10}, True), ({"eps": 0.2, "distance": 10.0}, True)],
)
def test_trends(found, change, grows):
    c = found[2]
    assert (theory.bound(c, **{**CALL, **change}) > theory.bound(c, **CALL)) == grows


def test_the_first_part_decays_at_the_proved_rate(found):
    c = found[2]
    start = theory.bound(c, **{**CALL, "T": 0})
    assert start == pytest.approx(c.start)


def test_no_bound_for_a_rate_that_is_too_large(found):
    c = found[2]
    assert theory.bound(c, **{**CALL, "eta": 1.0}) == math.inf
    with pytest.raises(profl.InputError, match="eta must be"):
        theory.bound(c, **{**CALL, "eta": 0.0})
