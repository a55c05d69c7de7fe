"""Wild problems: their answers, their noise against their exact risk, and the form of the benchmark."""

from __future__ import annotations

from functools import cache, partial

import jax
import numpy as np
import pytest

from benchmarks.bench import run
from benchmarks.wild import bench, outcome, table
from profl_papers.drawn.draw import SHAPES, by_shape, draw
from profl_papers.drawn.solver import Known, Risk, minimum_nearby, solve
from profl_papers.drawn.world import LOSSES

SEEDS = (2, 11, 12, 14)  # quantile, profit, square and profit with one parameter or three: quick to compile


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimum_of_a_drawn_problem_is_not_above_its_stable_point_or_its_start(seed):
    known = solve(draw(seed).problem)
    assert known.optimum_risk <= min(known.stable_risk, known.start_risk) + 1e-9


def test_a_draw_is_the_same_again_and_seeds_reach_every_loss_and_shape():
    first, again = draw(7), draw(7)
    assert first.text == again.text
    assert all(
        np.array_equal(first.problem.clients[name], again.problem.clients[name]) for name in again.problem.clients
    )
    groups = by_shape(range(1000))
    assert set(groups) == set(SHAPES)
    assert {shape.loss for shape in SHAPES} == set(LOSSES)


def sample_mean_and_risk(problem, samples):
    """(the mean loss of many samples at the start, its standard error, the exact risk), client 0."""
    client = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float32), problem.clients)
    theta = np.asarray(problem.initial(jax.random.key(0)))
    losses, exact = losses_and_risk(problem.reaction, problem.loss, samples, theta, client)
    losses = np.asarray(losses, float)
    return losses.mean(), losses.std() / np.sqrt(samples), float(exact)


@partial(jax.jit, static_argnums=(0, 1, 2))
def losses_and_risk(reaction, loss, samples, theta, client):
    batch = reaction.sample(jax.random.key(1), theta, client, samples)
    return jax.vmap(loss, (None, 0))(theta, batch), reaction.decoupled(theta, theta, client)


draw_once = cache(draw)
"""Every loss looks through the same problems, of which drawing takes the most time."""


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_exact_risk_is_the_mean_loss_of_the_samples(loss):
    """Every noise of one loss, 20,000 samples each: within four standard errors."""
    seen = set()
    for seed in range(200):
        drawn = draw_once(seed)
        noise = drawn.text.split(" | ")[1].split(", ")[1 + ("spread moves" in drawn.text)]
        if drawn.problem.reaction.loss == loss and noise not in seen and drawn.problem.count <= 10:
            seen.add(noise)
            mean, error, exact = sample_mean_and_risk(drawn.problem, 20_000)
            assert abs(mean - exact) < 4.5 * error + 1e-4 * (1 + abs(exact)), drawn.text
    assert len(seen) >= 3


def test_named_problems_have_the_answers_that_are_known():
    idle = table.idle_weight()
    known = solve(idle)
    gamma = idle.weights @ idle.clients["b"]
    assert np.allclose(known.optimum, idle.weights @ idle.clients["a"] / (2 * gamma), atol=1e-3)
    assert np.allclose(known.stable, 2 * known.optimum, atol=1e-2)
    two = Risk(table.two_minima())
    low, high, between = (two.value(np.full(2, price)) for price in (1.6, 6.6, 3.2))
    assert high < low < between < 0


def test_a_gap_that_is_nearly_zero_is_not_the_scale():
    theta = np.zeros(1)
    small = Known(theta, theta, theta, 0.0, 0.001, 1.0)
    assert not outcome.is_judged(small)
    assert outcome.scale(small) == 1.0
    assert outcome.scale(small._replace(stable_risk=0.5)) == 0.5


def row(seed, left, over_start, covered=True):
    return {
        "part": bench.DRAWN,
        "seed": seed,
        "judged": True,
        "prm: left": left,
        "prm: over its start": over_start,
        "prm: over pfl's end": -1.0,
        "prm: covered": covered,
        "prm: error": 0.1,
    }


def test_the_report_counts_what_ends_above_its_start():
    part = bench.over_all([row(0, 0.001, -1.0), row(1, 0.002, -1.0), row(2, None, None, False)])
    held = {claim.claim: claim.holds for claim in part.claims}
    assert held["prm: share left, median"]
    assert not held["prm: ends above its start"]
    assert not held["prm: ends above PFL's end"]
    assert part.rows[0]["diverged"] == 1


def test_the_form_of_a_quick_run(monkeypatch):
    figures = {name: value for name, value in row(0, 0.1, -0.1).items() if name not in ("seed", "part")}
    monkeypatch.setattr(bench, "compare_on", lambda *arguments: figures)
    monkeypatch.setattr(bench, "solve", lambda problem: None)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # the tests after this one need what was compiled
    result = run({"item": "wild"}, bench.bench(seeds=5, quick=True))
    assert len([each for each in result["rows"] if each.get("part") == "all drawn"]) == 1
    assert sorted(each["seed"] for each in result["rows"] if each["part"] == bench.DRAWN) == list(range(bench.QUICK))


def test_a_start_where_the_reaction_costs_nothing_is_not_taken_for_no_reaction():
    """Prices of zero: revenue does not feel the demand there, and PS is still not PO."""
    drawn = draw(49)
    assert drawn.text.endswith("from the lower edge")
    known = solve(drawn.problem)
    assert known.gap > 1
    residual = known.stable - np.clip(known.stable - Risk(drawn.problem).held(known.stable, known.stable)[1], 0, 10)
    assert np.abs(residual).max() < 1e-3


def test_the_minimum_nearby_is_the_one_of_the_valley():
    """(x^2 - 1)^2 + x / 4 has its lower minimum at about -1; from 0.3 the valley leads to about 1."""

    def valued(x):
        return float((x[0] ** 2 - 1) ** 2 + x[0] / 4), 4 * x * (x**2 - 1) + 0.25

    end = minimum_nearby(valued, np.array([0.3]), np.array([[-3.0, 3.0]]))
    assert end[0] == pytest.approx(0.9674, abs=1e-3)
