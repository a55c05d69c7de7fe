"""The case ``orange_juice``: what it states is so, and methods find it."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import profl
from profl import trees
from profl.cases.orange_juice import dollars, orange_juice, own_dollars, own_prices, shelf_prices
from profl.data.orange_juice import BRANDS, COST, PRICE, demand


@pytest.fixture(scope="module")
def case():
    return orange_juice()


def closed(case, method, **settings):
    """The share of the gap between the stable point and the optimum that the end of each run has closed."""
    run = profl.simulate(case, method, progress=False, record_every=settings["rounds"], **settings)
    return 1 - run.excess[:, -1] / (case.risk(case.stable) - case.risk(case.optimum))


def test_the_known_figures(case):
    """$ per store-week: as charged, optimum, stable point, a price list for every store; prices to the third digit."""
    found = [dollars(case, np.zeros(11)), dollars(case, case.optimum), dollars(case, case.stable), own_dollars(case)]
    np.testing.assert_allclose(found, [775.54, 876.97, 684.44, 888.35], atol=0.2)
    best = [0.173, 0.5, 0.001, -0.079, 0.105, 0.293, 0.070, 0.101, -0.038, 0.005, 0.5]
    np.testing.assert_allclose(case.optimum, best, atol=1.5e-3)
    np.testing.assert_allclose(case.stable, 0.5)


def test_the_known_figures_within_narrower_bounds():
    case = orange_juice(bound=0.3)
    found = [dollars(case, case.optimum), dollars(case, case.stable), own_dollars(case)]
    np.testing.assert_allclose(found, [861.42, 769.91, 868.14], atol=0.2)


def test_the_optimum_is_where_no_price_on_a_fine_grid_earns_more(case):
    """The profit is a sum over brands: a search over each brand alone, without the library's risk."""
    fits, grid = demand(), np.linspace(-0.5, 0.5, 2001)
    ounces = np.exp(fits.log_ounces + fits.sd**2 / 2)[:, :, None] * np.exp(fits.elasticity[:, :, None] * grid)
    earned = (PRICE[:, None] * np.exp(grid) - COST[:, None]) * ounces.mean(0)
    np.testing.assert_allclose(grid[earned.argmax(1)], case.optimum, atol=5.1e-4)
    assert earned.max(1).sum() == pytest.approx(dollars(case, case.optimum), abs=1e-3)


@pytest.mark.parametrize("store", [2, 44, 137])
def test_a_store_by_itself_takes_the_markup_of_its_elasticity(store):
    alone = orange_juice(clients=[store])
    np.testing.assert_allclose(own_prices(alone)[0], alone.optimum, atol=1e-6)
    assert own_dollars(alone) == pytest.approx(dollars(alone, alone.optimum), abs=1e-6)


def test_what_is_sampled_is_what_is_stated(case):
    """Profit and mean log ounces of 200,000 weeks of one store, up to five standard errors."""
    theta, store = np.linspace(-0.3, 0.3, 11, dtype=np.float32), trees.take(trees.cast(case.clients), 7)

    @jax.jit
    def drawn(key):
        weeks = case.reaction.sample(key, theta, store, 200_000)
        losses = jax.vmap(case.loss, (None, 0))(theta, weeks)
        return losses, weeks.mean(0), case.reaction.parameters(theta, store)

    losses, mean, f = (np.asarray(part, float) for part in drawn(jax.random.key(0)))
    assert abs(losses.mean() - case.client_risks(theta)[7]) < 5 * losses.std() / np.sqrt(len(losses))
    assert np.all(np.abs(mean - f) < 5 * np.asarray(store["sd"]) / np.sqrt(len(losses)))


def test_stores_can_be_chosen():
    assert demand().store[[0, 1, -1]].tolist() == [2, 5, 137]
    assert orange_juice(clients=10).count == 10
    chosen = orange_juice(clients=[5, 2])
    np.testing.assert_array_equal(chosen.clients["elasticity"], demand().elasticity[[1, 0]])
    alike = orange_juice(clients=4, heterogeneity=0.0)
    np.testing.assert_allclose(alike.clients["elasticity"] - demand().elasticity.mean(0), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 84}, "at most 83"),
        ({"clients": 0}, "at least 1"),
        ({"clients": [3]}, r"unknown stores \[3\]; there are: 2, 5"),
        ({"clients": [2, 2]}, "each one once"),
        ({"clients": []}, "at least one store"),
        ({"clients": "2"}, "whole number"),
        ({"bound": 0.0}, "bound must be a finite number above 0"),
        ({"heterogeneity": -1.0}, "0 or more"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(profl.InputError, match=message):
        orange_juice(**arguments)


def test_prices_are_those_of_the_brands():
    assert len(BRANDS) == len(PRICE) == len(COST) == demand().sd.shape[1] == 11
    assert np.all(COST < PRICE)
    np.testing.assert_allclose(shelf_prices(np.full(11, np.log(2))), 2 * PRICE)


@pytest.mark.slow
def test_prm_finds_the_prices_within_thirty_price_changes(case):
    """Every fourth week all stores change their prices."""
    found = closed(case, profl.prm(keep=4), rounds=30, local_steps=1, samples=4, seeds=range(10))
    assert np.all(found >= 0.97), found


STEPS = {"samples": 121, "seeds": range(10)}


@pytest.mark.slow
@pytest.mark.parametrize("method", [profl.pofl, profl.profl])
def test_the_performative_gradient_finds_the_prices(method, case):
    found = closed(case, method(0.1), rounds=800, local_steps=1, **STEPS)
    assert np.all(found >= 0.99), found


@pytest.mark.slow
def test_profl_finds_the_prices_in_spite_of_junk_and_hostile_stores(case):
    """A fifth of every store's weeks is junk, a tenth of the stores send the model backwards."""
    dirty = profl.worlds.contaminate(case, 0.2, "blob", distance=10)
    method = profl.profl(0.3, aggregate="trimmed_mean")
    found = closed(dirty, method, rounds=160, attack="sign_flip", hostile=0.1, **STEPS)
    assert np.all(found >= 0.95), found
