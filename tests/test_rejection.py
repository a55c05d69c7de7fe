"""People who are resampled if rejected, against the formulas in ``profl.problem.rejection``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.problem.rejection import ResampleIfRejected

ROWS, D = 6, 3
X = np.random.default_rng(0).normal(size=(2, ROWS, D))
Y = np.array([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0]])
COUNT = np.array([ROWS, 4])
THETA = np.array([0.7, -1.2, 0.4])


def chance(theta, x):
    return 0.8 * jax.nn.sigmoid(x @ theta) + 0.1


def loss(theta, z):
    return jax.nn.softplus(z["x"] @ theta) - z["y"] * (z["x"] @ theta) + 0.05 * jnp.sum(theta**2)


def problem(strategic):
    return profl.Problem(
        "rejected",
        loss,
        profl.ClassMeans(),
        ResampleIfRejected(chance, strategic, loss),
        clients={"x": X, "y": Y, "count": COUNT},
        initial=lambda key: jnp.zeros(D),
    )


def by_pairs(strategic, client, deployed, theta):
    """The same sum, written out: every person as they are, and with the features of everybody else."""
    total, people = 0.0, range(COUNT[client])
    columns = list(range(D)) if strategic is None else list(strategic)
    for i in people:
        x, y = X[client, i], Y[client, i]
        g = 0.8 / (1 + np.exp(-x @ deployed)) + 0.1
        back = []
        for j in people:
            other = x.copy()
            other[columns] = X[client, j][columns]
            back.append(float(loss(theta, {"x": other, "y": y})))
        total += (1 - g) * float(loss(theta, {"x": x, "y": y})) + g * np.mean(back)
    return total / len(people)


@pytest.mark.parametrize("strategic", [None, (0, 2)], ids=["all", "two columns"])
def test_the_risk_is_the_sum_over_pairs(strategic):
    with jax.enable_x64(True):
        case, other = problem(strategic), np.array([0.1, 0.5, -0.3])
        expected = np.mean([by_pairs(strategic, client, THETA, other) for client in range(2)])
        assert case.decoupled_risk(THETA, other) == pytest.approx(expected, rel=1e-12)


def test_samples_are_the_rows_with_the_stated_probabilities():
    """All features strategic: row i comes in with probability (1 - g_i + mean g) / rows, to five standard errors."""
    n, client = 200_000, {"x": X[0].astype(np.float32), "y": np.arange(ROWS)}
    sample = jax.jit(ResampleIfRejected(chance).sample, static_argnums=3)
    x = np.asarray(sample(random.seed_key(1), np.asarray(THETA, np.float32), client, n)["x"])
    g = np.asarray(chance(THETA, X[0]))
    expected = (1 - g + g.mean()) / ROWS
    found = np.array([np.mean(np.all(np.abs(x - row) < 1e-6, axis=1)) for row in X[0]])
    assert found.sum() == pytest.approx(1.0)
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected / n)), (found, expected)
    assert np.ptp(expected) > 20 * np.sqrt(expected.max() / n)  # told apart from rows drawn evenly


def test_what_is_not_strategic_and_who_is_no_person_stays_out():
    client = {"x": X[1].astype(np.float32), "y": np.arange(12).reshape(2, 6)[1], "count": np.asarray(COUNT)[1]}
    sample = jax.jit(ResampleIfRejected(chance, (0, 2)).sample, static_argnums=3)
    batch = jax.tree.map(np.asarray, sample(random.seed_key(2), np.asarray(THETA, np.float32), client, 500))
    assert set(np.asarray(batch["y"])) == {6, 7, 8, 9}
    np.testing.assert_allclose(batch["x"][:, 1], X[1][np.asarray(batch["y"]) - 6, 1], rtol=1e-6)
    moved = np.abs(np.asarray(batch["x"])[:, 0] - X[1][np.asarray(batch["y"]) - 6, 0]) > 1e-6
    assert 0.1 < moved.mean() < 0.9


def test_retraining_runs_on_it_and_bad_columns_are_refused():
    run = profl.simulate(problem((0, 2)), profl.pfl(0.1), rounds=2, samples=20, seeds=[0], progress=False)
    assert np.all(np.isfinite(run.excess))
    for columns in ((), (-1,), ("a",)):
        with pytest.raises(profl.InputError, match="strategic must be columns"):
            ResampleIfRejected(chance, columns)
