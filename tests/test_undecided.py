"""A run says where a group of samples lies apart that is too large for the robust filter to decide on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import parts
from profl.campaign.fold import Fold
from profl.parts.filters import RobustFilter
from profl.run.live.client_round import make_setup
from profl.run.plan import make_plan
from profl.run.undecided import group_apart, may_be_two, robust_filter

METHOD = profl.chain(parts.TrustedSamples(), parts.PlainGradient(), parts.Optimiser(0.01), name="filtered")
SHARES = [0.0, 0.2, 0.4]
CASE = profl.worlds.contaminate(profl.cases.pricing(clients=3, goods=2), SHARES, "blob", distance=15)
SETTINGS = {"rounds": 3, "local_steps": 1, "samples": 300, "progress": False}
WORDS = ("of the samples lie apart: sample[", "RobustFilter(reference=...)", "at_most=", "group_of", "33%")


def test_a_simulation_tells_of_it():
    """Client 2: clients 0 and 1 have no junk, and no more than is dropped."""
    run = profl.simulate(CASE, METHOD, seeds=2, **SETTINGS)
    (note,) = run.notes
    assert note.startswith("WARNING: of client 2, ")
    assert 0.33 < float(note.split("%")[0].split()[-1]) / 100 < 0.47
    assert all(word in note for word in WORDS)
    assert note in run.summary()
    np.testing.assert_allclose(run.dropped.mean(0), [0, 0.2, 0], atol=0.05)


def test_a_live_run_has_an_incident_and_only_one():
    heard = []
    clients = profl.worlds.simulated_clients(CASE, METHOD, samples=300)
    run = profl.train(CASE, METHOD, clients, report=heard.append, **SETTINGS)
    ((round_, client, what),) = run.incidents
    assert (round_, client) == (1, 2)
    assert all(word in what for word in WORDS)
    assert heard == [f"round 1, client 2: {what}"]


def test_with_privacy_nobody_looks():
    plan = make_plan(CASE, METHOD, profl.RunConfig(rounds=1, seeds=[0]))
    for privacy, expected in ((None, RobustFilter()), (parts.Privacy(1.0), None)):
        assert Fold(make_setup(plan, privacy)).filter == expected


def test_only_the_robust_filter_is_asked_about():
    limit = RobustFilter(at_most=0.2)
    assert robust_filter(profl.profl(filter=limit)) == limit
    assert robust_filter(profl.profl(filter="paper")) is None
    assert robust_filter(profl.pfl()) is None


def test_what_is_in_the_reference_is_no_question():
    """A vetted sample that holds both kinds, or only one: then the other may still be much to drop."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(2, 300, 2)) + 15 * (np.arange(300) < 120)[:, None]
    batch, theta = jnp.asarray(kinds[0], jnp.float32), jnp.ones(2)
    assert group_apart(CASE.functions, RobustFilter(), theta, batch).startswith("40% of the samples lie apart")
    assert group_apart(CASE.functions, RobustFilter(reference=kinds[1]), theta, batch) == ""


DRAWS = {
    "normal": lambda rng, shape: rng.normal(5, 1, shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "lognormal": lambda rng, shape: rng.lognormal(sigma=1.0, size=shape),
    "uniform": lambda rng, shape: rng.uniform(size=shape),
    "counts": lambda rng, shape: rng.poisson(2.0, shape) * 1.0,
    "four in ten are zero": lambda rng, shape: rng.normal(9, 1, shape) * (rng.uniform(size=shape) > 0.4),
    "constant": lambda rng, shape: np.full(shape, 3.0),
    "not finite": lambda rng, shape: np.full(shape, np.nan),
}


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shape", [(0, 2), (1, 1), (50, 1), (500, 5)])
def test_one_group_needs_no_search(draw, shape):
    """So a clean run compiles no filter for it."""
    assert not may_be_two(DRAWS[draw](np.random.default_rng(0), shape), 1 / 3)
