"""People who react slowly or in turn, and a world that moves by itself: exact answers, equal engines, what is found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import trees
from profl.parts.jacobian.kalman import Kalman
from profl.parts.jacobian.tracking import Tracking
from tests.problems import QUICK, spreading, unmeasured

CASE = profl.cases.pricing(clients=3, goods=2)
START = np.array([1.0, 3.0], np.float32)
SHORT = {"rounds": 6, "local_steps": 2, "samples": 50, "progress": False}


def client(problem, number=0):
    return jax.device_put(trees.take(problem.clients, number))


def moved(problem, deployments, start=START):
    """The state of a client's people after these models."""
    reaction, own = problem.reaction, client(problem)
    state = BEGIN(reaction, start, own)
    for number, theta in enumerate(deployments):
        state = MOVE(reaction, state, np.int32(number), theta, own)
    return state


BEGIN = jax.jit(lambda reaction, *place: reaction.start(*place), static_argnums=0)
MOVE = jax.jit(
    lambda reaction, state, number, *place: reaction.move(state, jax.random.key(number), *place), static_argnums=0
)
PARAMETERS = jax.jit(lambda theta, own: CASE.reaction.parameters(theta, own))
RISK = jax.jit(lambda reaction, *place: reaction.risk_in(*place), static_argnums=0)
SAMPLE = jax.jit(lambda reaction, *place: reaction.sample_in(*place), static_argnums=(0, 5))


# -- what people do ----------------------------------------------------------------------------------------------------


def test_slow_people_go_a_share_of_the_way():
    """f <- (1 - k) f + k f(theta), for a linear f; samples around it; the risk on the way."""
    rate, deployed = 0.3, [np.array([2.0, 1.0], np.float32), np.array([4.0, 0.0], np.float32)]
    problem, own = profl.worlds.slow(CASE, rate), client(CASE)
    state, f = moved(problem, deployed), np.asarray(PARAMETERS(START, own))
    for theta in deployed:
        f = (1 - rate) * f + rate * np.asarray(PARAMETERS(theta, own))
    batch = np.asarray(SAMPLE(problem.reaction, state, jax.random.key(1), deployed[-1], client(problem), 40_000))
    np.testing.assert_allclose(batch.mean(0), f, atol=4 / 200)
    risk = RISK(problem.reaction, state, deployed[-1], deployed[-1], client(problem))
    assert float(risk) == pytest.approx(-float(np.sum(deployed[-1] * f)), rel=1e-5)


def test_groups_answer_in_turn():
    first, second = np.array([2.0, 1.0], np.float32), np.array([4.0, 0.0], np.float32)
    problem, own = profl.worlds.staggered(CASE, 3), client(CASE)
    each = [PARAMETERS(theta, own) for theta in (first, second, START)]
    state = moved(problem, [first, second])
    batch = np.asarray(SAMPLE(problem.reaction, state, jax.random.key(1), second, client(problem), 999))
    for group, f in enumerate(each):
        np.testing.assert_allclose(batch[group::3].mean(0), f, atol=5 / np.sqrt(333))
    later = moved(problem, [first, second, second, second])  # the first group is the oldest again
    np.testing.assert_allclose(later["groups"]["model"], [second, second, second])


def test_a_world_drifts_by_trend_season_and_walk():
    problem = profl.worlds.drifting(CASE, trend=-0.01, season=(0.5, 40), walk=0.02, seed=3)
    state = moved(problem, [START] * 31)  # the last of them at time 30
    steps = jax.jit(jax.vmap(lambda t: jax.random.normal(jax.random.fold_in(_walk_key(3), t))))
    walk = 0.02 * np.asarray(steps(np.arange(1, 31)))
    by = -0.01 * 30 + 0.5 * np.sin(2 * np.pi * 30 / 40) + np.sum(walk)
    batch = np.asarray(SAMPLE(problem.reaction, state, jax.random.key(0), START, client(problem), 40_000))
    f = np.asarray(PARAMETERS(START, client(CASE)))
    np.testing.assert_allclose(batch.mean(0), f + by, atol=4 / 200)
    np.testing.assert_allclose(problem.at(30).clients["mu0"], CASE.clients["mu0"] + by, rtol=1e-5)
    gamma = CASE.clients["gamma"].mean()
    np.testing.assert_allclose(problem.at(30).optimum, (CASE.clients["mu0"][0] + by) / (2 * gamma), rtol=1e-5)


def _walk_key(seed):
    from profl import random

    return jax.random.fold_in(random.seed_key(0), seed)


def test_the_long_run_is_the_problem_itself():
    for problem in (
        profl.worlds.slow(CASE, 0.2),
        profl.worlds.staggered(CASE, 4),
        profl.worlds.slow(profl.worlds.staggered(CASE, 2), 0.5),
    ):
        np.testing.assert_allclose(problem.optimum, CASE.optimum)
        np.testing.assert_allclose(problem.stable, CASE.stable)
        assert problem.risk(START) == CASE.risk(START)
        settled = moved(problem, [START] * 80, start=np.zeros(2, np.float32))
        risk = RISK(problem.reaction, settled, START, START, client(problem))
        assert float(risk) == pytest.approx(CASE.client_risks(START)[0], rel=1e-5)


WRAPS = {
    "slow": lambda problem: profl.worlds.slow(problem, 0.2),
    "staggered": lambda problem: profl.worlds.staggered(problem, 3),
    "drifting": lambda problem: profl.worlds.drifting(problem, trend=-0.05, walk=0.02, of="mu0"),
    "both": lambda problem: profl.worlds.drifting(profl.worlds.slow(problem, 0.3), season=(0.5, 20), of="mu0"),
}


@pytest.mark.parametrize("wrap", ["both", *(pytest.param(w, marks=pytest.mark.slow) for w in WRAPS if w != "both")])
def test_solving_before_and_after_is_the_same(wrap):
    """The risk on the way, from 2,000 draws: a mean demand to 1 / sqrt(2000), times prices of 4 and 0.

    The groups that answer in turn are drawn from other keys before and after.
    """
    bare, deployed = unmeasured(CASE), [np.array([2.0, 1.0], np.float32), np.array([4.0, 0.0], np.float32)]
    worlds = WRAPS[wrap](bare.solve(2000)), WRAPS[wrap](bare).solve(2000), WRAPS[wrap](CASE)
    states = [moved(problem, deployed) for problem in worlds]
    first, second, exact = (
        float(RISK(problem.reaction, state, deployed[-1], deployed[-1], client(problem)))
        for problem, state in zip(worlds, states, strict=True)
    )
    noise = 4 * 4 / np.sqrt(2000)
    assert second == pytest.approx(exact, abs=noise)
    assert second == pytest.approx(first, abs=2 * noise if wrap == "staggered" else 1e-5)
    at_once = CASE.client_risks(deployed[-1])[0]
    assert abs(second - at_once) > noise / 2
    first, second, exact = (problem.at(7).risk(START) for problem in worlds)
    assert second == pytest.approx(exact, abs=noise)
    assert second == first
    assert (abs(second - CASE.risk(START)) > noise) == worlds[-1].reaction.drifts


@pytest.mark.slow
def test_runs_solved_before_and_after_are_the_same():
    """The answers at every time, what was deployed, and what it was worth; and the closed form, to
    4 / sqrt(2000) of a demand and that times a length of 3 of the prices."""
    bare, short = unmeasured(CASE), {**SHORT, "rounds": 4, "record_every": 4}
    worlds = WRAPS["both"](bare.solve(2000)), WRAPS["both"](bare).solve(2000), WRAPS["both"](CASE)
    first, second, exact = (profl.simulate(problem, profl.pofl(0.05), seeds=0, **short) for problem in worlds)
    np.testing.assert_allclose(second.theta, first.theta, atol=1e-6)
    np.testing.assert_allclose(second.theta, exact.theta, atol=1e-6)
    for name, off in (("excess", 0.3), ("deployed_regret", 0.3), ("to_optimum", 0.09)):
        found = [getattr(run, name)[:, -1] for run in (first, second, exact)]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(found[1], found[2], atol=off, err_msg=name)
    assert abs(second.optimum[0] - CASE.optimum[0]) > 0.1  # the season has moved it


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.worlds.slow(CASE, 0.0), "rate must be above 0 and at most 1"),
        (lambda: profl.worlds.slow(CASE, 1.5), "rate must be above 0 and at most 1"),
        (lambda: profl.worlds.slow(CASE, [0.5, 0.5]), "one for each of 3 clients"),
        (lambda: profl.worlds.slow(CASE, np.nan), "finite"),
        (lambda: profl.worlds.slow(profl.pofl(), 0.5), r"must be a profl\.Problem"),
        (lambda: profl.worlds.staggered(CASE, 1), "2 or more"),
        (lambda: profl.worlds.drifting(CASE, trend=0.1, of="nonsense"), "one of gamma, mu0"),
        (lambda: profl.worlds.drifting(profl.cases.strategic(), trend=0.1), "of must name"),
        (lambda: profl.worlds.drifting(CASE, season=(1.0, 0.0)), "period"),
    ],
)
def test_bad_worlds_are_refused(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()


# -- in every engine ---------------------------------------------------------------------------------------------------

WORLDS = {
    "slow": lambda: profl.worlds.slow(CASE, [0.2, 0.5, 1.0]),
    "staggered": lambda: profl.worlds.staggered(CASE, 3),
    "both": lambda: profl.worlds.drifting(profl.worlds.slow(CASE, 0.3), trend=0.05, walk=0.02),
    "junk": lambda: profl.worlds.contaminate(profl.worlds.slow(CASE, 0.3), 0.1),
    "all": lambda: profl.worlds.contaminate(
        profl.worlds.drifting(profl.worlds.slow(CASE, [0.2, 0.5, 1.0]), trend=0.05, walk=0.02), 0.1
    ),
}
IN_ONE = ("slow", "staggered", "both", "junk")  # each a layer of "all", or like one; alone in the slow form


@pytest.mark.parametrize(
    "world", [pytest.param(name, marks=[pytest.mark.slow] if name in IN_ONE else []) for name in WORLDS]
)
def test_one_trajectory_in_every_engine(world):
    problem, method = WORLDS[world](), profl.pofl(0.05, jacobian=QUICK)
    compiled = profl.simulate(problem, method, seeds=0, **SHORT)
    plain = profl.simulate(profl.cases.pricing(clients=3, goods=2), method, seeds=0, **SHORT)
    assert np.max(np.abs(compiled.theta - plain.theta)) > 1e-3  # the world does matter
    debug = profl.simulate(problem, method, seeds=0, engine="debug", **SHORT)
    clients = profl.worlds.simulated_clients(problem, method, samples=50)
    loop = profl.train(problem, method, clients, seed=0, **SHORT)
    for run in (debug, loop):
        np.testing.assert_allclose(run.theta, compiled.theta, atol=1e-5)
        np.testing.assert_allclose(run.deployed_regret[:, 1:], compiled.deployed_regret[:, 1:], rtol=1e-4, atol=1e-4)


def test_a_run_goes_on_from_a_checkpoint_with_the_same_people(tmp_path):
    problem, method = WORLDS["both"](), profl.pofl(0.05, jacobian=QUICK)

    def run(rounds, **more):
        clients = profl.worlds.simulated_clients(problem, method, samples=50)
        return profl.train(problem, method, clients, seed=0, **{**SHORT, "rounds": rounds}, **more)

    whole = run(6)
    run(3, checkpoint=tmp_path)
    parts = run(6, checkpoint=tmp_path)
    np.testing.assert_array_equal(parts.theta, whole.theta)


def first(theta, client):
    return {"count": 0 * client["gamma"], "seen": theta}


def then(state, key, theta, client):
    return {"count": state["count"] + 1, "seen": theta}


def drawn(batch):
    return batch


@dataclass(frozen=True)
class Counting(profl.worlds.Reaction):
    """People who count deployments, in a state that may be spoilt; what comes in does not show it."""

    first: Any = first
    then: Any = then
    drawn: Any = drawn

    def sample(self, key, theta, client, n):
        return CASE.reaction.sample(key, theta, client, n)

    def start(self, theta, client):
        return self.first(theta, client)

    def move(self, state, key, theta, client):
        return self.then(state, key, theta, client)

    def sample_in(self, state, key, theta, client, n):
        return self.drawn(self.sample(key, theta, client, n))


def counting(gamma=None, **changes):
    clients = CASE.clients if gamma is None else {**CASE.clients, "gamma": np.array(gamma)}
    return replace(CASE, reaction=Counting(**changes), clients=clients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"then": lambda state, key, theta, client: (state["count"], theta)}, "move returns must have the structure"),
        ({"then": lambda state, key, theta, client: {**state, "count": jnp.zeros(2)}}, r"'count': \(2,\)"),
        ({"then": lambda state, key, theta, client: {**state, "count": jnp.int32(1)}}, "dtypes of start.*int32"),
        ({"first": lambda theta, client: {"count": jax.random.key(0), "seen": theta}}, "hold numbers alone.*key"),
        ({"drawn": lambda batch: batch[:, :1]}, r"sample_in returns must have.*\(4, 2\), got \(4, 1\)"),
        ({"drawn": lambda batch: {"z": batch}}, "sample_in returns must have"),
    ],
)
def test_a_state_that_changes_its_form_is_refused_before_the_first_round(changes, message):
    with pytest.raises(profl.InputError, match=message):
        counting(**changes)


def test_people_who_begin_with_what_is_not_finite_are_refused_before_the_first_round():
    broken = counting([1.0, np.nan, 1.0])
    for engine in ("fast", "debug"):
        with pytest.raises(profl.InputError, match=r"at client 1 \(1 of 3 clients\)"):
            profl.simulate(broken, profl.pfl(), seeds=0, engine=engine, **SHORT)
    with pytest.raises(profl.InputError, match="at client 1"):
        profl.train(broken, profl.pfl(), profl.worlds.simulated_clients(CASE, profl.pfl(), samples=50), **SHORT)


def late(state, key, theta, client):
    """Whose gamma is above 1.5 lose their count at the fifth deployment: in the third round of two."""
    lost = (state["count"] >= 4) & (client["gamma"] > 1.5)
    return {**state, "count": jnp.where(lost, jnp.nan, state["count"] + 1)}


def test_a_state_that_becomes_not_finite_is_refused_and_counted():
    """From the third round of six on, at one client of three, though its data look sound; the others go on."""
    problem, method = counting([1.0, 2.0, 1.0], then=late), profl.pfl()
    clients = profl.worlds.simulated_clients(problem, method, samples=50)
    for run in (profl.simulate(problem, method, seeds=0, **SHORT), profl.train(problem, method, clients, **SHORT)):
        np.testing.assert_array_equal(run.refused[0], [0, 0, 0, 1, 2, 3, 4])
        assert run.first_refused == ((3, 1),)
        assert np.all(np.isfinite(run.theta))
        assert "refused" in run.summary()
    with pytest.raises(profl.DivergedError, match="round 3, client 1, stage 'reaction'"):
        profl.simulate(problem, method, seeds=0, engine="debug", **SHORT)


def test_data_from_a_state_that_is_not_finite_are_refused():
    problem = profl.worlds.slow(CASE, 0.5)
    broken = {**problem.clients, "rate": np.array([0.5, np.nan, 0.5])}
    run = profl.simulate(replace(problem, clients=broken), profl.pfl(), seeds=0, **SHORT)
    assert run.refused[0, -1] == SHORT["rounds"]
    assert np.all(np.isfinite(run.theta))


# -- what is learned of it ---------------------------------------------------------------------------------------------

LONG = {"rounds": 60, "local_steps": 5, "samples": 500, "seeds": (0, 1), "progress": False, "record_every": 6}
PRICING = profl.cases.pricing()


def above(run, share=0.2):
    """Of the gap between PS and PO, what is left over the last part of a run."""
    return run.tail("excess", share) / (run.stable_risk - run.optimum_risk)


@pytest.mark.parametrize(
    ("world", "most", "plainly"),
    [
        (lambda: profl.worlds.slow(PRICING, 0.2), 0.01, 0.2),
        pytest.param(lambda: profl.worlds.drifting(PRICING, trend=-0.005), 0.015, None, marks=pytest.mark.slow),
        pytest.param(lambda: profl.worlds.drifting(PRICING, trend=-0.005), 0.015, 0.1, marks=pytest.mark.slow),
        pytest.param(
            lambda: profl.worlds.drifting(profl.worlds.slow(PRICING, 0.5), trend=-0.003),
            0.04,
            None,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["slow", "drifting", "drifting, and plainly", "both"],
)
def test_the_long_run_optimum_is_found_where_a_plain_estimate_is_lost(world, most, plainly):
    problem = world()
    run = profl.simulate(problem, profl.pofl(jacobian="tracking"), **LONG)
    assert np.all(above(run) <= most)
    if plainly is not None:
        assert np.all(above(profl.simulate(problem, profl.pofl(jacobian="kalman"), **LONG)) > plainly)


def test_without_memory_or_drift_nothing_changes():
    runs = [profl.simulate(PRICING, profl.pofl(jacobian=name), **LONG) for name in ("tracking", "kalman")]
    excess = [run.tail_excess() for run in runs]
    assert np.all(excess[0] <= 1.1 * excess[1])


def test_what_is_found_is_said():
    """After 100 deployments. More seeds, and the false alarms of more problems, in the benchmark ``dynamics``."""
    short = {**LONG, "rounds": 20, "record_every": 20}

    def run(problem):
        return profl.simulate(problem, profl.pofl(jacobian="tracking"), **short)

    slow, falling, plain = (
        run(profl.worlds.slow(PRICING, 0.2)),
        run(profl.worlds.drifting(PRICING, trend=-0.003)),
        run(PRICING),
    )
    assert slow.memory.significant.all()
    assert np.all(np.abs(slow.memory.settling - 5) < 4 * slow.memory.error + 0.3)
    assert "people react slowly: 0.19 of the way" in slow.summary() or "people react slowly: 0.2" in slow.summary()
    assert falling.trend.significant.all()
    assert np.all(falling.trend.rate < 0)
    assert "move by themselves, lately by -0.00" in falling.summary()
    for found in (
        plain.memory.significant,
        plain.trend.significant,
        slow.trend.significant,
        falling.memory.significant,
    ):
        assert not found.any()
    assert "by themselves" not in plain.summary()
    assert profl.simulate(PRICING, profl.pfl(), **short).memory is None


@pytest.mark.parametrize(
    "world",
    [
        lambda: profl.worlds.slow(PRICING, 0.2),
        lambda: profl.worlds.drifting(PRICING, trend=-0.003),
        pytest.param(lambda: profl.worlds.slow(PRICING, 0.05), marks=pytest.mark.slow),
        pytest.param(lambda: profl.worlds.staggered(PRICING, 3), marks=pytest.mark.slow),
        pytest.param(lambda: profl.worlds.drifting(PRICING, walk=0.01), marks=pytest.mark.slow),
        pytest.param(lambda: profl.worlds.drifting(PRICING, season=(0.3, 50)), marks=pytest.mark.slow),
    ],
    ids=["slow", "trend", "very slow", "in turn", "walk", "season"],
)
def test_one_filter_says_that_it_is_not_enough(world):
    """Without anything to estimate it by: the misses of the default filter resemble each other."""
    long = {**LONG, "record_every": LONG["rounds"]}
    run = profl.simulate(world(), profl.pofl(), **long)
    assert "use jacobian='tracking'" in run.summary()
    assert run.memory is None


def test_one_filter_is_enough_where_people_answer_at_once():
    long = {**LONG, "record_every": LONG["rounds"]}
    for case in (PRICING, profl.cases.pricing(reaction="exponential")):
        warned = profl.simulate(case, profl.pofl(), **long).summary()
        assert "jacobian='tracking'" not in warned
        assert "variance" not in warned


def test_a_variance_that_moves_is_said_where_the_family_has_only_means():
    """The case of test_spread, with a family that does not know the spread."""
    reaction = profl.worlds.SampledReaction(spreading().reaction.sample)
    case = spreading(family=profl.GaussianMean(), reaction=reaction)
    run = profl.simulate(case, profl.pofl(0.05), rounds=10, record_every=10, seeds=range(2), progress=False)
    assert "the variance of the data moves" in run.summary()
    assert "variance_change" not in profl.simulate(spreading(), profl.pofl(0.05), **{**LONG, "rounds": 1}).info


def test_where_people_are_real_the_default_is_tracking():
    view = profl.LiveProblem("shop", lambda t, z: -jnp.sum(t * z), profl.GaussianMean(), np.zeros(2), np.ones(2))
    part = profl.pofl().part(profl.parts.EstimatedJacobian)
    assert isinstance(part.estimator(view.problem(3)), Tracking)
    assert isinstance(part.estimator(view.problem(3).functions.view()), Tracking)
    assert isinstance(part.estimator(profl.worlds.slow(PRICING, 0.5)), Kalman)


RULE = Tracking()
INIT, UPDATE = jax.jit(RULE.init), jax.jit(RULE.update)
RESULTS = jax.jit(lambda state: (RULE.estimate(state), RULE.figures(state), RULE.hold(state)))


@pytest.mark.parametrize("seed", range(4))
def test_an_estimator_between_the_points_of_its_grid(seed):
    """Rate 0.35, between settling times of 2 and 4, with the noise of 2,500 samples. With that of 10,000 what lies
    between the points is taken for a walk in two of four seeds, and J is off by 0.13."""
    rng, noise = np.random.default_rng(seed), 0.02
    true, rate = np.array([[-1.0, 0.3], [0.2, 0.8]]), 0.35
    state, seen, zeros = INIT(np.zeros(2, np.float32), np.zeros(2, np.float32)), np.zeros(2), np.zeros(2)
    for step in range(400):
        signal = 0.3 * rng.normal(size=2) if step else np.zeros(2)
        seen = seen + rate * (signal - seen)
        f = true @ seen + noise * rng.normal(size=2)
        state = UPDATE(state, signal, f, np.full(2, noise**2), zeros)
    estimate, figures, hold = RESULTS(state)
    np.testing.assert_allclose(estimate, true, atol=0.05)
    assert 2.0 ** float(figures["log2_settling_time"]) == pytest.approx(1 / rate, rel=0.1)
    assert int(hold) == 2
