"""``profl.literal`` against Algorithm 1 and 2 written out as loops in NumPy, on data that are the same for both."""

import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.parts.literal import ClusterMeans, WindowDifferences
from profl_papers.both_forms import side_by_side
from profl_papers.claims import at_most
from profl_papers.profl2024.printed import PRINTED

ETA, H, R, GAMMAS = 0.02, 3, 2, (0.5, 0.6, 3.0, 3.2)
BASE = 6.0 + np.random.default_rng(0).normal(size=(4, 40, 2))
BASE[:, :3] += 15.0  # what the filter finds
FIRST = np.array([2.0, 1.0])


def sample(key, theta, client, n):
    """The same people every time; only their reaction differs."""
    return client["base"][:n] - client["gamma"] * theta


PROBLEM = profl.Problem(
    "fixed people",
    lambda theta, z: -jnp.sum(theta * z),
    profl.GaussianMean(),
    sample,
    clients={"base": BASE, "gamma": np.array(GAMMAS)},
    initial=FIRST,
    project=profl.Box(0.0, 5.0),
)


def robust_gradient(gradients, B=50, J1=0.01, J2=0.05):
    """Algorithm 2, line by line: the indices of S'."""
    kept, n = np.arange(len(gradients)), len(gradients)
    while True:
        mean = gradients[kept].mean(0)
        centred = gradients[kept] - mean
        tau = (centred @ np.linalg.svd(centred)[2][0]) ** 2
        edges = np.linspace(0, tau.max(), B + 1)
        counts = [np.sum((tau >= low) & (tau < high)) for low, high in pairwise(edges)]
        sparse = [k for k, count in enumerate(counts) if count < J1 * len(kept)]
        new = kept[tau < edges[sparse[0]]] if sparse else kept
        if not len(new):
            return kept
        moved = np.linalg.norm(mean - gradients[new].mean(0)) / np.linalg.norm(mean)
        kept = new
        if moved < J2 or len(kept) <= n / 2:
            return kept


def algorithm_1(steps, filtered, groups):
    """The global model after every local step, with the Jacobians of each of ``groups`` averaged at every step."""
    common, models = FIRST.copy(), []
    own, history = [FIRST.copy() for _ in GAMMAS], [[] for _ in GAMMAS]
    for t in range(steps):
        if t % R == 0:
            own = [common.copy() for _ in GAMMAS]
        parts = []
        for i, theta in enumerate(own):
            z = BASE[i] - GAMMAS[i] * theta
            z = z[robust_gradient(-z)] if filtered else z
            f, losses = z.mean(0), -z @ theta
            u = (losses[:, None] * (z - f)).mean(0)  # d log p / df = z - f for a Gaussian with sd 1
            jacobian = np.zeros((2, 2))
            if t > H:
                past = history[i][-H:]
                moves = np.array([point - theta for point, _ in past]).T
                changes = np.array([estimate - f for _, estimate in past]).T
                jacobian = changes @ np.linalg.pinv(moves)
            history[i].append((theta, f))
            parts.append((-z.mean(0), u, jacobian))
        shared = [np.mean([parts[j][2] for j in members], 0) for members in groups]
        own = [
            np.clip(theta - ETA * (first + shared[i].T @ u), 0, 5)
            for i, (theta, (first, u, _)) in enumerate(zip(own, parts, strict=True))
        ]
        if t % R == R - 1:
            common = np.mean(own, 0)
        models.append(common.copy())
    return np.array(models)


ALONE = [[0], [1], [2], [3]]
ROWS = {
    "lines 1-17": ({"filter": "none"}, False, ALONE),
    "with Algorithm 2": ({}, True, ALONE),
    "all share": ({"filter": "none", "clusters": 1, "local_steps": R}, False, [[0, 1, 2, 3]] * 4),
    "two clusters": ({"filter": "none", "clusters": 2, "local_steps": R}, False, [[0, 1], [0, 1], [2, 3], [2, 3]]),
}


@pytest.mark.parametrize("name", ROWS)
def test_literal_is_the_algorithm_written_out(name):
    options, filtered, groups = ROWS[name]
    shared = "clusters" in options
    rounds, settings = (12, {"local_steps": 1}) if shared else (6, {"local_steps": R})
    with jax.enable_x64(True):
        method = profl.literal(ETA, H, **options)
        run = profl.simulate(PROBLEM, method, rounds=rounds, samples=40, seeds=0, progress=False, **settings)
    expected = algorithm_1(12, filtered, groups)
    np.testing.assert_allclose(run.theta[0, 1:], expected if shared else expected[R - 1 :: R], rtol=1e-6)


def test_the_jacobian_is_zero_up_to_t_equal_to_H():
    estimator = WindowDifferences(2)
    state = estimator.init(jnp.zeros(1), jnp.zeros(1))
    seen = []
    for t in range(4):
        point = jnp.array([float(t**2)])
        state = estimator.update(state, point, -2 * point, jnp.ones(1), point)
        seen.append(float(estimator.estimate(state)[0, 0]))
    np.testing.assert_allclose(seen, [0, 0, 0, -2], atol=1e-6)


def test_cluster_means_are_plain_and_leave_out_who_was_not_accepted():
    jacobians = jnp.array([1.0, 1.2, 9.0, 9.2, jnp.nan]).reshape(5, 1, 1)
    shared = ClusterMeans(2)(jax.random.key(1), jacobians, jnp.array([True] * 4 + [False]))
    np.testing.assert_allclose(shared.ravel()[:4], [1.1, 1.1, 9.1, 9.1], rtol=1e-6)


def test_where_the_filter_keeps_nothing_it_is_said():
    """40 % junk at 30 standard deviations: the mean lies between both, and the first segment is sparse."""
    case = profl.worlds.contaminate(profl.cases.pricing(clients=2), 0.4, distance=30)
    run = profl.simulate(case, profl.literal(window=5), rounds=4, samples=200, seeds=0, progress=False)
    assert run.info["emptied"][0, -1] > 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.literal(filter="robust"), "filter must be 'paper', 'none' or a profl.parts.PaperFilter"),
        (lambda: profl.literal(local_steps=5), "simulate(..., local_steps=5)"),
        (lambda: profl.literal(samples=500), "samples must be profl.parts.AdaptiveSamples"),
        (
            lambda: profl.simulate(PROBLEM, profl.literal(clusters=5), rounds=1, samples=5),
            "clusters must be at most 4, one per client, got 5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(profl.InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_the_printed_items_have_the_papers_parameters():
    """Every number of the paper's row that is one number, or a list of them, is what runs."""
    for name, item in PRINTED.items():
        for key, stated in item.paper.items():
            if key in ("eps", "n") and key not in item.settings:
                continue
            run = item.settings.get(key, 0)
            values = [float(v) for v in (run if isinstance(run, tuple) else (run,)) if v is not None]
            if name == "fig6a-printed" and key == "H":  # these are heterogeneities
                continue
            for number in re.findall(r"\d+\.?\d*", str(stated)):
                assert float(number) in values, (name, key, stated, run)


def test_both_forms_stand_side_by_side():
    def result(item, measured):
        claims = [at_most("a figure", measured, 1.0)._asdict()]
        return {"item": item, "claims": claims}

    rows = side_by_side([result("table1", 0.5), result("table1-printed", 2.0), result("perdomo2020", 0.0)])
    assert [(row["item"], row["ours holds"], row["as printed holds"]) for row in rows] == [("table1", "yes", "no")]
    assert not side_by_side([result("table1", 0.5)])
