"""No model is deployed outside its limits, and with them the methods end at the optimum that the limits allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.cases.pricing import negative_revenue
from profl.methods.method import Method
from profl.problem.polyhedron import Region, nearest_point
from tests.problems import CASES, QUICK

LIMITS = profl.LinearLimits([[1.0, -1.0, 0.0], [0.3, 0.3, 0.4]], [-0.1, 1.6])  # a price ladder, a mean price
CHANGE = profl.MaxChange(0.15)
PLAIN = profl.pofl(0.1, jacobian=QUICK)
SMALL = {"rounds": 4, "local_steps": 2, "samples": 50, "progress": False}
ROUNDING = 4e-6


def pricing(*limits):
    return replace(profl.cases.pricing(clients=3, goods=3), limits=limits)


def misses(theta, limits=LIMITS):
    """By how much the models (..., d) miss linear limits at worst."""
    return np.max(np.asarray(theta, float) @ np.array(limits.A).T - limits.b)


def moves(models):
    """How far each number moved at most from one deployment to the next, of (clients, deployments, d) models."""
    return np.max(np.abs(np.diff(np.asarray(models, float), axis=1)))


class Noting:
    """A client that notes what it deploys."""

    def __init__(self, client, seen):
        self.client, self.seen = client, seen

    def deploy(self, theta, samples, step, world=()):
        self.seen.append(np.array(theta))
        return self.client.deploy(theta, samples, step)


def watched(problem):
    """The problem, which writes down what its clients deploy in simulations, and what it wrote."""
    seen = {}
    sample = problem.reaction.sample

    def noted(key, theta, client, n):
        jax.debug.callback(lambda i, model: seen.setdefault(int(i), []).append(np.array(model)), client["i"], theta)
        return sample(key, theta, client, n)

    clients = {**problem.clients, "i": np.arange(problem.count)}
    problem = replace(problem, clients=clients, reaction=profl.worlds.SampledReaction(noted))
    jax.effects_barrier()
    seen.clear()  # making the problem has drawn samples
    return problem, seen


def deployed(problem, method, engine, **settings):
    """(the start and what each client deployed, (clients, 1 + deployments, d); the models of the run)."""
    problem, seen = watched(problem)
    start = np.asarray(problem.project(jnp.asarray(problem.initial_models([0])[0])))
    if engine == "train":
        seen = {i: [] for i in range(problem.count)}
        workers = profl.worlds.simulated_clients(problem, method, samples=settings["samples"])
        run = profl.train(problem, method, [Noting(one, seen[i]) for i, one in enumerate(workers)], **settings)
    else:
        run = profl.simulate(problem, method, engine=engine, seeds=[0], **settings)
    jax.effects_barrier()
    return np.array([[np.ravel(start), *map(np.ravel, seen[i])] for i in range(problem.count)]), run.theta[0]


# -- the projection ----------------------------------------------------------------------------------------------------


def random_region(rng, trial):
    """A polyhedron that is not empty; some have no inside, as two opposite rows."""
    d, m = rng.integers(2, 8), rng.integers(1, 8)
    A = rng.normal(size=(m, d))
    A[-1] = -A[0] if trial % 4 == 0 else A[-1]
    A /= np.linalg.norm(A, axis=1)[:, None]
    room = 0.3 * rng.uniform(size=m) * (trial % 4 > 0)
    return Region(A, A @ rng.uniform(0, 5, d) + room, np.zeros(d), np.full(d, 5.0))


@pytest.mark.parametrize("plain", [True, False])
def test_the_nearest_point_satisfies_the_optimality_conditions(plain):
    """x is nearest exactly if H (target - x) is a sum of the normals that hold x, with multipliers of zero or more."""
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    for trial in range(60):
        region = random_region(rng, trial)
        d = region.A.shape[1]
        target = 8 * rng.normal(size=d)
        half = rng.normal(size=(d, d))
        H = np.eye(d) if plain else half @ half.T + 0.1 * np.eye(d)
        x, stuck = nearest_point(region, target, None if plain else H, np)
        room = np.concatenate([region.b - region.A @ x, x - region.lower, region.upper - x])
        assert not stuck
        assert room.min() > -1e-12
        normals = np.concatenate([region.A, -np.eye(d), np.eye(d)])[room < 1e-9]
        force = H @ (target - x)
        rest = optimize.nnls(normals.T, force)[1] if len(normals) else np.linalg.norm(force)
        assert rest < 1e-8 * (1 + np.linalg.norm(force)), trial


def test_in_single_precision_nothing_leaves_the_limits_wherever_it_comes_from():
    case = pricing(LIMITS)
    points = np.random.default_rng(0).normal(size=(300, 3)) * 10.0 ** np.arange(-2, 10).repeat(25)[:, None]
    project = jax.jit(jax.vmap(case.project))
    inside = project(np.float32(points))
    assert misses(inside) < ROUNDING
    assert np.all((inside >= 0) & (inside <= 5))
    np.testing.assert_allclose(project(inside), inside, atol=ROUNDING)  # the gate takes it for inside
    assert np.isnan(case.project(jnp.array([jnp.nan, 1.0, 1.0]))).any()  # and NaN is not made something


def test_a_client_that_deployed_what_it_should_not_have_is_led_back_inside():
    case, rng = pricing(LIMITS, CHANGE), np.random.default_rng(0)
    wanted, last = np.float32(rng.normal(size=(2, 300, 3)) * 8)
    nearest = jax.jit(jax.vmap(lambda theta, last: CHANGE.nearest(case.project, theta, last)))
    assert misses(nearest(wanted, last)) < ROUNDING
    inside = jax.jit(jax.vmap(case.project))(last)
    assert np.abs(nearest(wanted, inside) - inside).max() < CHANGE.amount + 1e-6


# -- the optimum -------------------------------------------------------------------------------------------------------


def test_the_optimum_is_the_one_that_the_limits_allow():
    """The risk is gamma-bar |theta - PO|^2 plus a constant: the point nearest to PO is best."""
    case, free = pricing(LIMITS), profl.cases.pricing(clients=3, goods=3).optimum
    A, b = np.array(LIMITS.A), np.array(LIMITS.b)
    closed = free - A.T @ np.linalg.solve(A @ A.T, A @ free - b)
    np.testing.assert_allclose(case.optimum, closed, atol=1e-6)
    assert case.risk(case.optimum) < case.risk(case.stable)
    np.testing.assert_allclose(replace(case, limits=()).optimum, free, atol=1e-9)


def limited(name):
    """A case whose optimum its limits forbid, without those of its own."""
    free = CASES[name](clients=3)
    flat = np.ravel(free.optimum)
    normal = np.linspace(1.0, 2.0, flat.size) * np.where(flat < 0, -1.0, 1.0)
    return replace(free, limits=profl.LinearLimits([normal], [0.8 * normal @ flat])), normal


@pytest.mark.parametrize("name", ["strategic", *(pytest.param(c, marks=pytest.mark.slow) for c in CASES)])
def test_at_every_constrained_optimum_the_gradient_points_out_of_the_limit(name):
    case, normal = limited(name)
    gradient = np.ravel(case.gradient(case.optimum))
    along = gradient @ normal / (normal @ normal)
    held = np.abs(normal @ np.ravel(case.optimum) - case.limits[0].b[0]) < 1e-8
    assert held
    assert along < 0
    if "pricing" not in name:  # whose prices end at their bounds as well
        np.testing.assert_allclose(gradient, along * normal, atol=1e-6)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [profl.pfl(0.3), pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_every_engine_keeps_the_limits_and_goes_the_same_way(method):
    case, results = pricing(LIMITS, CHANGE), {}
    for engine in ("fast", "debug", "train"):
        models, theta = deployed(case, method, engine, **SMALL)
        assert models.shape == (3, 9, 3)
        assert misses(models) < ROUNDING
        assert CHANGE.amount / 2 < moves(models) < CHANGE.amount + 1e-6
        results[engine] = models, theta
    for other in ("debug", "train"):
        for mine, its in zip(results["fast"], results[other], strict=True):
            np.testing.assert_allclose(mine, its, atol=1e-4)


METHODS = {"pfl": profl.pfl(0.3), "pofl": PLAIN, "prm": profl.prm(), "dfo": profl.dfo(0.1), "rrm": profl.rrm()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_the_limits_of_every_case(name, method):
    case, _ = limited(name)
    scale = 0.1 * (1 + np.abs(np.ravel(case.optimum)).max())
    case = replace(case, limits=[*case.limits, profl.MaxChange(scale)])
    settings = {"rounds": 10, "local_steps": 1, "samples": 50, "progress": False}
    models, _ = deployed(case, METHODS[method], "fast", **settings)
    assert misses(models, case.limits[0]) < ROUNDING * (1 + np.abs(case.limits[0].b[0]))
    assert moves(models) <= scale * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["uniform", "weighted"])
def test_clients_that_pause_go_on_from_what_they_deployed_last(scheme):
    case, seen = watched(pricing(LIMITS, CHANGE))
    profl.simulate(case, profl.pfl(0.3), participation=0.67, scheme=scheme, seeds=[0], **{**SMALL, "rounds": 8})
    jax.effects_barrier()
    assert len({len(models) for models in seen.values()}) > 1
    for models in seen.values():
        assert CHANGE.amount / 2 < moves([models]) < CHANGE.amount + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("method", "steps"), [(profl.pofl(0.05), 5), (profl.prm(), 1)])
def test_methods_end_at_the_constrained_optimum(method, steps):
    case = pricing(LIMITS, CHANGE)
    run = profl.simulate(case, method, rounds=40, local_steps=steps, samples=500, seeds=range(5), progress=False)
    gap = case.risk(case.stable) - case.risk(case.optimum)
    assert np.median(run.excess[:, -1]) < 0.02 * gap
    assert np.all(run.excess > -1e-4)


# -- campaigns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jumping(Method):
    """Wants to deploy a far corner, another one each time."""

    name = "jumping"

    def deploy(self, problem, state, key, theta):
        return theta + 100 * random.explore_signs(key, theta.size), state

    def step(self, problem, state, theta, arrival, key):
        return theta, state, {"loss": jnp.zeros(())}


@pytest.mark.parametrize("method", [Jumping(), pytest.param(profl.prm(), marks=pytest.mark.slow)])
def test_in_a_campaign_what_was_skipped_was_deployed_and_what_was_withdrawn_was_not(method, tmp_path):
    """Also for the process that goes on with it."""
    pytest.importorskip("sqlalchemy")
    problem = profl.LiveProblem(
        "shop",
        negative_revenue,
        profl.GaussianMean(),
        np.zeros(2),
        np.array([1.0, 2.0]),
        profl.Box(0.0, 5.0),
        limits=[profl.LinearLimits([[1.0, -1.0]], [-0.5]), profl.MaxChange(0.1, relative=True)],
    )
    here = f"sqlite:///{tmp_path / 'shop.db'}", problem, method
    campaign = profl.Campaign(*here, clients=["a", "b", "c"], samples=20, min_reports=1, local_steps=2)
    last, rng = {name: np.array([1.0, 2.0]) for name in "abc"}, np.random.default_rng(0)
    for week in range(12):
        if week == 7:
            campaign.close()
            campaign = profl.Campaign(*here)
        for one in campaign.ask():
            assert one.theta[0] - one.theta[1] < -0.5 + ROUNDING
            assert np.all(np.abs(one.theta - last[one.client]) <= 0.1 * np.abs(last[one.client]) + 1e-6)
            if one.client == "a" and week in (2, 5):
                campaign.withdraw(one.id)
                continue
            last[one.client] = one.theta
            if one.client == "b" and week in (3, 4):
                campaign.skip(one.id, "closed")
                continue
            campaign.tell(one.id, 6 - one.theta + rng.normal(size=(20, 2)))
    campaign.close()
    assert all(np.abs(theta - [1.0, 2.0]).max() > 0.05 for theta in last.values())


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: profl.LinearLimits([[1, 2], [3]], [0, 0]), "A must be a table"),
        (lambda: profl.LinearLimits([1, 2], [0, 0]), "A must be a table with one row per limit, got shape"),
        (lambda: profl.LinearLimits([[1, 2]], [0, 0]), "b must have one number per row of A, 1, got"),
        (lambda: profl.LinearLimits([[1, np.nan]], [0]), "A and b must be finite"),
        (lambda: profl.LinearLimits([[1, 0], [0, 0]], [1, 1]), "only zeros in row 1 of A"),
        (lambda: profl.MaxChange(0), "amount must be a finite number above 0"),
        (lambda: profl.MaxChange(np.nan), "amount must be a finite number above 0"),
        (lambda: profl.MaxChange(0.1, relative="yes"), "relative must be True or False"),
        (lambda: pricing(profl.LinearLimits([[1, -1]], [0])), "one column per number of the model, 3, got 2"),
        (lambda: pricing(profl.MaxChange([1, 2])), "one per number of the model, 3, got 2"),
        (lambda: pricing(profl.MaxChange(1), profl.MaxChange(2)), "one MaxChange at most"),
        (lambda: pricing("10 %"), "limits must be profl.LinearLimits(A, b), profl.MaxChange(amount)"),
        (lambda: pricing(profl.LinearLimits([[1, 1, 1]], [-1])), "no model inside the Box satisfies the limits"),
        (
            lambda: pricing(profl.LinearLimits([[1, 0, 0], [-1, 0, 0]], [1, -2])),
            "no model inside the Box satisfies the limits",
        ),
        (lambda: replace(pricing(LIMITS), project=lambda theta: theta), "a profl.Box or has no bounds"),
        (lambda: profl.worlds.personal(pricing(CHANGE)), "without a MaxChange"),
    ],
)
def test_limits_that_make_no_sense_are_refused_in_one_sentence(make, words):
    with pytest.raises(profl.InputError) as error:
        make()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_relative_change_of_nothing_is_nothing():
    case = replace(pricing(profl.MaxChange(0.1, relative=True)), initial=np.zeros(3))
    with pytest.raises(profl.InputError, match="number 0 of the initial model is 0"):
        profl.simulate(case, PLAIN, seeds=[0], **SMALL)
