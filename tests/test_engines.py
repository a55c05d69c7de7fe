"""One behaviour in every engine: the same keys, the same trajectory, and compiled code that is found again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from tests.problems import ALGORITHMS, CASES, QUICK, unmeasured

SMALL = {"rounds": 5, "local_steps": 2, "samples": 40, "seeds": [0, 3], "progress": False}
PLAIN = profl.pofl(jacobian=QUICK)


ROBUST_CASES = ("pricing", "group_pricing", "strategic", "strategic, positive")  # of every kind of family
PAIRS = [
    (a, c) for a in ALGORITHMS for c in CASES if not a.startswith("profl") or c in ROBUST_CASES or c == "strategic"
]


SHORT = [("pofl", "group_pricing"), ("pg, least squares", "housing")]  # test_push: adaptive sizes


def short(algorithm, case):
    """What the default run does of the table. Both engines call one step; that they do is what is left to see."""
    return (algorithm, case) in SHORT


def slow_unless_short(pairs):
    return [pytest.param(*row, marks=[] if short(row[0], row[1]) else pytest.mark.slow) for row in pairs]


@pytest.mark.parametrize(("algorithm", "case"), slow_unless_short(PAIRS))
def test_simulate_and_debug_agree(case, algorithm):
    """Every algorithm on every case, in double precision.

    In single precision a Jacobian from nearly collinear models (H = 4 < d = 5, or one pooled trajectory) turns the last
    bit of f_hat, in which the two engines differ, into 1e-3 of theta; the next test has the methods that do not.
    """
    problem, method = CASES[case](clients=3), ALGORITHMS[algorithm]
    with jax.enable_x64(True):
        fast = profl.simulate(problem, method, **SMALL)
        slow = profl.simulate(problem, method, engine="debug", **SMALL)
    np.testing.assert_allclose(fast.theta, slow.theta, atol=1e-9)
    np.testing.assert_allclose(fast.deployed_regret[:, 1:], slow.deployed_regret[:, 1:], atol=1e-9)
    assert np.any(np.abs(np.diff(fast.theta, axis=1)) > 1e-4)  # it moved
    assert np.all(np.isfinite(fast.excess))
    assert np.all(fast.excess > -1e-6)  # nothing beats the optimum


@dataclass(frozen=True)
class Growing:
    """A filter with a memory that is quick to compile: each batch it drops what lies further out than it ever saw."""

    first_order = True

    @partial(jax.jit, static_argnums=0)
    def __call__(self, seen, weights):
        return self.step(seen, weights, self.start(seen.shape[1]))[0]

    def start(self, size):
        return jnp.zeros(size)

    def step(self, seen, weights, memory, vetted=None):
        middle = weights @ seen
        reach = jnp.maximum(memory, 2 * jnp.sqrt(weights @ (seen - middle) ** 2))
        return jnp.where(jnp.all(jnp.abs(seen - middle) <= reach, axis=1), weights, 0.0), reach


def test_they_agree_on_what_a_filter_remembers():
    """The short form of ``profl``'s row above; ``test_speed`` has the robust filter's search, mapped and one by one."""
    problem, method = unmeasured(CASES["pricing"](clients=3)), profl.profl(filter=Growing(), jacobian=QUICK)
    with jax.enable_x64(True):
        fast, slow = (profl.simulate(problem, method, engine=engine, **SMALL) for engine in ("fast", "debug"))
    np.testing.assert_allclose(fast.theta, slow.theta, atol=1e-9)
    np.testing.assert_allclose(fast.dropped, slow.dropped, atol=1e-9)
    assert np.all(fast.dropped > 0)


SINGLE = [(a, c, t) for a, t in [("pfl", 1e-5), ("pofl, exact", 1e-5), ("pofl", 1e-4)] for c in CASES]
SHORT_SINGLE = []  # in short it is the test below


@pytest.mark.parametrize(
    ("algorithm", "case", "tolerance"),
    [pytest.param(*row, marks=[] if row[:2] in SHORT_SINGLE else pytest.mark.slow) for row in SINGLE],
)
def test_they_agree_in_single_precision(case, algorithm, tolerance):
    problem, method = CASES[case](clients=3), ALGORITHMS[algorithm]
    fast = profl.simulate(problem, method, **SMALL)
    slow = profl.simulate(problem, method, engine="debug", **SMALL)
    np.testing.assert_allclose(fast.theta, slow.theta, atol=tolerance)


@pytest.mark.parametrize("scheme", [pytest.param("uniform", marks=pytest.mark.slow), "weighted"])  # test_loop: uniform
def test_engines_agree_under_partial_participation_unequal_weights_and_counts(scheme):
    problem = profl.cases.pricing(clients=4, goods=2, weights=[0.1, 0.2, 0.3, 0.4])
    settings = {**SMALL, "samples": [20, 30, 40, 50], "participation": 0.5, "scheme": scheme, "record_every": 2}
    fast = profl.simulate(problem, profl.pofl(window=3, jacobian=QUICK), **settings)
    slow = profl.simulate(problem, profl.pofl(window=3, jacobian=QUICK), engine="debug", **settings)
    np.testing.assert_allclose(fast.theta, slow.theta, atol=1e-5)
    np.testing.assert_allclose(fast.deployed_regret[:, 1:], slow.deployed_regret[:, 1:], atol=1e-5)
    for name in ("deployments", "samples", "bytes_up", "bytes_down", "rounds"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
    assert fast.rounds.tolist() == [0, 2, 4, 5]


def test_same_seed_same_bits_and_other_seeds_differ():
    problem = profl.cases.pricing(clients=3)
    first, again = (profl.simulate(problem, PLAIN, **SMALL) for _ in range(2))
    np.testing.assert_array_equal(first.theta, again.theta)
    alone = profl.simulate(problem, PLAIN, **{**SMALL, "seeds": [3]})
    np.testing.assert_allclose(alone.theta[0], first.theta[1], atol=1e-6)
    assert np.max(np.abs(first.theta[0] - first.theta[1])) > 1e-3


@pytest.mark.parametrize(
    "clients", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)]
)
def test_chunks_change_nothing(clients, monkeypatch):
    """One client at a time; three clients; all clients but one seed at a time."""
    problem = unmeasured(profl.cases.pricing(clients=7, goods=2))
    whole = profl.simulate(problem, profl.pofl(window=3, jacobian=QUICK), **SMALL)
    monkeypatch.setattr("profl.run.compiled.placement.BLOCK", 40 * 2 * clients)
    parts = profl.simulate(problem, profl.pofl(window=3, jacobian=QUICK), **SMALL)
    np.testing.assert_allclose(parts.theta, whole.theta, atol=2e-6)


def test_record_every_only_thins_the_records():
    problem = profl.cases.pricing(clients=3)
    every = profl.simulate(problem, PLAIN, **SMALL)
    second = profl.simulate(problem, PLAIN, **SMALL, record_every=2)
    assert second.rounds.tolist() == [0, 2, 4, 5]
    np.testing.assert_allclose(second.theta, every.theta[:, [0, 2, 4, 5]], atol=1e-6)
    np.testing.assert_array_equal(second.samples, every.samples[:, [0, 2, 4, 5]])
    np.testing.assert_allclose(second.deployed_regret[:, 1:], every.deployed_regret[:, [2, 4, 5]], rtol=1e-5)


@pytest.fixture
def compiled():
    """The names of what has been compiled since."""
    names: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: names.append(name) if name.endswith("backend_compile_duration") else None
    )
    yield names
    jax.jit(lambda x: x + 1)(0)
    assert names  # or the listener does not listen


def test_a_second_run_of_the_same_shapes_compiles_nothing(compiled):
    profl.simulate(profl.cases.pricing(clients=3), PLAIN, **SMALL)
    compiled.clear()
    # Another problem object with other numbers, another algorithm object, other seeds: the same shapes.
    profl.simulate(profl.cases.pricing(clients=3, seed=1), PLAIN, **{**SMALL, "seeds": [5, 6]})
    assert compiled == []


def test_nor_does_a_longer_run_with_other_records(compiled):
    problem = profl.cases.pricing(clients=3)
    short = profl.simulate(problem, PLAIN, **SMALL)
    compiled.clear()
    longer = profl.simulate(problem, PLAIN, **{**SMALL, "rounds": 7, "record_every": 3})
    assert compiled == []
    assert longer.rounds.tolist() == [0, 3, 6, 7]
    np.testing.assert_array_equal(longer.theta[:, 1], short.theta[:, 3])


def test_a_large_step_goes_wrong_at_a_named_place():
    """A loss that turns NaN for client 1 once theta passes 1.5."""
    problem = fragile()
    with pytest.raises(profl.DivergedError, match=r"seed 0, round 3, client 1, stage 'sample'"):
        profl.simulate(problem, profl.pfl(0.25), engine="debug", rounds=8, local_steps=1, samples=8, seeds=[0])


def test_nan_from_one_client_is_refused_counted_and_reported():
    run = profl.simulate(fragile(), profl.pfl(0.25), rounds=8, local_steps=1, samples=8, seeds=[0], progress=False)
    assert np.all(np.isfinite(run.theta))
    assert run.first_refused == ((3, 1),)
    assert run.refused[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert not run.diverged.any()
    assert "round 3, client 1" in run.failures()[0]


def test_a_run_without_any_usable_report_is_left_out_of_the_averages():
    problem = fragile()
    broken = replace(problem, clients={"breaks": np.array([1.0, 1.0])})
    run = profl.simulate(broken, profl.pfl(0.25), rounds=8, local_steps=1, samples=8, seeds=[0, 1], progress=False)
    assert run.diverged.tolist() == [True, True]
    assert "diverged" in run.failures()[0]
    assert run.to_dict()["tail_excess"]["mean"] is None
    assert "diverged" in run.summary()


def fragile() -> profl.Problem:
    """theta climbs by 0.25 a round from 1; the second client's data are NaN above 1.4."""

    def sample(key, theta, client, n):
        broken = (client["breaks"] > 0) & (theta[0] > 1.4)
        return jnp.where(broken, jnp.nan, jnp.ones((n, 1))) + 0 * random.normal(key, n, 1)

    return profl.Problem(
        "fragile",
        lambda theta, z: -jnp.sum(theta * z),
        profl.GaussianMean(),
        sample,
        clients={"breaks": np.array([0.0, 1.0])},
        initial=lambda key: jnp.ones(1),
    )


def test_a_model_can_be_any_pytree_and_the_data_can_react_to_a_signal():
    """theta = {"price": {"a", "b"}, "unused"}; only the sum of the two prices moves demand."""

    def signal(theta):
        return (theta["price"]["a"] + theta["price"]["b"])[None]

    def sample(key, theta, client, n):
        return 6.0 - client["gamma"] * signal(theta) + random.normal(key, n, 1)

    problem = profl.Problem(
        "two part tariff",
        lambda theta, z: -jnp.sum(signal(theta) * z) + 0.5 * theta["unused"] ** 2,
        profl.GaussianMean(),
        sample,
        clients={"gamma": np.array([1.0, 2.0])},
        initial=lambda key: {"price": {"a": jnp.array(0.5), "b": jnp.array(1.0)}, "unused": jnp.array(1.0)},
        signal=signal,
    ).solve(2000)
    run = profl.simulate(
        problem, profl.pofl(0.02, window=10, jacobian=QUICK), rounds=150, samples=200, seeds=[0, 1], progress=False
    )
    end = jax.tree.map(lambda leaf: leaf[:, -1], run.theta)
    np.testing.assert_allclose(end["price"]["a"] + end["price"]["b"], 2.0, atol=0.1)  # 6 / (2 * 1.5)
    np.testing.assert_allclose(end["unused"], 0.0, atol=1e-3)
    assert run.excess[:, -1].max() < 0.02


@pytest.mark.parametrize("name", ["adam", pytest.param("chain", marks=pytest.mark.slow)])
def test_any_optax_optimiser_fits(name):
    import optax

    problem = profl.cases.housing(clients=2, heterogeneity=0)
    optimiser = optax.adam if name == "adam" else optax.chain(optax.clip(1.0), optax.sgd(0.05))
    run = profl.simulate(
        problem, profl.pofl(0.05, optimiser=optimiser, jacobian=QUICK), rounds=150, seeds=[0, 1], progress=False
    )
    assert run.tail_excess().max() < 0.1
