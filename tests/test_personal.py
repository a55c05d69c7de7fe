"""``personal=``: a part of theta stays at the client, in every engine, and nobody else sees it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random, trees
from profl.cases.orange_juice import orange_juice, own_dollars
from profl.methods.prm import partial_minimisation
from profl.methods.prm.settings import PERSONAL_PENALTY
from profl.parts.personal import ModelSplit, PersonalModel
from profl.problem.reaction import Unmeasured
from profl.server import entries

SETTINGS = {"rounds": 4, "local_steps": 2, "samples": 20, "seeds": [3], "progress": False}


def shop(clients=3):
    """Sales around level_i - 2 price, predicted by {"level", "slope"}: shops differ in their level alone."""

    def sample(key, theta, client, n):
        price = jnp.linspace(-1.0, 1.0, n)
        return {"x": price, "y": client["level"] + 2.0 * price + 0.1 * random.normal(key, n)}

    def loss(theta, z):
        return (z["y"] - theta["level"] - theta["slope"] * z["x"]) ** 2

    class Sales(profl.Family):
        def estimate(self, batch, weights):
            return (weights @ batch["y"])[None]

        def log_prob(self, z, f):
            return -((z["y"] - f[0]) ** 2)

    levels = np.linspace(-3.0, 3.0, clients)
    start = {"level": jnp.float32(0.0), "slope": jnp.float32(0.0)}
    return profl.Problem("shops", loss, Sales(), sample, {"level": levels}, lambda key: start)


SHOPS = shop()
LEVEL = PersonalModel(ModelSplit("level"))


def test_levels_stay_and_the_slope_is_learned_together():
    run = profl.simulate(SHOPS, profl.pfl(0.1, personal=("level",)), **{**SETTINGS, "rounds": 60})
    np.testing.assert_allclose(run.personal["level"][0], SHOPS.clients["level"], atol=0.1)
    np.testing.assert_allclose(run.theta["slope"][0, -1], 2.0, atol=0.1)
    np.testing.assert_array_equal(run.theta["level"], 0.0)  # the server never has one
    models = run.own_models()
    np.testing.assert_array_equal(models["level"], run.personal["level"][0])
    np.testing.assert_array_equal(models["slope"], np.full(3, run.theta["slope"][0, -1]))
    assert run.settings["personal"] == "level"


@pytest.mark.slow  # in short: stores that estimate how customers answer
def test_prm_finds_both_in_a_few_rounds_without_a_rate():
    """In closed form: levels are those of the shops, the slope is 2. A sample's noise is 0.1, there are 20 x 16."""
    run = profl.simulate(SHOPS, profl.prm(personal="level"), **{**SETTINGS, "rounds": 8})
    np.testing.assert_allclose(run.personal["level"][0], SHOPS.clients["level"], atol=0.05)
    np.testing.assert_allclose(run.theta["slope"][0, -1], 2.0, atol=0.05)
    np.testing.assert_array_equal(run.theta["level"], 0.0)
    assert run.expected_excess is None


def test_the_server_minimises_what_is_left_once_own_parts_follow():
    """Quadratic risks: one Newton step of the mean of phi_i leads to the joint optimum, D being small."""
    rng, mine = np.random.default_rng(0), np.array([False, False, True])
    roots = rng.normal(size=(4, 3, 3))
    curvatures, slopes = roots @ roots.swapaxes(1, 2) + np.eye(3), rng.normal(size=(4, 3))
    joint = np.zeros((6, 6))  # two shared, four of one's own
    right = np.zeros(6)
    for i, (curvature, slope) in enumerate(zip(curvatures, slopes, strict=True)):
        rows = [0, 1, 2 + i]
        joint[np.ix_(rows, rows)] += curvature
        right[rows] += slope
    exact = np.linalg.solve(joint, -right)
    with jax.enable_x64(True):
        off, held, still = np.zeros(3), np.zeros(3, bool), np.zeros((3, 3))

        @jax.jit
        def followed(curvature, slope):
            own = jnp.linalg.solve(curvature[2:, 2:], -slope[2:])  # where it is least by itself
            moves = partial_minimisation.response_to_shared(curvature, mine, held, still)
            there = slope + curvature[:, 2] * own
            return partial_minimisation.profile(there, (curvature,), off, mine, moves)

        found = [jax.tree.map(np.asarray, followed(*each)) for each in zip(curvatures, slopes, strict=True)]
        step = np.linalg.solve(sum(b[0] for _, b in found)[:2, :2], -sum(g for g, _ in found)[:2])
    np.testing.assert_allclose(step, exact[:2], rtol=0, atol=5 * PERSONAL_PENALTY)


def test_a_held_part_is_carried_along():
    """Of a sum at the edge of the model space only the split can change: nothing is left of the slope or curvature."""
    mine, sums = np.array([False, True]), np.array([[0.0, 0.0], [-1.0, 0.0]], np.float32)

    @jax.jit
    def profiled(curvature, held):
        moves = partial_minimisation.response_to_shared(curvature, mine, held, sums)
        return partial_minimisation.profile(jnp.ones(2), (curvature,), jnp.zeros(2), mine, moves)

    slope, (bend,) = profiled(np.ones((2, 2), np.float32), np.array([False, True]))
    np.testing.assert_array_equal(slope, 0.0)
    np.testing.assert_allclose(bend, [[PERSONAL_PENALTY, 0.0], [0.0, 0.0]], atol=1e-6)


def test_all_of_it_personal_is_everyone_alone():
    """With True a client's model is that of a run in which it is the only one, with the draws that it has among all."""
    run = profl.simulate(SHOPS, profl.pfl(0.1, personal=True), **SETTINGS)
    alone = replace(SHOPS, clients=trees.take(SHOPS.clients, slice(0, 1)), weights=None)
    first = profl.simulate(alone, profl.pfl(0.1), **SETTINGS)
    for name in ("level", "slope"):
        np.testing.assert_allclose(run.own_models()[name][0], first.theta[name][0, -1], rtol=1e-5)
        np.testing.assert_array_equal(run.theta[name], 0.0)


def test_a_report_holds_nothing_of_ones_own():
    method, theta = profl.pfl(0.1, personal="level"), {"level": jnp.float32(5.0), "slope": jnp.float32(2.0)}
    start = SHOPS.initial(None)
    place, states = method.parts.index(LEVEL), list(method.init(SHOPS.functions.view(), start, None))
    states[place] = states[place]._replace(own={"level": theta["level"]})
    report = method.report(SHOPS.functions.view(), tuple(states), theta)
    assert report == {"theta": entries.model({"level": 0.0, "slope": 2.0})}


def test_hostile_reports_do_not_reach_what_is_personal():
    run = profl.simulate(SHOPS, profl.pfl(0.1, personal="level"), **SETTINGS, attack="sign_flip", hostile=[0])
    np.testing.assert_array_equal(run.theta["level"], 0.0)


def everything(run):
    return jax.tree.leaves((run.theta, run.personal))


def same(first, second, **tolerance):
    for one, two in zip(everything(first), everything(second), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, **tolerance)


METHODS = {
    "pfl": profl.pfl(0.1, personal="level"),
    "pofl": profl.pofl(0.1, personal="level", jacobian="least_squares"),
    "prm": profl.prm(personal="level"),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("pofl", "prm")]


@pytest.mark.parametrize("method", ["pfl", *SLOW])
def test_engines_agree_and_a_resumed_run_has_the_same_bits(method, tmp_path):
    made = METHODS[method]
    with jax.enable_x64(True):
        fast = profl.simulate(SHOPS, made, **SETTINGS, participation=0.7)
        slow = profl.simulate(SHOPS, made, **SETTINGS, participation=0.7, engine="debug")
        same(fast, slow, atol=1e-9)
    whole = profl.simulate(SHOPS, made, **SETTINGS, checkpoint=tmp_path / "whole")
    for rounds in (2, 4):
        parts = profl.simulate(SHOPS, made, **{**SETTINGS, "rounds": rounds}, checkpoint=tmp_path / "parts")
    same(whole, parts, atol=0)
    clients = profl.worlds.simulated_clients(SHOPS, made, samples=20, seed=3)
    live = profl.train(SHOPS, made, clients, rounds=4, local_steps=2, samples=20, seed=3, progress=False)
    same(whole, live, atol=1e-5)
    whole.save(tmp_path / "run.npz")
    same(whole, profl.load(tmp_path / "run.npz"), atol=0)


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")
@pytest.mark.parametrize("method", ["pfl", pytest.param("prm", marks=pytest.mark.slow)])
def test_over_flower_the_common_part_is_the_same_and_nobody_tells_ones_own(method):
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    schedule = {"rounds": 4, "local_steps": 2, "samples": 20}
    federation = Federation(SHOPS, METHODS[method], 3, seed=3, **schedule)
    over = ProFLStrategy(federation, wait=1.0).run(InProcessGrid(make_client_app(federation), 3))
    fast = profl.simulate(SHOPS, METHODS[method], **SETTINGS)
    np.testing.assert_allclose(over.theta["slope"], fast.theta["slope"], atol=1e-5)
    assert np.all(np.isnan(over.personal["level"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.pfl(personal="levle"), "unknown personal part 'levle'; did you mean 'level'"),
        (lambda: profl.pfl(personal=()), r"personal must be names of parts.*got \(\)"),
        (lambda: profl.pofl(personal=3), "or True, got 3"),
        (lambda: profl.profl("auto", personal="level"), "state a number"),
        (lambda: profl.pofl(correction="scaffold", personal="level"), "drop one"),
        (lambda: profl.chain(*profl.rgd().parts, LEVEL, pooled=True), "personal parts need clients"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(make, message):
    with pytest.raises(profl.InputError, match=message):
        profl.simulate(SHOPS, make(), rounds=1)


def test_a_model_without_names_is_pointed_to_the_wrapper():
    with pytest.raises(profl.InputError, match=r"use personal=True for all of it, or profl.worlds.personal\(problem\)"):
        profl.simulate(profl.cases.pricing(clients=2), profl.pfl(personal="own"), rounds=1)


# -- a part of one's own beside any model


@pytest.fixture(scope="module")
def pricing():
    return profl.cases.pricing(clients=2, goods=2)


def test_the_wrapped_problem_has_the_risk_of_the_sum(pricing):
    case = profl.worlds.personal(pricing)
    theta = {"common": np.array([1.0, 2.0]), "own": np.array([0.5, -0.5])}
    assert case.risk(theta) == pytest.approx(pricing.risk(np.array([1.5, 1.5])))
    assert case.risk(case.optimum) == pytest.approx(pricing.risk(pricing.optimum), abs=1e-6)
    models = {"common": np.ones((2, 2)), "own": np.array([[0.5, 0.5], [1.0, 1.0]])}
    expected = [pricing.client_risks(np.full(2, price))[i] for i, price in enumerate((1.5, 2.0))]
    np.testing.assert_allclose(case.own_risks(models), expected)
    with pytest.raises(profl.InputError, match="one model per client, 2, got 3"):
        case.own_risks({"common": np.ones((3, 2)), "own": np.ones((3, 2))})


def test_both_parts_stay_in_the_model_space(pricing):
    out = {"common": jnp.array([99.0, 1.0]), "own": jnp.array([-200.0, 99.0])}
    inside = profl.worlds.personal(pricing).project(out)
    for theta in (inside["common"], inside["common"] + inside["own"]):
        np.testing.assert_array_equal(pricing.project(theta), theta)


SHORT = {"clients": 2, "rounds": 60, "seeds": range(2)}
LONG = {"clients": None, "rounds": 160, "seeds": range(10)}


def recovered(case, method, **schedule):
    """How far stores come from the best common list to the best list of every store."""
    both = profl.worlds.personal(case)
    blind = replace(both, reaction=Unmeasured(both.reaction))  # quicker: nobody asks for the common optimum
    run = profl.simulate(blind, method, **schedule, record_every=schedule["rounds"], progress=False)
    earned = [-1000 * both.weights @ both.own_risks(run.own_models(i)) for i in range(len(run.seeds))]
    common = -1000 * case.risk(case.optimum)
    return (np.array(earned) - common) / (own_dollars(case) - common)


@pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_stores_with_prices_of_their_own_earn_what_one_list_cannot(size):
    """At least 80 % of the way from the best common list to the best list of every store, f(theta) being known."""
    case, method = orange_juice(clients=size["clients"]), profl.pofl(0.2, jacobian="exact", personal="own")
    share = recovered(case, method, rounds=size["rounds"], samples=121, seeds=size["seeds"])
    assert np.all(share >= 0.8), share


@pytest.mark.parametrize(
    ("stores", "weeks", "seeds"), [(4, 60, range(1)), pytest.param(None, 26, range(10), marks=pytest.mark.slow)]
)
def test_stores_that_estimate_how_customers_answer_come_as_far_in_thirty_changes(stores, weeks, seeds):
    share = recovered(
        orange_juice(stores), profl.prm(personal="own"), rounds=30, local_steps=1, samples=weeks, seeds=seeds
    )
    assert np.all(share >= 0.8), share
