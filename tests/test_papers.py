"""Items of earlier papers: closed forms, what their methods must find, and their quick forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from profl import random
from profl.data import MissingDataError
from profl_papers import (
    brown2022,
    credit_gaps,
    cyffers2024,
    izzo2021,
    izzo2022,
    izzo_cases,
    jin2024,
    khorsandi2025,
    lin2024,
    liu2024,
    mendler2020,
    miller2021,
    mofakhami2023,
    perdomo2020,
    ray2022,
)
from profl_papers import credit as credits
from profl_papers import reproduce as work
from profl_papers.item import Trial
from profl_papers.items import FIELD
from profl_papers.izzo_worlds import WORLDS
from profl_papers.stateful import ENDS, MOVES


@pytest.fixture(scope="module")
def made():
    """Two hundred people with ten features and a column of ones, in place of the real ones."""
    draws = np.random.default_rng(0)
    x = np.column_stack([draws.standard_normal((200, 10)), np.ones(200)])
    y = (x @ draws.standard_normal(11) + draws.logistic(size=200) > 0).astype(float)
    return credits.Rows(x, y)


# -- Izzo et al. 2022


@pytest.mark.parametrize("world", MOVES)
def test_a_world_ends_where_it_is_said_to(world):
    """m(theta, .), applied over and over, from where a run begins."""
    problem = WORLDS[world](3, 100, **({"settling": 4} if world == "linear" else {}))
    client = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float32), problem.clients)

    @jax.jit
    def ends(client):
        theta = problem.initial(random.seed_key(0)) * 0.5
        mu = jax.lax.fori_loop(0, 400, lambda _, mu: MOVES[world](theta, mu, client), client["start"])
        return mu, ENDS[world](theta, client)

    assert np.allclose(*ends(client), atol=1e-4)


def test_long_run_optima():
    """(-2A)^-1 b with risk -b' (-4A)^-1 b; in the bottleneck 0.46557 mu0 with -0.20929, and PS with -0.19098."""
    linear, narrow = WORLDS["linear"](0, 100, settling=8), WORLDS["bottleneck"](0, 100)
    slope, level = linear.clients["A"][0], linear.clients["b"][0]
    assert np.allclose(linear.optimum, np.linalg.solve(-2 * slope, level), atol=1e-4)
    assert linear.risk(linear.optimum) == pytest.approx(-level @ np.linalg.solve(-4 * slope, level))
    assert np.allclose(narrow.optimum, 0.46557 * narrow.clients["mu0"][0], atol=1e-4)
    assert narrow.risk(narrow.optimum) == pytest.approx(-0.20929, abs=1e-5)
    assert narrow.risk(narrow.stable) == pytest.approx(-(5**0.5 - 1) / 2 / ((5**0.5 + 1) / 2) + (3 - 5**0.5) / 4)


def test_spam_is_seen_through_the_stated_noise():
    """The mean of spam is off by 0.001, whatever the spread; the exact loss is that of many letters."""
    problem = WORLDS["spam"](0, 4000)
    client = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float32), problem.clients)
    theta, key = np.array([-0.5, 0.8], np.float32), random.seed_key(1)
    batch = jax.tree.map(np.asarray, jax.jit(problem.reaction.sample, static_argnums=3)(key, theta, client, 4000))
    estimated = jax.jit(problem.family.estimate)(batch, np.full(4000, 1 / 4000, np.float32))
    off = np.asarray(estimated) - np.asarray(jax.jit(problem.reaction.parameters)(theta, client))
    assert 1e-5 < np.max(np.abs(off)) < 5e-3
    assert np.std(batch["x"][batch["y"] == 1], axis=0) == pytest.approx(0.5, rel=0.05)
    mean = np.asarray(jax.jit(jax.vmap(problem.loss, (None, 0)))(theta, batch)).mean()
    assert problem.risk(np.asarray(theta, float)) == pytest.approx(mean, abs=0.02)


def test_who_learns_the_state_finds_the_optimum():
    """Where people settle in 8 deployments: 95 % of the best revenue, of which repeated descent has not even half."""
    settings = {
        "rounds": 40,
        "n": 100,
        "linear": {name: FIELD["izzo2022"].settings["linear"][name] for name in ("RGD", "SPGD")},
    }
    outcome = izzo2022.observe(Trial(settings, (0, 1)), "linear", settling=8)
    assert outcome.ended("SPGD") < 0.95 * outcome.best()
    assert outcome.ended("RGD") > 0.5 * outcome.best()


# -- Brown et al. 2022


def test_retraining_is_exact(made):
    """The gradient vanishes, and gradient and curvature are those of the loss."""
    shifts = np.stack([credits.response(np.full(11, 0.3), 2.0), np.zeros(11)])
    theta = credits.minimise(made, np.zeros(11), 1e-3, shifts)
    fit = credits.logistic(made, theta, 1e-3, shifts)
    assert np.max(np.abs(fit.gradient)) < 1e-12
    step = 1e-5 * np.eye(11)[0]
    up, down = (credits.logistic(made, theta + side * step + 0.1, 1e-3, shifts) for side in (1, -1))
    assert (up.loss - down.loss) / 2e-5 == pytest.approx(credits.logistic(made, theta + 0.1, 1e-3, shifts).gradient[0])
    assert np.allclose(
        (up.gradient - down.gradient) / 2e-5, credits.logistic(made, theta + 0.1, 1e-3, shifts).hessian[0]
    )


def test_groups_in_turn_and_by_degrees(made):
    """Delayed retraining is done after one; by degrees a gap is 0.3 of the one before; in turn it takes longer."""
    first = brown2022.start(made, 1e-3)
    delayed, each = (brown2022.in_turn(made, first, 2.0, 1e-3, 9, 3, every) for every in (3, 1))
    assert delayed.gaps[2] > 0.1
    assert np.max(delayed.gaps[3:]) < 1e-9
    assert np.max(each.gaps[3:]) > 1e-3
    gaps = brown2022.by_degrees(made, first, 2.0, 1e-3, 8, 0.3)
    assert gaps[1:] / gaps[:-1] == pytest.approx(0.3, abs=1e-6)


# -- Ray et al. 2022


def test_a_mixture_at_few_points_is_the_mixture(made):
    with jax.enable_x64(True):
        data, draws = (made.x, made.y), np.random.default_rng(1)
        theta, past = draws.standard_normal(11) / 3, draws.standard_normal((20, 11)) / 3
        weights = draws.dirichlet(np.ones(20))

        @jax.jit
        def both(data, theta, past, weights):
            def mixed(t):
                return weights @ jax.vmap(lambda d: ray2022.decoupled(data, 1.0, d, t))(past)

            return ray2022.on_mixture(data, 1.0, theta, past, weights), jax.grad(mixed)(theta)

        few, whole = both(data, theta, past, weights)
        assert np.allclose(few, whole, atol=1e-10)


def test_epochs_rest_where_they_are_said_to_and_nearer_to_the_optimum_the_longer(made):
    with jax.enable_x64(True):
        data = (jnp.asarray(made.x), jnp.asarray(made.y))
        ended = [np.asarray(ray2022.epochs(data, 1.0, 0.2, 0.9**n, 600))[-1] for n in (1, 5, 100)]
        optimum = ray2022.resting_point(data, 1.0, np.ones(()), ended[2])
        assert np.max(np.abs(ray2022.field(data, 1.0, np.asarray(1 - 0.9), ended[0]))) < 1e-6
        away = [float(np.linalg.norm(end - optimum)) for end in ended]
        assert away[0] > 1.5 * away[1] > 1.5 * 1e-2
        assert away[2] < 1e-4


# -- Perdomo et al. 2020


def test_exact_retraining_settles_in_one_step_and_an_early_stop_does_not(made):
    """The shift is one for all and the intercept absorbs it: gaps eps |theta_S| and none; stopped early they go on."""
    first = credits.minimise(made, np.zeros(11), 1e-3, np.zeros(11))
    unit = np.linalg.norm(first[list(credits.STRATEGIC)])
    gaps = perdomo2020.retrain(made, first, 100.0, 1e-3, 2, exact=True).gaps
    assert gaps[0] == pytest.approx(100 * unit)
    assert gaps[1] < 1e-10
    with jax.enable_x64(True):
        stopped = perdomo2020.retrain(made, first, 100.0, 1e-3, 4, exact=False).gaps
    assert stopped.min() > 1e-6


def test_variants_of_the_credit_benchmark_have_a_gap(made):
    """Where clients differ, the optimum is not the stable point, at which retraining ends."""
    with jax.enable_x64(True):
        x, y, slopes = made.x.reshape(2, 100, 11), made.y.reshape(2, 100), np.append(np.ones(10), 0.0)
        parts = jax.device_put((x, y, np.array([[0.1], [0.5]]) * slopes, 0.1 * slopes))
        here = credit_gaps.Benchmark(*parts)
        models, gaps = credit_gaps.retrain(here, 40)
        stable, best = credit_gaps.stable_point(here, models[-1]), credit_gaps.optimum(here, models[-1])
        risk = jax.jit(jax.value_and_grad(lambda theta: here.risk(theta, theta)))
        assert np.max(np.abs(risk(best)[1])) < 1e-10
        assert float(risk(best)[0]) < float(risk(stable)[0]) - 1e-5
    assert np.linalg.norm(np.asarray(models[-1]) - np.asarray(stable)) < 1e-6
    assert gaps[-1] < 1e-6 < gaps[0]


def test_the_notebooks_gaps_on_real_people():
    """eps = 1: 0.11436 and then 0.00284, after a first fit of 1872 steps."""
    try:
        FIELD["perdomo2020"].check_data()
    except MissingDataError as error:
        pytest.skip(str(error))
    data, zero = credits.rows(), np.zeros(11)
    with jax.enable_x64(True):
        theta, loss, steps = perdomo2020.inexact(*data, zero, 1 / len(data.y), zero)
        assert (float(loss), int(steps)) == (pytest.approx(0.609948675416671, abs=1e-12), 1872)
        gaps = perdomo2020.retrain(data, np.asarray(theta), 1.0, 1 / len(data.y), 2, exact=False).gaps
    assert gaps == pytest.approx([0.11436, 0.00284], abs=5e-6)


# -- Mendler-Duenner et al. 2020


def test_greedy_and_lazy_streams():
    """Greedy: 90 * 800 / (800 + t) but for the noise; n(k) = k has made 45 deployments after 1000 samples."""
    with jax.enable_x64(True):
        greedy, made = mendler2020.mean_estimation("1", jnp.arange(4), 1000)
        lazy, few = mendler2020.mean_estimation("k", jnp.arange(4), 1000)
    assert greedy[:, -1] == pytest.approx(90 * 800 / 1800, rel=1e-2)
    assert (made[-1], few[-1]) == (1001, 45)
    assert lazy[:, -1].mean() == pytest.approx(4.23, rel=0.2)


# -- Miller et al. 2021, Lin and Zrnic 2024


def test_the_regression_of_miller():
    """PO is where the gradient vanishes; a minimum outside the ball is replaced by the best point on it."""
    with jax.enable_x64(True):
        here = miller2021.world(jax.random.key(0), 1.0)
        assert np.max(np.abs(jax.jit(jax.grad(here.risk))(here.optimum))) < 1e-12
        gram, moment, least = np.diag([1e-3, 1.0]), np.array([1.0, 1.0]), jax.jit(miller2021.least_in_ball)
        best = least(gram, moment)
        angles = np.linspace(0, 2 * np.pi, 100_001)
        ring = miller2021.RADIUS * np.stack([np.cos(angles), np.sin(angles)], 1)
        values = np.einsum("nd,de,ne->n", ring, gram, ring) / 2 - ring @ moment
        assert np.allclose(best, ring[np.argmin(values)], atol=1e-3)
        inside = least(np.eye(2), moment)
        assert np.allclose(inside, moment)


def test_two_stages_come_nearer_with_more_samples():
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), 10)
        worlds = jax.vmap(lambda key: miller2021.world(key, 100.0))(keys)
        few, many = (np.median(miller2021.over(miller2021.two_stages, keys, worlds, n)) for n in (400, 4000))
    assert many < few / 3


def test_the_risk_is_as_convex_as_the_theory_says():
    with jax.enable_x64(True):
        assert all(claim.holds for claim in miller2021.convexity())


def test_a_bend_sets_the_floor_of_plugging_in():
    """The optimum is flat; without a bend the limit of plugging in is the optimum, with one it is not."""
    for s in (0.0, 1.0):
        here = lin2024.worlds(np.random.default_rng(0), 3, s)
        limit = lin2024.least(here.spread, here.b, here.m, np.zeros(3))
        best = here.optimum(limit)
        steps = 1e-4 * np.eye(lin2024.SIZE)
        slopes = [(here.risk(best + step) - here.risk(best - step)) / 2e-4 for step in steps]
        assert np.max(np.abs(slopes)) < 1e-5
        floor = here.risk(limit) - here.risk(best)
        assert np.all(np.abs(floor) < 1e-12) if s == 0 else np.all(floor > 1e-3)


# -- Izzo et al. 2021


@pytest.mark.parametrize(
    "name", ["mixture", *(pytest.param(n, marks=pytest.mark.slow) for n in izzo2021.KNOWN if n != "mixture")]
)
def test_known_points_of_five_problems(name):
    assert all(claim.holds for claim in izzo2021.answers(name, izzo_cases.CASES[name]()))


# -- Jin et al. 2024


def test_federated_averaging_follows_its_formula():
    """Whatever the clients, with one step between averages; and they have the means that the stable point rests on."""
    p, eps, mu = jin2024.clients(3, (0.6, 6), equal=False)
    assert p @ mu / (1 - p @ eps) == pytest.approx(100)
    assert (eps.var(), mu.var()) == (pytest.approx(0.6), pytest.approx(6))
    with jax.enable_x64(True):
        gaps = jin2024.gaps(Trial({}, (0, 1)), (0.6, 6), 1, 1000)
    assert gaps == pytest.approx(np.stack([jin2024.formula(1000)] * 2), rel=1e-3)


# -- Cyffers et al. 2024


def test_the_push_forward_gradient_classifies_best():
    ends = {
        name: cyffers2024.descend(np.random.default_rng(0), name, 0.5, 20, 25, 500).accuracy[:, -1].mean()
        for name in ("RP", "RRGD", "RGD")
    }
    assert ends["RP"] > ends["RRGD"] + 0.01 > ends["RGD"] + 0.01
    assert cyffers2024.held_slope((2, -2)) < 1e-12


# -- Mofakhami et al. 2023, Khorsandi et al. 2025


def test_the_rejected_come_back_with_other_peoples_features(made):
    with jax.enable_x64(True):
        x, weights = jnp.asarray(made.x), mofakhami2023.start(0, 11)
        seen = np.asarray(mofakhami2023.answered(jax.random.key(0), weights, x, 0.4))
        chance = 0.6 * np.mean(np.asarray(mofakhami2023.score(weights, x))) + 0.4
    strategic = list(credits.STRATEGIC)
    others = [i for i in range(11) if i not in strategic]
    assert np.array_equal(seen[:, others], made.x[:, others])
    assert np.mean(np.any(seen != made.x, axis=1)) == pytest.approx(chance, abs=0.1)
    assert set(seen[:, 0]) <= set(made.x[:, 0])


def test_a_smaller_delta_trains_on_and_snapshots_steady_retraining(made, monkeypatch):
    monkeypatch.setattr(mofakhami2023, "rows", lambda: made)
    with jax.enable_x64(True):
        fits = mofakhami2023.first_fits(0, (0.1, 0.9), 400)
        losses = {delta: float(mofakhami2023.loss(fit.weights, *map(jnp.asarray, made))) for delta, fit in fits.items()}
        path = mofakhami2023.retrain(0, fits[0.9], 0.9, 3, 10, window=2)
    assert losses[0.1] <= losses[0.9]
    assert (len(path.after), len(path.shift)) == (3, 2)


def test_snapshots_shift_rides_less():
    one, two = (khorsandi2025.ride_share(0, tau, 20, 10).mean() for tau in ("1", "2"))
    assert two < one / 2


# -- Liu et al. 2024


def test_epochs_and_what_early_steps_are_worth():
    """Epochs fill the samples; more of an epoch used, nearer to the optimum."""
    rate, distance, steps = liu2024.epochs(1000, 0.1, 2.0, 1.0)
    assert len(rate) == len(distance) == len(steps)
    assert steps.sum() >= 1000 > steps[:-1].sum()
    away = liu2024.descend((0, 1), 5, np.array([0.0, 0.75]), 5000, (0.012, 2.0, 1.0))[:, -1].mean(0)
    assert away[1] < away[0] - 0.05


# -- quick forms


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELD)
def test_an_item_runs_quickly(name):
    try:
        FIELD[name].check_data()
    except MissingDataError as error:
        pytest.skip(str(error))
    found = work.run(FIELD[name], range(2), quick=True)
    assert found["rows"]
    assert all(claim["measured"] is not None for claim in found["claims"])
    for panel in found["panels"]:
        for line in panel["lines"]:
            assert len(line["x"]) == len(line["mean"]) == len(line["low"]) == len(line["high"]) > 1


def test_the_recorded_figures_of_real_people():
    """Brown et al.: the fit on the rows as they are, and the advantages at eps = 25 under delayed retraining."""
    try:
        FIELD["brown2022"].check_data()
    except MissingDataError as error:
        pytest.skip(str(error))
    data = credits.rows()
    lam = 1 / len(data.y)
    fit = credits.logistic(data, brown2022.start(data, lam), lam, np.zeros(11))
    assert fit.loss == pytest.approx(0.609992, abs=1e-6)
    turns = brown2022.in_turn(data, brown2022.start(data, lam / 3), 25, lam / 3, 10, 3, 3)
    assert turns.advantages == pytest.approx([1.0221, 1.0110, 1.0], abs=2e-4)
