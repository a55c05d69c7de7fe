"""The rivals of ``prm`` on a risk whose least is known, and their benchmark to its table."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from benchmarks.deployments.problems import asymmetric
from benchmarks.rivals import bench, federation, methods, page
from benchmarks.rivals.moved_risk import MovedRisk
from benchmarks.rivals.spsa import Spsa
from benchmarks.rivals.switchback import Switchback
from profl.cases import group_pricing, pricing
from profl_papers.measures import gap


@dataclass
class Bowl:
    """Two clients that lose |x - least|^2 of the unit cube, without noise."""

    least: np.ndarray

    def __call__(self, models):
        loss = np.sum((models - self.least) ** 2, axis=1)
        return federation.Seen(loss, np.full(2, 1e-6), np.zeros((2, 1)), np.ones((2, 1)), None)


def test_spsa_comes_to_the_bottom_of_a_bowl():
    bowl, search = Bowl(np.array([0.4, 0.6])), Spsa(np.array([0.9, 0.1]), np.full(2, 0.5), 60, 0, 0.02, 0.3)
    first = search.models()
    assert np.allclose(np.abs(first - search.theta), 0.02)
    search.see(bowl(first))
    assert np.array_equal(search.returned()[""], [0.9, 0.1])  # one side alone says nothing
    search.see(bowl(search.models()))
    assert np.sqrt(np.mean((search.theta - [0.9, 0.1]) ** 2)) == pytest.approx(0.3)
    for _ in range(29):
        for _ in range(2):
            search.see(bowl(search.models()))
    assert np.abs(search.returned()[""] - bowl.least).max() < 0.02


@pytest.fixture(scope="module")
def row():
    problem = pricing(clients=3, goods=2)
    least = problem.risk(problem.optimum)
    return federation.known(problem, least, least + gap(problem))


def test_a_switchback_finds_the_optimum_of_a_line(row):
    observe = federation.observer(row.problem, 500)

    def make(start, seed):
        return Switchback(start, MovedRisk(row.problem, row.lower, row.upper, 50), 12, seed, 0.3, True)

    (track,) = federation.play("own", row, observe, make, rounds=12, seeds=[0])
    assert track.excess.shape == (1, 13)
    assert track.regret.shape == (1, 12)
    assert track.excess[0, 4] == track.excess[0, 0]  # 12^(2/3) is 5: four deployments say nothing yet
    assert track.excess[0, -1] < 1e-3 * row.gap
    assert np.all(np.diff(track.regret[0]) >= 0)


def test_the_moved_risk_is_the_risk_where_f_is_exact(row):
    """Of revenue by the mean f alone; of squares by every client's; of shares by weighted samples."""
    for problem, pooled, means in (
        (row.problem, True, True),
        (asymmetric(), False, True),
        (group_pricing(3), False, False),
    ):
        theta = np.full((3 if problem.count == 3 else 10, problem.optimum.size), 2.0)
        risk = MovedRisk(problem, theta[0] - 1, theta[0] + 1, 2000)
        f, variance = risk.see(federation.observer(problem, 2000)(0, 0, theta))
        assert (risk.pooled, risk.means) == (pooled, means)
        assert f.shape == variance.shape
        assert len(f) == (1 if pooled else problem.count)
        away = theta[:1] + 0.3

        def exact(model, problem=problem, pooled=pooled):
            of = np.asarray(jax.vmap(problem.reaction.parameters, (None, 0))(model.astype(np.float32), problem.clients))
            return (np.asarray(problem.weights) @ of)[None] if pooled else of

        models = np.concatenate([theta[:1], away])
        value, slope, _ = risk(models, np.stack([exact(model) for model in models]))
        truth = problem.risks(models)
        assert value[1] - value[0] == pytest.approx(truth[1] - truth[0], rel=0.05)
        assert slope.shape == models.shape


def test_a_row_becomes_a_table(monkeypatch):
    monkeypatch.setattr(methods, "has_botorch", lambda: False)
    monkeypatch.setattr(bench, "has_botorch", lambda: False)
    track = federation.Track("default", np.full((2, 7), 0.5), np.arange(12.0).reshape(2, 6), 1.0)
    monkeypatch.setattr(methods, "prm_track", lambda row, rounds, seeds: track)
    monkeypatch.setattr(methods, "WIDTHS", (0.02,))
    monkeypatch.setattr(methods, "RADII", (0.3,))
    part = bench.row_part("housing", 2, 6, (3, 6))
    assert [each["method"] for each in part.rows] == ["prm", "spsa", "switchback", "botorch"]
    assert "pip install" in part.rows[-1]["setting"]
    whole = bench.over_all(part.rows)
    assert whole.claims == []
    assert [each["rows"] for each in whole.rows] == [1, 1]
    assert page.table(part.rows, "regret", [6]).splitlines()[0] == "| problem | `prm` | spsa | switchback |"


def test_claims_count_the_rows_where_prm_is_better():
    def of(name, method, left, regret):
        return {"part": name, "method": method, "line": {}, "per seed": {"left": left, "regret": regret}}

    rows = [of("a", "prm", [1.0], [2.0]), of("a", bench.STRONGEST, [2.0], [1.0])]
    rows += [of("b", "prm", [1.0], [1.0]), of("b", bench.STRONGEST, [None], [1.0])]
    found = bench.over_all(rows)
    assert [claim.measured for claim in found.claims] == [1.0, 0.5]
    assert found.rows[0]["leaves less than prm"] == []


def test_botorch_finds_the_optimum_of_pricing(row):
    pytest.importorskip("botorch")
    from benchmarks.rivals import bayes

    observe, weights = federation.observer(row.problem, 500), np.asarray(row.problem.weights, float)

    def composite(start, seed):
        return bayes.Composite(start, MovedRisk(row.problem, row.lower, row.upper, 50), 9, seed, bayes.Design())

    def scalar(start, seed):
        return bayes.Scalar(start, weights, 9, seed, bayes.Design())

    for make, left in ((composite, 0.01), (scalar, 0.3)):
        tracks = federation.play("", row, observe, make, rounds=9, seeds=[0])
        assert [track.setting for track in tracks] == ["tried", "modelled"]
        assert min(track.excess[0, -1] for track in tracks) < left * row.gap
        assert tracks[0].excess[0, 0] > 0.1 * row.gap


def test_every_row_is_a_problem_of_the_other_benchmarks():
    assert len(bench.bench(1).parts) == len(bench.ROWS) + len(bench.TABLE)
    assert list(bench.bench(1, quick=True).parts) == ["housing"]
