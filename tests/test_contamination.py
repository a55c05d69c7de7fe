"""Junk comes in the stated share and lies where its source says; nothing else changes.

By default every source alone, the share and what is refused; slow: every source on every case, and runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random, trees
from profl.problem.contamination import ContaminatedReaction, contaminate
from profl.problem.sources import (
    SOURCES,
    Adaptive,
    Blob,
    HeavyTail,
    LabelFlip,
    PointMass,
    Scaled,
    TwoBlobs,
    Uniform,
)
from tests.problems import CASES

N, D = 40_000, 8.0
KEY = random.seed_key(11)
SMALL = {"rounds": 2, "samples": 20, "seeds": [0], "progress": False}

slow = pytest.mark.slow
# Every source on every case compiles a program: by default the one case that all sources fit. Choices are labels alone,
# which no source replaces.
every_case = pytest.mark.parametrize(
    "case", [case if case == "strategic" else pytest.param(case, marks=slow) for case in CASES if "choice" not in case]
)


@partial(jax.jit, static_argnums=(0, 4))
def marked(reaction, key, theta, row, n):
    return reaction.sample_and_mask(key, theta, row, n)


@partial(jax.jit, static_argnums=(0, 4))
def sample(reaction, key, theta, row, n):
    return reaction.sample(key, theta, row, n)


def somewhere(problem: profl.Problem):
    return jax.tree.map(lambda leaf: leaf[0], problem.initial_models([7]))


def row_of(problem: profl.Problem, client: int = 0):
    return trees.take(trees.cast(problem.clients), client)


def draw(problem: profl.Problem, client: int = 0, n: int = N, theta=None, key=KEY):
    """(batch, which are junk) of one client."""
    theta = somewhere(problem) if theta is None else theta
    return jax.tree.map(np.asarray, marked(problem.reaction, key, theta, row_of(problem, client), n))


def draw_clean(problem: profl.Problem, client: int = 0, n: int = N, theta=None, key=KEY):
    """What the same client draws without contamination, from the same key."""
    theta = somewhere(problem) if theta is None else theta
    return jax.tree.map(np.asarray, sample(problem.reaction, key, theta, row_of(problem, client), n))


def one_client_per_source(case: str, fraction: float, **settings) -> tuple[profl.Problem, profl.Problem]:
    """(clean, contaminated) with as many clients as there are sources for the case, each with another one."""
    names = [name for name in SOURCES if name != "label_flip" or case.startswith("strategic")]
    clean = CASES[case](clients=len(names), heterogeneity=0.1)
    return clean, contaminate(clean, fraction, names, **settings)


# -- how much of it there is -------------------------------------------------------------------------------------------


@slow
@every_case
def test_a_fraction_of_zero_is_the_clean_batch_to_the_last_bit(case):
    """Op by op for one source; compiled for all, where a fused product and sum may round differently."""
    clean, contaminated = one_client_per_source(case, 0.0)
    theta = somewhere(clean)
    alone = contaminate(clean, 0.0)
    batch, is_junk = alone.reaction.sample_and_mask(KEY, theta, row_of(alone), 64)
    assert not is_junk.any()
    jax.tree.map(np.testing.assert_array_equal, batch, clean.reaction.sample(KEY, theta, row_of(clean), 64))
    for client in range(clean.count):
        batch, is_junk = draw(contaminated, client, 64)
        assert not is_junk.any()
        expected = draw_clean(clean, client, 64)
        jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5), batch, expected)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.49])
def test_the_share_of_junk_is_the_fraction_and_the_rest_is_the_clean_batch(fraction):
    problem = profl.cases.housing(clients=2)
    batch, is_junk = draw(contaminate(problem, fraction, "point", distance=D))
    assert abs(is_junk.mean() - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / N)
    clean = draw_clean(problem)
    for name in ("x", "y"):
        changed = np.any((np.asarray(batch[name]) != np.asarray(clean[name])).reshape(N, -1), axis=1)
        np.testing.assert_array_equal(changed, is_junk)


def test_what_is_junk_is_independent_of_the_data_of_the_neighbour_and_of_the_key():
    """Junk takes no preference among classes, does not come in runs, and lies elsewhere in the next batch."""
    problem = contaminate(profl.cases.strategic(clients=2), 0.3)
    batch, is_junk = draw(problem)
    again = draw(problem, key=random.seed_key(12))[1]
    marks = np.asarray(is_junk, float)
    for other in (batch["y"], draw_clean(profl.cases.strategic(clients=2))["x"][:, 0], np.roll(marks, 1), again):
        assert abs(np.corrcoef(marks, np.asarray(other, float))[0, 1]) < 4 / np.sqrt(N)


@slow
def test_sample_is_the_marked_batch_and_weights_are_those_of_the_clean_reaction():
    problem = contaminate(profl.cases.pricing(clients=2), 0.3)
    row, theta = trees.take(trees.cast(problem.clients), 0), jnp.ones(5)
    batch = problem.reaction.sample(KEY, theta, row, 50)
    np.testing.assert_array_equal(batch, problem.reaction.sample_and_mask(KEY, theta, row, 50)[0])
    np.testing.assert_allclose(problem.reaction.weights(row, 4, jnp.array(2)), [0.5, 0.5, 0, 0])


@slow
def test_a_pooled_problem_can_be_contaminated_too():
    """All members' samples count: 3 * 1000 of them, each junk with the one fraction."""
    problem = contaminate(profl.cases.pricing(clients=3, weights=[0.2, 0.3, 0.5]).pooled(), 0.3)
    batch, is_junk = draw(problem, n=1000)
    assert batch.shape == (3000, 5)
    assert abs(is_junk.mean() - 0.3) < 4 * np.sqrt(0.21 / 3000)
    row = trees.take(trees.cast(problem.clients), 0)
    weights = problem.reaction.weights(row, 2, jnp.array([2, 2, 1]))
    np.testing.assert_allclose(weights, [0.1, 0.1, 0.15, 0.15, 0.5, 0.0], atol=1e-6)


def test_two_contaminations_are_independent():
    """Labels are flipped in 30 %, features replaced in 20 %, both in 6 %."""
    problem = profl.cases.strategic(clients=1)
    flipped = contaminate(problem, 0.3, "label_flip")
    both = contaminate(flipped, 0.2, "point")
    batch, is_point = draw(both)
    is_flipped = np.asarray(batch["y"] != draw_clean(problem)["y"])
    assert abs(np.mean(is_flipped & np.asarray(is_point)) - 0.06) < 4 * np.sqrt(0.06 / N)
    assert abs(is_flipped.mean() - 0.3) < 4 * np.sqrt(0.21 / N)
    assert both.name == "strategic with 30% label_flip with 20% point"


# -- where it lies -----------------------------------------------------------------------------------------------------

CENTRE, SPREAD = np.array([1.0, -2.0, 30.0]), np.array([1.0, 0.1, 5.0])


@jax.jit
def clean_batch():
    """Three coordinates of very different scale, one number, one label."""
    wide, narrow = jax.random.split(random.seed_key(2))
    return {
        "x": CENTRE + SPREAD * random.normal(wide, N, 3),
        "y": 4.0 + 2.0 * random.normal(narrow, N),
        "label": jnp.arange(N) % 3,
    }


def offsets(source, distance=D, theta=None):
    """(junk - centre) / sd of the two floating leaves, with the clean batch's own centre and sd."""
    clean = clean_batch()
    junk = jax.jit(source, static_argnums=3)(KEY, clean, np.ones(3, np.float32) if theta is None else theta, distance)
    np.testing.assert_array_equal(junk["label"], clean["label"])
    clean, junk = jax.tree.map(np.asarray, (clean, junk))
    return tuple(np.asarray((junk[name] - clean[name].mean(0)) / clean[name].std(0), float) for name in ("x", "y"))


def along(x: np.ndarray) -> np.ndarray:
    return x @ np.full(3, 1 / np.sqrt(3))


def assert_standard_normal(noise: np.ndarray) -> None:
    """Mean 0, variance 1, no correlation between columns, each to 4 standard errors (and the 1e-3 of float32)."""
    noise = noise.reshape(N, -1)
    np.testing.assert_allclose(noise.mean(0), 0, atol=4 / np.sqrt(N) + 1e-3)
    covariance = np.cov(noise.T).reshape(noise.shape[1], -1)
    np.testing.assert_allclose(covariance, np.eye(noise.shape[1]), atol=4 * np.sqrt(2 / N) + 1e-3)


def test_blob_is_a_standard_cloud_at_the_distance():
    x, y = offsets(Blob())
    assert along(x).mean() == pytest.approx(D, abs=4 / np.sqrt(N) + 1e-3)
    assert_standard_normal(np.column_stack([x - D / np.sqrt(3), y - D]))  # the two leaves do not share their noise


def test_point_mass_is_one_point():
    x, y = offsets(PointMass())
    np.testing.assert_allclose(x, D / np.sqrt(3), rtol=1e-3)
    np.testing.assert_allclose(along(x), D, rtol=1e-3)
    np.testing.assert_allclose(y, D, rtol=1e-3)


def test_uniform_fills_the_box():
    """U(-D, D) has standard deviation D / sqrt(3) and a kurtosis of 9/5."""
    for leaf in offsets(Uniform()):
        columns = leaf.reshape(N, -1)
        np.testing.assert_allclose(columns.mean(0), 0, atol=4 * D / np.sqrt(3 * N))
        np.testing.assert_allclose(columns.std(0), D / np.sqrt(3), rtol=4 * np.sqrt((9 / 5 - 1) / (4 * N)) + 1e-3)
        assert np.all(np.abs(columns) < D * 1.001)
        assert np.all(np.abs(columns).max(0) > 0.999 * D)


def test_heavy_tail_is_cauchy():
    """|Cauchy| has quartiles tan(pi/8), 1 and tan(3 pi/8); the density 2 / (pi (1 + q^2)) gives their errors."""
    for leaf in offsets(HeavyTail()):
        columns = np.abs(leaf.reshape(N, -1)) / D
        for share in (0.25, 0.5, 0.75):
            quantile = np.tan(share * np.pi / 2)
            error = np.sqrt(share * (1 - share) / N) * np.pi * (1 + quantile**2) / 2
            np.testing.assert_allclose(np.quantile(columns, share, axis=0), quantile, atol=4 * error)
        sides = (leaf.reshape(N, -1) > 0).mean(0)
        np.testing.assert_allclose(sides, 0.5, atol=4 * 0.5 / np.sqrt(N))
        assert np.all(np.isfinite(leaf))


def test_two_blobs_lie_on_either_side_and_all_leaves_take_the_same():
    x, y = offsets(TwoBlobs())
    side = np.sign(along(x))
    np.testing.assert_array_equal(np.sign(y), side)
    assert abs(np.mean(side > 0) - 0.5) < 4 * 0.5 / np.sqrt(N)
    assert_standard_normal(np.column_stack([x - side[:, None] * D / np.sqrt(3), y - side * D]))


def test_scaled_is_the_clean_data_times_the_distance():
    clean = clean_batch()
    junk = jax.jit(Scaled())(KEY, clean, None, D)
    clean, junk = jax.tree.map(np.asarray, (clean, junk))
    np.testing.assert_allclose(junk["x"], D * clean["x"], rtol=1e-6)
    np.testing.assert_allclose(junk["y"], D * clean["y"], rtol=1e-6)
    np.testing.assert_array_equal(junk["label"], clean["label"])


@pytest.mark.parametrize("theta", [[3.0, 0.0, -4.0], [-3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
def test_adaptive_follows_the_model(theta):
    """theta has the 3 coordinates of x, so x goes where theta points; y has one, and goes by the sign of the sum."""
    x, y = offsets(Adaptive(), theta=np.array(theta, np.float32))
    towards = np.array(theta) / 5 if any(theta) else np.full(3, 1 / np.sqrt(3))
    assert_standard_normal(np.column_stack([x - D * towards, y - D * (-1 if sum(theta) < 0 else 1)]))


@pytest.mark.parametrize("sign", [1, -1])
def test_adaptive_falls_back_to_the_sign_where_the_sizes_differ(sign):
    """A model of 2 numbers in a tree, samples of 3 and of 1."""
    x, y = offsets(Adaptive(), theta={"a": np.array([2.0 * sign], np.float32), "b": np.float32(-0.5 * sign)})
    assert_standard_normal(np.column_stack([x - sign * D / np.sqrt(3), y - sign * D]))


def test_adaptive_moves_with_theta_in_a_problem_and_blob_does_not():
    clean = profl.cases.pricing(clients=1, goods=2)
    for source, moves in (("adaptive", True), ("blob", False)):
        problem = contaminate(clean, 0.4, source, distance=D)
        centres = []
        for theta in (np.array([2.0, 0.0], np.float32), np.array([0.0, 2.0], np.float32)):
            batch, is_junk = draw(problem, theta=theta)
            clean_mean = draw_clean(clean, theta=theta).mean(0)
            centres.append(np.asarray(batch[is_junk].mean(0) - clean_mean))
        step = centres[1] - centres[0]
        np.testing.assert_allclose(step, [-D, D] if moves else [0, 0], atol=0.1)


def test_label_flip_flips_exactly_the_marked_labels():
    problem = profl.cases.strategic(clients=2)
    batch, is_junk = draw(contaminate(problem, 0.3, "label_flip"))
    clean = draw_clean(problem)
    np.testing.assert_array_equal(batch["y"], np.where(is_junk, 1 - clean["y"], clean["y"]))
    np.testing.assert_array_equal(batch["x"], clean["x"])
    assert 0.25 < is_junk.mean() < 0.35


@slow
def test_leaves_of_any_rank_are_replaced_along_ones():
    images = {"image": random.normal(KEY, 1000, 3, 4)}
    junk = PointMass()(KEY, images, jnp.ones(2), D)["image"]
    offset = (junk - images["image"].mean(0)) / images["image"].std(0)
    assert junk.shape == (1000, 3, 4)
    np.testing.assert_allclose(jnp.sqrt(jnp.sum(offset**2, (1, 2))), D, rtol=1e-4)
    assert TwoBlobs()(KEY, images, jnp.ones(2), D)["image"].shape == (1000, 3, 4)
    assert Adaptive()(KEY, images, jnp.ones((6, 2)), D)["image"].shape == (1000, 3, 4)


# -- what stays as it is -----------------------------------------------------------------------------------------------


@every_case
def test_structure_shapes_and_dtypes_are_those_of_the_clean_batch(case):
    clean, contaminated = one_client_per_source(case, 0.4)
    before = draw_clean(clean, n=64)
    for client in range(clean.count):
        batch, is_junk = draw(contaminated, client, n=64)
        assert layout(batch) == layout(before)
        assert (is_junk.shape, is_junk.dtype) == ((64,), bool)
        assert is_junk.any()
        assert all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(batch))


@slow
@every_case
def test_layout_is_kept_in_double_precision(case):
    """Traced only; the branches of the switch have to agree, so this holds for every source."""
    with jax.enable_x64(True):
        clean, contaminated = one_client_per_source(case, 0.4)
        theta = somewhere(clean)
        before = jax.eval_shape(lambda: clean.reaction.sample(KEY, theta, row_of(clean), 64))
        after = jax.eval_shape(lambda: contaminated.reaction.sample(KEY, theta, row_of(contaminated), 64))
        assert layout(after) == layout(before)
        assert "float64" in str(layout(after))


@slow
def test_a_double_precision_batch_is_sampled():
    with jax.enable_x64(True):
        clean = profl.cases.housing(clients=2, heterogeneity=0)
        batch, is_junk = draw(contaminate(clean, 0.3, ["point", "blob"], distance=D), n=1000)
        before = draw_clean(clean, n=1000)
        assert batch["y"].dtype == jnp.float64
        junk = before["y"].mean() + D * before["y"].std()
        np.testing.assert_allclose(batch["y"], np.where(is_junk, junk, before["y"]), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_leaves_stay_narrow_in_double_precision(dtype):
    def narrow(key, theta, client, n):
        return (client["mu"] + random.normal(key, n, 2)).astype(dtype)

    def wide(key, batch, theta, distance):
        return batch + np.float64(1.0) * distance

    with jax.enable_x64(True):
        problem = replace(profl.cases.pricing(clients=8, goods=2), reaction=narrow, clients={"mu": np.ones(8)})
        contaminated = contaminate(problem, 0.3, [name for name in SOURCES if name != "label_flip"] + [wide])
        theta, row = jnp.ones(2), row_of(contaminated)
        assert jax.eval_shape(lambda: contaminated.reaction.sample(KEY, theta, row, 64)).dtype == dtype


def layout(batch):
    """Structure, shapes and dtypes."""
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), batch)


@slow
@every_case
def test_what_is_known_exactly_is_that_of_the_clean_reaction(case):
    problem = CASES[case](clients=2)
    contaminated = contaminate(problem, 0.3, distance=50.0)
    theta, other = somewhere(problem), 0.5 * somewhere(problem)
    for client in range(2):
        rows = row_of(contaminated, client), row_of(problem, client)
        for name, models in (("parameters", [theta]), ("decoupled", [other, theta]), ("accuracy", [other, theta])):
            told, known = getattr(contaminated.reaction, name), getattr(problem.reaction, name)
            assert (told is None) == (known is None)
            if known is not None:
                np.testing.assert_array_equal(told(*models, rows[0]), known(*models, rows[1]))


@slow
@pytest.mark.parametrize("case", ["pricing", "strategic", "solved"])
def test_optimum_stable_point_risk_and_jacobian_are_those_of_the_clean_problem(case):
    if case == "solved":
        problem = replace(profl.cases.pricing(clients=2, goods=2), reaction=demand).solve(500)
    else:
        problem = CASES[case](clients=2)
    contaminated = contaminate(problem, 0.3, distance=50.0)
    theta = np.asarray(somewhere(problem), dtype=np.float64)
    np.testing.assert_allclose(contaminated.optimum, problem.optimum, rtol=1e-9)
    np.testing.assert_allclose(contaminated.stable, problem.stable, rtol=1e-9)
    assert contaminated.risk(theta) == pytest.approx(problem.risk(theta), rel=1e-12)
    np.testing.assert_allclose(contaminated.gradient(theta), problem.gradient(theta), rtol=1e-9)
    if case != "solved":
        np.testing.assert_allclose(contaminated.jacobian(theta), problem.jacobian(theta), rtol=1e-12)
    if case == "strategic":
        assert contaminated.accuracy(theta) == pytest.approx(problem.accuracy(theta), rel=1e-12)


def demand(key, theta, client, n):
    return client["mu0"] - client["gamma"] * theta + random.normal(key, n, 2)


def test_what_the_clean_reaction_does_not_know_stays_unknown():
    problem = contaminate(replace(profl.cases.pricing(clients=2, goods=2), reaction=demand), 0.1)
    assert not problem.exact
    for name in ("parameters", "decoupled", "accuracy"):
        assert getattr(problem.reaction, name) is None
    with pytest.raises(profl.InputError, match="no closed-form risk"):
        problem.risk(np.ones(2))
    with pytest.raises(profl.InputError, match="no exact Jacobian"):
        problem.jacobian(np.ones(2))


# -- clients that differ -----------------------------------------------------------------------------------------------


@slow
def test_every_client_has_its_own_fraction_source_and_distance():
    clean = profl.cases.strategic(clients=4)
    fractions, sources = [0.0, 0.1, 0.3, 0.45], ["blob", "point", "label_flip", "point"]
    problem = contaminate(clean, fractions, sources, distance=[10.0, 20.0, 10.0, 5.0])
    assert problem.reaction.sources == (Blob(), PointMass(), LabelFlip())
    assert problem.clients["source"].tolist() == [0, 1, 2, 1]
    assert problem.clients["source"].dtype == np.int32
    batches, marks = jax.vmap(lambda row: problem.reaction.sample_and_mask(KEY, jnp.ones(2), row, N))(
        trees.cast(problem.clients)
    )
    for i, fraction in enumerate(fractions):
        batch, is_junk, before = trees.take(batches, i), np.asarray(marks[i]), draw_clean(clean, i, theta=jnp.ones(2))
        assert abs(is_junk.mean() - fraction) <= 4 * np.sqrt(fraction * (1 - fraction) / N)
        labels = is_junk if sources[i] == "label_flip" else np.zeros(N, bool)
        np.testing.assert_array_equal(batch["y"] != before["y"], labels)
        if sources[i] == "point":
            offset = (batch["x"] - before["x"].mean(0)) / before["x"].std(0)
            expected = problem.clients["distance"][i] / np.sqrt(2)
            np.testing.assert_allclose(offset[is_junk], expected, rtol=1e-3)
        np.testing.assert_allclose(batch["x"][~is_junk], before["x"][~is_junk], atol=1e-5)


def test_a_function_of_ones_own_fits():
    def zeros(key, batch, theta, distance):
        return jax.tree.map(jnp.zeros_like, batch)

    problem = contaminate(profl.cases.housing(clients=2), 0.25, zeros)
    batch, is_junk = draw(problem)
    assert problem.name == "housing with 25% zeros"
    np.testing.assert_array_equal(np.asarray(batch["y"]) == 0, is_junk)


def test_names_say_how_much_of_what():
    case = profl.cases.strategic(clients=2)
    assert contaminate(case, 0.125).name == "strategic with 12.5% blob"
    assert contaminate(case, [0.0, 0.4], ["scaled", "label_flip"]).name == "strategic with 0% to 40% scaled/label_flip"


# -- in a run ----------------------------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize("algorithm", [profl.pfl(), profl.pg()], ids=["pfl", "pg"])
def test_runs_in_every_engine(algorithm):
    clean = profl.cases.strategic(clients=3)
    problem = contaminate(clean, [0.4, 0.2, 0.3], ["blob", "label_flip", "adaptive"])
    fast = profl.simulate(problem, algorithm, **SMALL)
    slow = profl.simulate(problem, algorithm, engine="debug", **SMALL)
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=1e-4, atol=1e-4)
    assert np.all(np.isfinite(fast.excess))
    assert fast.excess[0, 0] == pytest.approx(clean.risk(fast.theta[0, 0]) - clean.risk(clean.optimum), abs=1e-6)
    unharmed = profl.simulate(clean, algorithm, **SMALL)
    assert np.max(np.abs(fast.theta[:, -1] - unharmed.theta[:, -1])) > 1e-3  # the junk is in the data


@slow
@pytest.mark.parametrize("algorithm", [profl.pfl(), profl.pg()], ids=["pfl", "pg"])
def test_a_run_without_junk_is_the_clean_run(algorithm):
    problem = profl.cases.pricing(clients=3)
    clean = profl.simulate(problem, algorithm, **SMALL)
    none = profl.simulate(contaminate(problem, 0.0), algorithm, **SMALL)
    np.testing.assert_allclose(none.theta, clean.theta, atol=1e-6)


@slow
def test_unfiltered_junk_moves_where_retraining_ends():
    """Pricing, d = 1, equal clients: junk adds eps * D * sd to the demand that retraining sees.

    It stops where mu0 - gamma theta + eps D = 0, so at PS + eps D / gamma: 0.1 * 5 / 1.5 = 1/3 above. The box ends at
    5, PS lies at 4.0 to 4.67; a start at PS moves up by 1 - (1 - eta gamma)^steps of that.
    """
    problem = profl.cases.pricing(clients=4, goods=1, heterogeneity=0)
    run = profl.simulate(
        contaminate(problem, 0.1, "point", distance=5.0),
        profl.pfl(0.1),
        initial=jnp.asarray(problem.stable, jnp.float32),
        **{**SMALL, "rounds": 20, "samples": 4000},
    )
    shift = float(np.mean(run.theta[0, 10:, 0])) - problem.stable[0]
    assert shift == pytest.approx(0.1 * 5 / 1.5, abs=0.02)


@slow
def test_equal_settings_share_compiled_code():
    def make(seed, fraction, distance):
        clean = profl.cases.strategic(clients=3, seed=seed)
        return contaminate(clean, fraction, ["blob", "label_flip", "blob"], distance=distance)

    first, second = make(0, 0.1, 10.0), make(1, [0.0, 0.2, 0.3], [5.0, 6.0, 7.0])
    assert first.reaction == second.reaction
    assert hash(first.reaction) == hash(second.reaction)
    assert first.reaction != contaminate(profl.cases.strategic(clients=3), 0.1, "blob").reaction
    profl.simulate(first, profl.pfl(), **SMALL)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    profl.simulate(second, profl.pfl(), **{**SMALL, "seeds": [4]})
    again = len(compiled)
    jax.jit(lambda x: x + 1)(0)
    assert again == 0
    assert len(compiled) > 0  # or the listener does not listen


# -- bad input ---------------------------------------------------------------------------------------------------------

CASE = profl.cases.pricing(clients=2, goods=2)


@dataclass
class Unhashable:
    def __call__(self, key, batch, theta, distance):
        return batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0.5}, r"fraction must lie in \[0, 0.5\), so that most data are clean, got 0.5; try"),
        ({"fraction": -0.1}, r"fraction must lie in \[0, 0.5\).*got -0.1"),
        ({"fraction": float("nan")}, "fraction must be a finite number, got nan"),
        ({"fraction": "0.1"}, "fraction must be a finite number, got '0.1'"),
        ({"fraction": None}, "fraction must be a finite number, got None"),
        ({"fraction": True}, "fraction must be a finite number, got True"),
        ({"fraction": [0.1, 0.7]}, r"fraction\[1\] must lie in \[0, 0.5\).*got 0.7"),
        ({"fraction": [0.1, 0.1, 0.1]}, r"fraction must be one number or one per client \(2\).*shape \(3,\)"),
        ({"distance": 0.0}, "distance must be a finite number above 0, got 0.0"),
        ({"distance": -1}, "distance must be a finite number above 0, got -1"),
        ({"distance": [1.0, float("inf")]}, r"distance\[1\] must be a finite number, got inf"),
        ({"distance": [[1.0, 2.0]]}, r"distance must be one number or one per client \(2\).*shape \(1, 2\)"),
        ({"source": "blobb"}, "unknown source 'blobb'; did you mean 'blob'"),
        ({"source": 3}, "unknown source 3; there are: blob, point"),
        ({"source": ["blob", "piont"]}, "did you mean 'point'"),
        ({"source": ["blob"]}, r"source must be one source or one per client \(2\), got 1"),
        ({"source": Blob}, r"source must be an object, got the class Blob; try Blob\(\)"),
        ({"source": Unhashable()}, "source must be hashable.*try a frozen dataclass"),
        ({"source": "label_flip"}, 'label_flip needs samples with an integer leaf "y".*got float32; try source='),
        ({"source": lambda key, batch, theta, distance: batch[:, :1]}, r"shapes \(4, 2\), got \(4, 1\)"),
        ({"source": lambda key, batch, theta, distance: {"x": batch}}, "must have the structure"),
        ({"source": lambda key, batch, theta, distance: batch.astype(int)}, "dtypes float32, got int32"),
    ],
)
def test_contaminate_refuses(arguments, message):
    with pytest.raises(profl.InputError, match=message):
        contaminate(CASE, **{"fraction": 0.1, **arguments})


def test_contaminate_refuses_what_is_no_problem_and_labels_that_are_none():
    with pytest.raises(profl.InputError, match=r"problem must be a profl.Problem.*got 'pricing'"):
        contaminate("pricing", 0.1)
    for case in ("housing", "group_pricing", "retail"):  # "y" is a real number, or there is none
        with pytest.raises(profl.InputError, match='integer leaf "y"'):
            contaminate(CASES[case](clients=2), 0.1, ["blob", "label_flip"])


def test_a_batch_without_floating_leaves_has_nothing_to_replace():
    with pytest.raises(profl.InputError, match=r"replaces floating leaves.*int32"):
        Blob()(KEY, jnp.arange(4), jnp.ones(1), D)


def test_sources_are_values():
    for source in SOURCES.values():
        assert type(source)() == source
        assert hash(type(source)()) == hash(source)
    assert ContaminatedReaction(CASE.reaction, (Blob(),)) == contaminate(CASE, 0.2).reaction
