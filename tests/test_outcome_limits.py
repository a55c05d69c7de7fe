"""What comes in stays inside its limits, as far as is known; and prm ends at the optimum that the limits allow."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.methods.prm.outcome_steps import Cone, Start, minimise_in_limits, normal_start
from profl.problem.polyhedron import Region
from tests.test_limits import Noting, watched

SMALL = {"rounds": 4, "local_steps": 1, "samples": 60, "progress": False}


def volume(theta, z):
    return jnp.sum(z)


def revenue(theta, z):
    return jnp.sum(theta * z)


def expensive(theta, z):
    return jax.nn.sigmoid(theta[0]) * z[0] ** 2


def pricing(*limits, clients=3, goods=2, **changes):
    return replace(profl.cases.pricing(clients=clients, goods=goods), limits=limits, **changes)


def closed_form(case, least):
    """(the prices of least risk with a mean volume of at least ``least``, the volume at the best ones without limit).

    The risk is -theta'mu + g theta'theta and the volume sum(mu - g theta): a quadratic with one linear constraint.
    """
    g, mu = float(case.weights @ case.clients["gamma"]), np.asarray(case.clients["mu0"])[0]
    best = mu / (2 * g)
    free = np.sum(mu - g * best)
    return best - max(least - free, 0.0) / g / mu.size, free


def volumes(case, models):
    """The mean volume with every client at a model of its own, (..., clients, d) -> (...)."""
    g, mu = np.asarray(case.clients["gamma"]), np.asarray(case.clients["mu0"])
    return (mu - g[:, None] * models).sum(-1) @ case.weights


# -- exact answers -----------------------------------------------------------------------------------------------------


def test_the_optimum_is_that_of_the_quadratic_with_a_linear_constraint():
    case = pricing()
    free = closed_form(case, 0.0)[1]
    for factor in (0.9, 1.2):  # the first one holds anyhow
        limited = replace(case, limits=profl.OutcomeLimit(volume, at_least=factor * free))
        np.testing.assert_allclose(limited.optimum, closed_form(case, factor * free)[0], atol=1e-6)
        np.testing.assert_allclose(limited.stable, case.stable, atol=1e-9)


def test_linear_limits_and_limits_on_what_comes_in_hold_together():
    case = pricing()
    free = closed_form(case, 0.0)[1]
    ladder = profl.LinearLimits([[1.0, -1.0]], [-0.4])
    limited = replace(case, limits=[profl.OutcomeLimit(volume, at_least=1.2 * free), ladder])
    total = closed_form(case, 1.2 * free)[0].sum()
    np.testing.assert_allclose(limited.optimum, [total / 2 - 0.2, total / 2 + 0.2], atol=1e-6)


def test_an_outcome_that_is_linear_in_what_f_describes_is_exact_and_others_state_their_error():
    case = pricing(*(profl.OutcomeLimit(each, at_most=99) for each in (volume, revenue, expensive)))
    theta = np.array([1.5, 3.0])
    g, mu = np.asarray(case.clients["gamma"])[:, None], np.asarray(case.clients["mu0"])
    f = mu - g * theta
    square = (f[:, 0] ** 2 + 1) / (1 + np.exp(-theta[0]))
    exact = case.weights @ np.stack([f.sum(1), f @ theta, square], 1)
    np.testing.assert_allclose(case.outcomes(theta)[:2], exact[:2], rtol=1e-12)
    errors = case.outcome_errors(theta)
    assert np.all(errors[:2] < 1e-12)
    assert 1e-4 < errors[2] < 0.01
    assert abs(case.outcomes(theta)[2] - exact[2]) < 4 * errors[2]
    own = np.array([[1.5, 3.0], [1.0, 1.0], [2.0, 0.5]])
    np.testing.assert_allclose(case.own_outcomes(own)[0], volumes(case, own), rtol=1e-12)


def test_weights_of_both_signs_compare_clients():
    case = pricing(profl.OutcomeLimit(volume, at_most=0.5, weights=[1, 0, -1]))
    theta = np.array([1.0, 2.0])
    g = case.clients["gamma"]
    np.testing.assert_allclose(case.outcomes(theta), (g[2] - g[0]) * 3.0, rtol=1e-12)


# -- steps -------------------------------------------------------------------------------------------------------------


def random_cone(rng, d, limits):
    """Limits that the best model keeps, and what is not known of them."""
    half = rng.normal(size=(limits, 1 + d, 1 + d)) * 0.2
    covariance = half @ half.transpose(0, 2, 1)
    numbers = [rng.uniform(size=limits) for _ in range(2)]
    cone = Cone(np.zeros(d), np.zeros(limits), rng.normal(size=(limits, d)), np.zeros(d), covariance, *numbers, 1.3)
    size = 0.3
    level = -np.asarray(cone.excess(jnp.zeros(d), jnp.asarray(size))) - rng.uniform(0, 0.5, limits)
    return jax.tree.map(jnp.asarray, cone._replace(level=level, quantile=np.full(limits, 1.3))), jnp.asarray(size)


def test_the_least_point_of_a_quadratic_inside_cones_is_the_solvers():
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        minimise = jax.jit(minimise_in_limits)
        for _ in range(10):
            d = 3
            cone, size = random_cone(rng, d, 2)
            half = rng.normal(size=(d, d))
            H, gradient = half @ half.T + np.eye(d), 3 * rng.normal(size=d)
            region = Region(np.zeros((0, d)), np.zeros(0), -np.ones(d), np.ones(d))
            start = Start(jnp.zeros(d), size, jnp.zeros(2))
            y, multipliers = minimise(cone, region, start, H, jnp.zeros((d, d)), gradient)
            g = jax.jit(lambda x, cone=cone, size=size: cone.excess(x, size))
            assert np.all(np.asarray(g(y)) < 1e-9)
            assert np.all(np.asarray(multipliers) >= 0)
            least = optimize.minimize(
                lambda x, H=H, gradient=gradient: gradient @ x + x @ H @ x / 2,
                np.zeros(d),
                bounds=[(-1, 1)] * d,
                constraints={"type": "ineq", "fun": lambda x, g=g: -np.asarray(g(x))},
                method="SLSQP",
                options={"ftol": 1e-12, "maxiter": 300},
            )
            assert gradient @ y + y @ H @ y / 2 < least.fun + 0.01 * abs(least.fun)


def test_a_normal_step_goes_as_far_as_it_makes_room():
    """One limit y_0 + level <= 0: known, it is kept with room for all that is planned; unknown, nothing is tried."""
    d, none = 2, jnp.zeros(1)
    region = Region(jnp.zeros((0, d)), jnp.zeros(0), -jnp.ones(d), jnp.ones(d))
    slope = jnp.array([[1.0, 0.0]])
    known = Cone(jnp.zeros(d), none + 0.2, slope, jnp.zeros(d), jnp.zeros((1, 3, 3)), none + 1.0, none, none + 1.0)
    start = normal_start(known, region, jnp.asarray(0.3), jnp.asarray(0.0))
    np.testing.assert_allclose(start.point, [-0.5, 0.0], atol=1e-5)
    np.testing.assert_allclose([start.size, start.slack[0]], [0.3, 0.0], atol=1e-5)
    unknown = known._replace(covariance=jnp.diag(jnp.array([0.0, 4.0, 4.0]))[None])
    start = normal_start(unknown, region, jnp.asarray(0.3), jnp.asarray(0.1))
    np.testing.assert_allclose(start.point, [0.0, 0.0], atol=1e-5)
    np.testing.assert_allclose(start.size, 0.1)


def test_the_largest_perturbation_is_where_the_limit_is_met():
    cone, _ = random_cone(np.random.default_rng(3), 2, 1)
    y = jnp.array([0.05, -0.02])
    size = cone.largest_size(y)
    assert size > 0
    np.testing.assert_allclose(cone.excess(y, size), 0.0, atol=1e-5)
    assert cone._replace(level=cone.level + 5).largest_size(y) == 0


# -- runs --------------------------------------------------------------------------------------------------------------


def limited(least=1.15, **changes):
    """Pricing from half of the best prices, with a limit that binds; a client of weight 0 and unequal others."""
    case = pricing(weights=[0.5, 0.5, 0.0], **changes)
    best, free = closed_form(case, 0.0)
    limit = profl.OutcomeLimit(volume, at_least=least * free)
    return replace(case, limits=limit, initial=np.float32(best / 2))


def deployed(problem, engine, **settings):
    """(what each client deployed, (clients, deployments, d); the run)."""
    if engine == "train":
        seen = {i: [] for i in range(problem.count)}
        workers = profl.worlds.simulated_clients(problem, profl.prm(), samples=settings["samples"])
        run = profl.train(problem, profl.prm(), [Noting(one, seen[i]) for i, one in enumerate(workers)], **settings)
    else:
        problem, seen = watched(problem)
        run = profl.simulate(problem, profl.prm(), engine=engine, seeds=[0], **settings)
        jax.effects_barrier()
    return np.array([seen[i][: settings["rounds"]] for i in range(problem.count)]), run  # exact outcomes draw later


@pytest.mark.slow  # the campaign below is the short form
def test_every_engine_goes_the_same_way_and_keeps_the_limit():
    case, results = limited(), {}
    for engine in ("fast", "debug", "train"):
        models, run = deployed(case, engine, **SMALL)
        assert models.shape == (3, 4, 2)
        assert np.all(volumes(case, models.transpose(1, 0, 2)) > case.limits[0].bound)
        results[engine] = models
        exact = 1e-6 if engine == "train" else 0.01  # a watched reaction does not state f: its draws are not moved
        np.testing.assert_allclose(run.outcomes[0, -1], case.outcomes(run.theta[0, -1]), rtol=exact)
        assert "limit volume at least" in run.summary()
    for other in ("debug", "train"):
        np.testing.assert_allclose(results["fast"], results[other], atol=1e-4)
    assert np.abs(results["fast"] - results["fast"][:, :1]).max() > 0.05  # it does move


@pytest.mark.slow
def test_prm_ends_at_the_constrained_optimum_and_seldom_breaks_the_limit():
    case = limited()
    run = profl.simulate(case, profl.prm(), rounds=40, local_steps=1, samples=300, seeds=range(5), progress=False)
    assert np.mean(run.excess[:, -1] / run.excess[:, 0]) < 0.05
    over = case.limits[0].bound - run.outcomes[:, :, 0]
    assert np.mean(over > 0) < 0.1
    assert np.max(over[:, -1]) < 0.01 * case.limits[0].bound
    assert run.limits[0].words.startswith("volume at least")


@pytest.mark.slow
def test_a_start_that_breaks_the_limit_is_left_for_models_that_keep_it():
    case = limited()
    case = replace(case, initial=np.float32(closed_form(case, 0.0)[0] * 1.2))
    run = profl.simulate(case, profl.prm(), rounds=25, local_steps=1, samples=300, seeds=range(3), progress=False)
    over = case.limits[0].bound - run.outcomes[:, :, 0]
    assert np.all(over[:, 0] > 0)
    assert np.all(over[:, -1] < 0)
    assert np.mean(run.excess[:, -1]) < 0.05 * (case.risk(case.stable) - case.risk(case.optimum))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {"samples": 1}),
        ({}, {"participation": 0.67}),
        ({}, {"local_steps": 3}),
        ({"one": True}, {}),
    ],
)
def test_what_is_in_no_table_keeps_the_limit_too(changes, settings):
    case = limited()
    if changes:
        case = pricing(clients=1)
        best, free = closed_form(case, 0.0)
        case = replace(case, limits=profl.OutcomeLimit(volume, at_least=1.15 * free), initial=np.float32(best / 2))
    run = profl.simulate(case, profl.prm(), seeds=range(3), **{**SMALL, "rounds": 60, **settings})
    assert np.isfinite(run.theta).all()
    assert np.mean(case.limits[0].bound - run.outcomes > 0) < 0.1
    assert np.all(run.excess[:, -1] < 0.5 * run.excess[:, 0])


def test_a_campaign_names_the_limits_and_what_is_known_of_them(tmp_path):
    pytest.importorskip("sqlalchemy")
    least = 6.0
    shop = profl.LiveProblem(
        "shop",
        profl.cases.pricing().loss,
        profl.GaussianMean(),
        np.zeros(2),
        np.array([1.0, 1.5]),
        profl.Box(0.0, 5.0),
        limits=[profl.OutcomeLimit(volume, at_least=least), profl.MaxChange(0.5)],
    )
    here = f"sqlite:///{tmp_path / 'shop.db'}", shop, profl.prm()
    campaign, rng = profl.Campaign(*here, clients=["a", "b"], samples=50), np.random.default_rng(0)
    for week in range(4):
        if week == 2:
            campaign.close()
            campaign = profl.Campaign(*here)
        for one in campaign.ask():
            assert np.sum(6 - one.theta) > least
            campaign.tell(one.id, 6 - one.theta + rng.normal(size=(50, 2)))
    campaign.ask()
    status = campaign.status()
    campaign.close()
    (words, value, error), *others = status.outcomes
    assert words == "volume at least 6"
    assert not others
    assert abs(value - 12 + 2.5) < 3.0
    assert 0 < error < 1
    assert "limit volume at least 6: about" in str(status)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: profl.OutcomeLimit(volume), "exactly one of at_most and at_least, got neither"),
        (lambda: profl.OutcomeLimit(volume, at_most=1, at_least=0), "exactly one of at_most and at_least, got both"),
        (lambda: profl.OutcomeLimit(volume, at_most=np.nan), "at_most must be"),
        (lambda: profl.OutcomeLimit("volume", at_most=1), "outcome must be a function"),
        (lambda: profl.OutcomeLimit(volume, at_most=1, confidence=0.5), "confidence must be a probability above 0.5"),
        (lambda: profl.OutcomeLimit(volume, at_most=1, weights=[0, 0, 0]), "not all 0"),
        (lambda: profl.OutcomeLimit(volume, at_most=1, weights=[1, np.inf]), "must be finite numbers"),
        (lambda: pricing(profl.OutcomeLimit(volume, at_most=1, weights=[1, 2])), "one number per client, 3, got 2"),
        (lambda: pricing(profl.OutcomeLimit(lambda theta, z: z, at_most=1)), "outcome(theta, z) of one sample must be"),
        (lambda: pricing(profl.OutcomeLimit(lambda theta, z: z["x"], at_most=1)), "outcome(theta, z)"),
        (lambda: pricing(profl.OutcomeLimit(volume, at_most=1), project=lambda theta: theta), "OutcomeLimits are for"),
        (lambda: pricing(profl.OutcomeLimit(volume, at_least=99)).optimum, "misses 'volume at least 99' by"),
        (lambda: pricing().outcomes(np.ones(2)), "has no OutcomeLimit"),
        (lambda: profl.worlds.personal(limited()), "without an OutcomeLimit"),
        (lambda: profl.simulate(limited(), profl.pofl(0.1), **SMALL), "pofl cannot keep the limit 'volume at least"),
        (lambda: profl.simulate(limited(), profl.rrm(), **SMALL), "use profl.prm()"),
        (lambda: profl.simulate(limited(), profl.pg(), **SMALL), "use profl.prm()"),
    ],
)
def test_limits_that_make_no_sense_are_refused_in_one_sentence(make, words):
    with pytest.raises(profl.InputError) as error:
        make()
    assert words in str(error.value)
    assert "\n" not in str(error.value)
