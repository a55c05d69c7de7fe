"""Families for counts, yes and no, and choices: their slopes are exact, and less noisy than the score's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import lambertw
from scipy.stats import nbinom, poisson

import profl
from profl import random, trees
from profl.parts import filters, trusted_samples
from profl.parts.gradient import terms
from profl.run.diagnostics.data_kind import kind_findings, kind_of
from tests.problems import QUICK

EQUAL = np.full(500, 1 / 500, np.float32)


def moved(family, loss, every, f, delta):
    """The expected loss, summed over ``every`` sample with its probability at f, after f moves by delta."""
    weights = jax.nn.softmax(jax.vmap(family.log_prob, (0, None))(every, f))
    return weights @ jax.vmap(lambda z: family.moved_loss(loss, z, delta, f))(every)


def joint(z):
    """A loss of two entries that is no sum over them."""
    return jnp.where(jnp.all(z == 1), 5.0, z[0] - 3 * z[1])


PAIRS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
PRICES = np.array([0.0, 2.0, 5.0], np.float32)


@pytest.mark.parametrize(
    ("family", "loss", "every", "f", "exact"),
    [
        # E = 5 ab + a (1 - b) - 3 b (1 - a) = a - 3b + 7ab, so (1 + 7b, 7a - 3)
        (profl.Bernoulli(), joint, PAIRS, [0.2, 0.6], [5.2, -1.6]),
        (profl.Categorical(2), lambda z: jnp.asarray(PRICES)[z], np.arange(3), [0.2, 0.6], [2.0, 5.0]),
        (profl.Categorical(2), lambda z: z @ PRICES[1:], PAIRS[:3], [0.2, 0.6], [2.0, 5.0]),
        # shares 0.2, 0.3, 0.5 and a mean price of 3.1, so s_k (price_k - 3.1)
        (
            profl.Categorical(2, "logit"),
            lambda z: jnp.asarray(PRICES)[z],
            np.arange(3),
            np.log([1.5, 2.5]),
            [-0.33, 0.95],
        ),
    ],
)
def test_the_slope_in_f_is_exact_for_every_loss(family, loss, every, f, exact):
    f = jnp.array(f)
    slope = jax.grad(lambda delta: moved(family, loss, every, f, delta))(jnp.zeros(2))
    np.testing.assert_allclose(slope, exact, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "probability"),
    [
        (profl.Poisson(), lambda k, mean: poisson.pmf(k, mean)),
        (profl.NegativeBinomial(0.5), lambda k, mean: nbinom.pmf(k, 2, 2 / (2 + mean))),
    ],
)
def test_counts_move_with_their_mean_and_their_variance(family, probability):
    """A loss that is quadratic in z is known after any move; one with a kink, sales up to a stock of 8, to 3 % here."""
    k = np.arange(400)

    def means(loss, mean):
        after = family.apply_shift(k[:, None], mean - 6.0, jnp.array([6.0]))
        return probability(k, 6.0) @ np.asarray(loss(after))[:, 0], probability(k, mean) @ loss(k)

    for mean in (3.0, 6.0, 9.0):
        np.testing.assert_allclose(*means(lambda z: z**2 - 3 * z, mean), rtol=1e-5)
        np.testing.assert_allclose(*means(lambda z: np.minimum(z, 8), mean), rtol=0.03)
    assert np.all(np.isfinite(family.apply_shift(k[:3, None], jnp.array([-9.0]), jnp.array([6.0]))))  # a mean below 0


def test_the_optimal_prices_of_a_logit_are_those_of_the_closed_form():
    """Of equal clients: all prices are (1 + W(sum exp(v - 1))) / gamma."""
    case = profl.cases.choice(clients=1, goods=3, sensitivity=1.5)
    value = np.asarray(case.clients["value"][0], float)
    np.testing.assert_allclose(case.optimum, (1 + lambertw(np.exp(value - 1).sum()).real) / 1.5, atol=1e-6)
    np.testing.assert_allclose(case.stable, 5.0)


def test_the_slope_has_a_hundredth_of_the_variance_of_the_scores():
    """From one batch: moved counts know that the loss is linear, and the score reads that off the samples."""
    case = profl.cases.sales(clients=1, goods=2, link="identity")
    view, theta = case.functions.view(), np.array([2.0, 3.0], np.float32)
    client = trees.take(trees.cast(case.clients), 0)

    @jax.jit
    @jax.vmap
    def both(number):
        batch = case.reaction.sample(random.data_key(random.seed_key(0), number, 0), theta, client, 500)
        f = case.family.estimate(batch, EQUAL)
        return tuple(terms(view, second, theta, batch, EQUAL, f).f_gradient for second in ("pathwise", "score"))

    own, score = (np.asarray(leaf, float).var(0).sum() for leaf in both(np.arange(100)))
    assert own < 0.01 * score


def test_the_slope_knows_what_a_product_costs_that_nobody_took():
    """The score at f_hat is exact for what was taken, and says what it can of product 2."""
    case = profl.cases.choice(clients=1, goods=2, link="identity")
    batch, theta = np.arange(500, dtype=np.int32) % 2, np.array([2.0, 3.0], np.float32)
    f = case.family.estimate(batch, EQUAL)
    own, score = (
        terms(case.functions.view(), second, theta, batch, EQUAL, f).f_gradient for second in ("pathwise", "score")
    )
    np.testing.assert_allclose(own, -theta, rtol=1e-5)
    np.testing.assert_allclose(score, [-2.0, -1.0], atol=1e-4)


def test_links_are_scales_of_f():
    """f and its variance, by the delta method, and what one unit of f does."""
    z = np.random.default_rng(0).poisson(5.0, (500, 1)).astype(np.float32)
    plain, logs = profl.Poisson(), profl.Poisson("log")
    f, log_f = plain.estimate(z, EQUAL), logs.estimate(z, EQUAL)
    np.testing.assert_allclose(np.exp(log_f), f, rtol=1e-3)
    ratio = plain.variance(z, EQUAL, f) / logs.variance(z, EQUAL, log_f)
    np.testing.assert_allclose(ratio, f**2, rtol=1e-3)
    moved = logs.apply_shift(z, jnp.log(jnp.array([2.0])), log_f)
    np.testing.assert_allclose(moved.mean(), 2 * z.mean(), rtol=2e-3)
    nobody = profl.Categorical(2, "logit").estimate(np.zeros(500, np.int32), EQUAL)
    np.testing.assert_allclose(nobody, np.log(0.5 / 500.5), rtol=1e-5)


def test_whole_numbers_are_read_like_floating_ones():
    sales = np.random.default_rng(0).poisson(5.0, (500, 2))
    for family in (profl.Poisson(), profl.NegativeBinomial(0.2), profl.Bernoulli()):
        batch = np.minimum(sales, 1) if isinstance(family, profl.Bernoulli) else sales
        whole, floating = (family.estimate(jnp.asarray(batch, kind), EQUAL) for kind in (jnp.int32, jnp.float32))
        np.testing.assert_allclose(whole, floating)
        assert family.fits(batch)
        assert not family.fits(batch[:, 0])
    labels, family = np.array([0, 2, 1, 2]), profl.Categorical(2)
    rows = np.eye(3, dtype=np.float32)[labels][:, 1:]
    np.testing.assert_array_equal(jax.vmap(family.group_of)(rows), labels)
    assert family.fits(labels)
    assert family.fits(rows)
    assert not family.fits(np.ones((4, 3)))


def test_a_filter_sees_counts_that_are_whole_numbers():
    batch = np.random.default_rng(0).poisson(5.0, (500, 2)).astype(np.int32)
    batch[:50] = 400
    problem = SimpleNamespace(family=profl.Poisson())

    @jax.jit
    def after(batch):
        memory = trusted_samples.initial_memory(problem, filters.get("robust"), None, batch)
        return trusted_samples.filter_weights(problem, filters.get("robust"), None, batch, EQUAL, memory)[0]

    weights = np.asarray(after(batch))
    assert np.all(weights[:50] == 0)
    assert np.sum(weights > 0) > 445


def toll(key, price, city, n):
    bridge = jax.nn.sigmoid(city["taste"] - price[0])
    return {"group": jax.random.bernoulli(key, bridge, (n,)).astype(jnp.int32)}


def test_labels_alone_pass_the_filter():
    """It ended in "Need at least one array to concatenate"."""
    problem = profl.Problem(
        "toll",
        lambda price, z: -price[0] * (z["group"] == 1),
        profl.GroupShares(2),
        toll,
        clients={"taste": np.array([2.0, 3.0])},
        initial=np.ones(1, np.float32),
        project=profl.Box(0.0, 6.0),
    )
    run = profl.simulate(problem, profl.profl(jacobian=QUICK), rounds=2, samples=20, seeds=[0], progress=False)
    assert np.all(run.kept == 1)
    assert np.all(np.isfinite(run.theta))


def test_a_numerical_optimum_of_counts_needs_their_means():
    """Counts do not move smoothly with the price, whatever the family's shift."""
    case = profl.cases.sales(clients=1, goods=1)
    with pytest.raises(profl.InputError, match="needs f"):
        replace(case, reaction=profl.worlds.SampledReaction(case.reaction.sample)).solve(100)
    known = profl.worlds.SampledReaction(case.reaction.sample, case.reaction.parameters)
    solved = replace(case, reaction=known).solve(2000)
    np.testing.assert_allclose(solved.optimum, case.optimum, rtol=0.15)


DRAWS = np.random.default_rng(0)
BUYERS = DRAWS.integers(0, 4, 500)
KINDS = {
    "poisson": (DRAWS.poisson(5.0, (500, 2)), "profl.Poisson()"),
    "seldom": (DRAWS.poisson(0.05, (500, 3)).astype(np.float32), "profl.Bernoulli()"),
    "overdispersed": (DRAWS.poisson(DRAWS.gamma(2.0, 5.0, (4000, 2))), "profl.NegativeBinomial(dispersion=0.48)"),
    "yes and no": (DRAWS.integers(0, 2, (500, 3)), "profl.Bernoulli()"),
    "one column": (DRAWS.integers(0, 2, (500, 1)), "profl.Bernoulli()"),
    "labels": (BUYERS, "profl.Categorical(products=3)"),
    "one-hot": (np.eye(4, dtype=np.float32)[BUYERS][:, 1:], "profl.Categorical(products=3)"),
    "rounded": (np.round(DRAWS.normal(50.0, 2.0, (500, 2))), None),
    "numbers": (DRAWS.normal(5.0, 1.0, (500, 2)), None),
    "with groups": ({"group": BUYERS}, None),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_family_that_fits_is_named(name):
    batch, expected = KINDS[name]
    if name == "seldom":
        batch = np.minimum(batch, 1)
    kind = kind_of(batch)
    if expected is None:
        assert kind is None
        assert not list(kind_findings(profl.GaussianMean(), batch))
        return
    assert kind.short == expected
    (finding,) = kind_findings(profl.GaussianMean(), batch)
    assert finding.verdict == "warn"
    assert f"{expected} fits them, the family is GaussianMean" in finding.detail
    (finding,) = kind_findings(kind.family(), batch)
    assert finding.verdict == "ok"


def test_a_family_of_counts_for_other_numbers_is_told():
    (finding,) = kind_findings(profl.Poisson(), KINDS["numbers"][0])
    assert "Poisson is for counts, with a variance of their mean or more, and these data are not" in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sales", "choice"])
def test_prm_and_pofl_come_near_the_optimum(name):
    """``python -m benchmarks analyst`` asks for 1 % of ten seeds; here three come to 2 %."""
    case = getattr(profl.cases, name)()
    gap = case.risk(case.stable) - case.risk(case.optimum)
    settings = {"samples": 500, "seeds": range(3), "progress": False}
    for method, length in ((profl.prm(), (30, 1)), (profl.pofl(0.05), (200, 5))):
        run = profl.simulate(case, method, rounds=length[0], local_steps=length[1], **settings)
        assert run.excess[:, -1].mean() < 0.02 * gap
