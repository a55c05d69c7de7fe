"""Real weeks as history: reading, the world that is fitted to them, and analysts, on a small table without noise."""

from __future__ import annotations

import gzip

import numpy as np
import pandas
import pytest

import profl
from benchmarks import real_weeks
from profl.data.dataset import MissingDataError
from profl.data.orange_juice import BRANDS, COST, PRICE

STORES, WEEKS = [2, 5, 44], np.arange(40, 110)
ELASTICITY = np.linspace(-4.0, -1.5, len(BRANDS)) + np.array([[-0.2], [0.0], [0.2]])


@pytest.fixture(scope="module")
def table():
    """A row per store, week and brand. Deals come with lower prices and sell more; rivals' prices matter."""
    rng, rows = np.random.default_rng(0), []
    for number, store in enumerate(STORES):
        for week in WEEKS:
            deal, feature = rng.integers(0, 2, (2, len(BRANDS)))
            price = 0.1 * rng.normal(size=len(BRANDS)) - 0.2 * deal
            rivals = (price.sum() - price) / (len(BRANDS) - 1)
            ounces = 9 + number + ELASTICITY[number] * price + 0.5 * rivals + 0.6 * deal + 0.3 * feature
            for b in range(len(BRANDS)):
                shown = (store, week, b + 1, ounces[b], PRICE[b] * np.exp(price[b]), deal[b], feature[b])
                rows.append(shown)
    return pandas.DataFrame(rows, columns=["store", "week", "brand", "log_oz", "price", "deal", "feature"])


@pytest.fixture(scope="module")
def weeks(table, tmp_path_factory):
    """Read from a packed file in which a brand is missing in one week, and whose rows are in no order."""
    path = tmp_path_factory.mktemp("weeks") / f"{real_weeks.FILE}.gz"
    path.write_bytes(gzip.compress(table.drop(index=3).sample(frac=1, random_state=0).to_csv(index=False).encode()))
    return real_weeks.read(path)


def test_a_week_without_all_brands_is_left_out(weeks):
    assert weeks.store.tolist() == np.repeat(STORES, len(WEEKS)).tolist()[1:]
    assert weeks.week.tolist()[:2] == [41, 42]


def test_the_world_has_the_elasticities_that_made_the_weeks(weeks):
    case = real_weeks.fit_world(weeks)
    np.testing.assert_allclose(case.clients["elasticity"], ELASTICITY, atol=1e-6)
    np.testing.assert_allclose(case.clients["sd"], 0.0, atol=1e-6)
    assert case.clients["level"][2].min() > case.clients["level"][0].max() + 1.5


def test_analysts_find_them_too_unless_they_leave_out_what_moves_both(weeks):
    careful, naive = real_weeks.least_squares(weeks, True), real_weeks.least_squares(weeks, False)
    np.testing.assert_allclose(careful, ELASTICITY.mean(0), atol=0.05)
    assert np.all(naive < careful - 0.5)  # deals are taken for prices
    np.testing.assert_allclose(
        np.diagonal(real_weeks.past(real_weeks.fit_world(weeks), weeks).pooled), careful, atol=0.1
    )


def test_best_prices_are_those_of_the_markup_rule(weeks):
    eta = np.linspace(-6.0, -4.0, len(BRANDS))
    expected = np.clip(np.log(COST / PRICE * eta / (1 + eta)), -0.5, 0.5)
    np.testing.assert_allclose(real_weeks.best_prices(weeks, eta), expected, atol=6e-4)


def test_without_the_file_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFL_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"set PROFL_DATA to a directory that holds orange_juice_weeks\.csv"):
        real_weeks.real(1, True)


def test_a_campaign_that_is_told_the_weeks_has_the_same_history(weeks):
    case = real_weeks.fit_world(weeks)
    prices, sold, more = ([f"{kind}{b}" for b in range(len(BRANDS))] for kind in ("theta", "sold", "deal"))
    shop = profl.LiveProblem(
        "juice", case.loss, case.family, np.zeros(11), np.zeros(11), profl.Box(-0.5, 0.5), names=prices, columns=sold
    )
    frame = pandas.DataFrame(np.hstack([weeks.price, weeks.ounces, weeks.deal]), columns=[*prices, *sold, *more])
    frame = frame.assign(client=weeks.store.astype(str), week=weeks.week)
    with profl.Campaign(None, shop, profl.prm(), clients=[str(store) for store in STORES], samples=1) as campaign:
        told = campaign.tell_history(frame, covariates=more)
    number = real_weeks.groups(weeks)
    plain = profl.methods.past_deployments(case, number, weeks.week, weeks.price, f=weeks.ounces, covariates=weeks.deal)
    np.testing.assert_allclose(told.pooled, plain.pooled, atol=1e-3)
    np.testing.assert_allclose(told.slope, plain.slope, atol=1e-2)
