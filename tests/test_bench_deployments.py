"""Benchmark ``deployments`` on one row with one seed, to the file and the picture; and the bandit by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from benchmarks import coded, command
from benchmarks.deployments import bench as deployments
from benchmarks.deployments import methods, picture, trials
from benchmarks.deployments.bandit import bandit, space
from benchmarks.deployments.problems import no_reaction


class Parabola:
    """A quadratic through what was seen, by least squares: a surrogate that knows housing's risk."""

    def fit(self, x, y):
        self.line = np.polyfit(x[:, 0], y, 2)

    def predict(self, x, return_std=False):
        mean = np.polyval(self.line, x[:, 0])
        return (mean, np.full(len(x), 0.01)) if return_std else mean


def test_the_bandit_finds_the_valley_of_the_risk_it_has_seen():
    case = profl.cases.housing()
    found = bandit(case, rounds=12, samples=500, seeds=[0], surrogate=lambda size: Parabola())
    assert found.excess.shape == (1, 13)
    assert found.excess[0, -1] < 0.05 * found.excess[0, 0]
    assert found.regret[0] > 0
    assert [side.tolist() for side in space(case)] == [[-10.0], [10.0]]


def test_the_gaussian_process_is_one():
    pytest.importorskip("sklearn")
    found = bandit(profl.cases.housing(), rounds=12, samples=500, seeds=[0])
    assert found.excess[0, -1] < 0.1 * found.excess[0, 0]


def test_without_a_model_space_the_bandit_looks_where_runs_start():
    lower, upper = space(no_reaction())
    assert np.all((lower > -5) & (lower < -2) & (upper > 2) & (upper < 5))


@dataclass(frozen=True)
class Quick(profl.methods.Method):
    """Stands in for the method of the claims and is quick to compile: retraining that states what it expects."""

    name = methods.SUBJECT

    def step(self, problem, state, theta, arrival, key):
        def mean_loss(model):
            return arrival.weights @ jax.vmap(problem.loss, (None, 0))(model, arrival.batch)

        loss, slope = jax.value_and_grad(mean_loss)(theta)
        return problem.project(theta - 0.01 * slope), state, {"loss": loss}

    def open(self, problem, theta):
        return jnp.zeros(())

    def combine(self, problem, server, theta, reports, weights, accepted, key):
        model, _, mail = super().combine(problem, server, theta, reports, weights, accepted, key)
        return model, server + 1, mail

    def forecast(self, problem, server):
        return profl.methods.Forecast(1 / server, 0.1 / server, 1 / server, 0.0)


@pytest.mark.parametrize("subject", [Quick, pytest.param(profl.prm, marks=pytest.mark.slow)])
def test_one_row_to_the_file_and_the_picture(subject, tmp_path, monkeypatch):
    monkeypatch.setitem(profl.methods.ALGORITHMS, methods.SUBJECT, subject)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # the tests after this one need what was compiled
    monkeypatch.setattr(deployments, "QUICK_ROWS", ("housing",))
    monkeypatch.setattr(deployments.trials, "HARMED", ())
    monkeypatch.setattr(deployments.trials, "LATEST", 12)
    monkeypatch.setattr(methods, "RATES", (0.03,))
    monkeypatch.setattr(
        methods, "METHODS", [each for each in methods.METHODS if each.name in (methods.SUBJECT, "pfl", "pofl")]
    )
    path = tmp_path / "bench.json"
    result = CliRunner().invoke(
        command.app, ["deployments", "--quick", "--seeds", "1", "--workers", "1", "--json", str(path)]
    )
    assert result.exit_code in (0, 1), result.output
    assert "per seed" not in result.output
    (item,) = json.loads(path.read_text())["items"]
    row = next(row for row in item["rows"] if row["part"] == "housing" and row["method"] == methods.SUBJECT)
    assert len(row["line"]["mean"]) == 1 + deployments.QUICK_ROUNDS
    assert row["per seed"]["share left"] == [pytest.approx(row["share left"])]
    names = {"claim", "expected", "measured", "threshold", "holds", "paper", "far"}
    assert all(set(claim) == names for claim in item["claims"])
    assert {"housing: share left", "all rows: best pofl's excess over its, geometric mean"} <= {
        claim["claim"] for claim in item["claims"]
    }
    drawn = tmp_path / "picture.png"
    picture.draw(str(path), str(drawn))
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_one_run_says_when_it_would_stop_and_what_shorter_ones_find():
    """A settled run repeats the one without a rule until it ends."""
    case, method, rule = profl.cases.housing(), Quick(), profl.StopWhenSettled(tolerance=0.1, least=3)
    settings = {"local_steps": 1, "samples": methods.SAMPLES, "seeds": range(2), "progress": False}
    long = methods.follow(case, method, rounds=30, seeds=range(2))
    stopped = profl.simulate(case, method, stop=rule, rounds=30, **settings)
    assert trials.rounds_until_settled(rule, long.forecast, 30).tolist() == list(stopped.settled)
    assert 3 < stopped.settled[0] < 30
    short = methods.run(case, method, **settings | {"rounds": 12})
    for one, other in zip(long.first(12)[1:], short[1:], strict=True):
        assert (one is None and other is None) or np.allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("attack", ["none", "sign_flip", "f_hat"])
def test_an_attack_as_data_is_the_attack(attack):
    case, method = profl.cases.housing(clients=5), profl.pofl(jacobian="exact", aggregate="median")
    settings = {"rounds": 5, "samples": 50, "seeds": [0]}
    share = 0.0 if attack == "none" else 0.4
    found = coded.attacked(case, method, [(attack, share)], **settings)[attack, share]
    hostile = {} if attack == "none" else {"attack": attack, "hostile": share}
    plain = profl.simulate(case, method, progress=False, **hostile, **settings)
    np.testing.assert_allclose(found.theta, plain.theta, rtol=1e-6)


def test_where_nothing_reacts_only_the_worst_seed_against_retraining_counts():
    """Excess 2 and 1 against PFL's 1 and 4: the worst ratio is 2, though the means say otherwise."""

    def made(*ends):
        return methods.Outcome("", np.array([[9.0, end] for end in ends]), np.zeros(2), None, np.zeros(2, bool))

    (claim,) = deployments.no_worse("made", made(2.0, 1.0), made(1.0, 4.0), 0.0)
    assert claim.measured == 2
    assert not claim.holds
    assert len(deployments.no_worse("made", made(2.0, 1.0), made(1.0, 4.0), 0.5)) == 2
