"""History first: what past deployments say, how far they are believed, and what ``prm`` and campaigns make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import profl
from profl import trees
from profl.campaign.past import fit_table, read_table
from profl.campaign.prospects import prospects, slope_error
from profl.campaign.setting_up import as_world
from profl.methods import past_deployments
from profl.methods.prm.fixed_effects import fit_panel, within
from profl.methods.prm.past import add_history, client_history, update_factor
from profl.methods.prm.response import Moments
from profl.run.plan import compiled_first_state, first_states, make_plan
from tests.campaign_shop import PROBLEM
from tests.test_campaign import Shop

STORES, WEEKS = 6, 40
TRUTH = np.array([[-2.0, 0.5], [0.0, -1.0]])


def panel(seed=0, confounded=1.0, noise=0.1):
    """(client, week, prices, sales): good weeks have higher prices; slopes are [[-2, 0.5], [0, -1]] in the mean."""
    rng = np.random.default_rng(seed)
    client, week = np.divmod(np.arange(STORES * WEEKS), WEEKS)
    shock = rng.normal(size=(WEEKS, 2))
    price = 0.2 * (confounded * shock[week] + rng.normal(size=(client.size, 2)))
    slope = TRUTH + np.linspace(-0.3, 0.3, STORES)[:, None, None] * np.eye(2)
    sold = np.einsum("nps,ns->np", slope[client], price) + shock[week] + client[:, None]
    return client, week, price, sold + noise * rng.normal(size=sold.shape)


def fitted(client, week, price, sold, covariates=None, effects=True):
    covariates = np.zeros((client.size, 0)) if covariates is None else covariates
    return fit_panel(client, week, price, sold, covariates, STORES, effects, ["tea", "coffee"])


def test_fixed_effects_remove_what_moves_prices_and_sales_together():
    """Ordinary regression finds slopes that good weeks have made; without week effects they are off by over a unit."""
    rows = panel()
    fit, naive = fitted(*rows), fitted(*rows, effects=False)
    assert np.all(np.abs(fit.pooled - TRUTH) < 3 * fit.error + 0.02)
    assert np.max(np.abs(naive.pooled - TRUTH)) > 1.0
    own = fit.own[:, 0, 0] - fit.own[:, 0, 0].mean()
    assert np.corrcoef(own, np.linspace(-0.3, 0.3, STORES))[0, 1] > 0.9
    assert np.all(fit.error < 0.12)


def test_robust_errors_cover_the_truth():
    """95 % intervals by the errors of six clusters, over 40 draws of a panel whose clients have the same slopes."""
    misses = 0
    for seed in range(40):
        client, week, price, sold = panel(seed)
        sold = sold - np.linspace(-0.3, 0.3, STORES)[client][:, None] * price
        fit = fitted(client, week, price, sold)
        misses += np.sum(np.abs(fit.pooled - TRUTH) > 2.571 * fit.error)
    assert misses <= 20  # of 160; eight are expected


def test_a_covariate_is_regressed_out_and_gaps_in_the_table_do_not_matter():
    client, week, price, sold = panel(noise=0.01)
    promoted = np.random.default_rng(1).integers(0, 2, (client.size, 1)).astype(float)
    price, sold = price - 0.3 * promoted, sold + 0.6 * promoted - 0.3 * promoted * TRUTH.sum(1)
    there = np.random.default_rng(2).random(client.size) > 0.2
    fit = fitted(*(part[there] for part in (client, week, price, sold)), promoted[there])
    without = fitted(*(part[there] for part in (client, week, price, sold)))
    assert np.all(np.abs(fit.pooled - TRUTH) < 0.1)
    assert np.max(np.abs(without.pooled - TRUTH)) > 0.3
    left = within(sold[there], [client[there], week[there]])
    assert max(abs(left[client[there] == 0].mean()), abs(left[week[there] == 3].mean())) < 1e-8


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda price, week: price * [1.0, 0.0] + [0.0, 3.0], "coffee never varies at any client"),
        (lambda price, week: np.stack([price[:, 0], np.sin(week)], 1), "coffee varies in this history only together"),
        (lambda price, week: price[:, [0, 0]], "tea and coffee vary only together"),
    ],
)
def test_history_that_says_nothing_of_a_price_is_one_sentence(spoil, said):
    client, week, price, sold = panel()
    with pytest.raises(profl.InputError, match=said):
        fitted(client, week, spoil(price, week), sold)


CASE = profl.cases.pricing(clients=STORES, goods=2)


def test_calls_that_cannot_be_meant_are_one_sentence():
    client, week, price, sold = panel()
    past = past_deployments(CASE, client, week, price, f=sold)
    calls = {
        "belief must be 0 or more": lambda: past_deployments(CASE, client, week, price, f=sold, belief=-1),
        "give either data": lambda: past_deployments(CASE, client, week, price),
        "client must be numbers from 0 to 5": lambda: past_deployments(CASE, client + 1, week, price, f=sold),
        "must have a row for each of 240": lambda: past_deployments(CASE, client, week, price, f=sold[1:]),
        "got NaN or Inf": lambda: past_deployments(CASE, client, week, price, f=sold * np.nan),
        "it takes more of them": lambda: past_deployments(CASE, client[:9], week[:9], price[:9], f=sold[:9]),
        "history must be what profl.methods.past_deployments makes": lambda: profl.prm(history=3),
        "of another problem": lambda: profl.prm(history=past).check(profl.cases.pricing(clients=3, goods=2)),
    }
    for said, call in calls.items():
        with pytest.raises(profl.InputError, match=said):
            call()
    assert past == past_deployments(CASE, client, week, price, f=sold)
    assert past != replace(past, belief=0.1)
    assert "past deployments of 6 clients" in profl.prm(history=past).settings()["history"]
    assert "history" not in profl.prm().settings()  # nothing changes for who has none


def test_batches_are_estimated_whatever_their_sizes():
    client, week, price, sold = panel()
    batches = [np.tile(row, (2 + n % 2, 1)) for n, row in enumerate(sold)]
    past = past_deployments(CASE, client, week, price, batches)
    np.testing.assert_allclose(past.pooled, past_deployments(CASE, client, week, price, f=sold).pooled, atol=1e-4)


def test_all_clients_together_believe_history_no_more_than_its_bias_allows():
    """A slope of 2 with a belief of 0.3: the bias has the variance 0.36, however many clients saw it."""
    past = past_deployments(CASE, *panel(noise=1e-4)[:3], f=panel(noise=1e-4)[3], belief=0.3)
    history = client_history(past, jnp.int32(1))
    history = history._replace(bias_variance=jnp.asarray((0.3 * past.pooled) ** 2, float), centre=jnp.zeros(2))
    nothing = Moments(jnp.zeros(2), jnp.zeros((6, 6)), jnp.zeros((2, 6)))
    moments = add_history(nothing, history, jnp.zeros(2), jnp.zeros(2), jnp.ones(2))
    of_all = 1 / (STORES * moments.gram[0, 1, 1])
    np.testing.assert_allclose(of_all, 0.36, rtol=0.3)
    np.testing.assert_allclose(moments.linear[0, 1] / moments.gram[0, 1, 1], past.slope[1, 0, 0], rtol=1e-4)
    assert moments.gram[0, 0, 0] == 0  # of the level history says nothing


def test_the_bias_that_planned_deployments_show_is_found_by_em():
    """Slopes three beliefs away from history: the factor climbs to about nine, and stays at one where they agree."""
    past = past_deployments(CASE, *panel()[:3], f=panel()[3])
    bias = jnp.full((2, 2), 0.09)
    history = client_history(past, jnp.int32(0))._replace(bias_variance=bias)
    for off, expected in ((0.9, 9.0), (0.0, 1.0)):
        own = history
        for _ in range(30):
            known = own.factor * bias / (own.factor * bias + 0.01)  # planned deployments: variance 0.01
            own = update_factor(own, own.pooled + known * off, known * 0.01)
        np.testing.assert_allclose(own.factor, expected, rtol=0.02)


# -- prm ---------------------------------------------------------------------------------------------------------------


def past_pricing(case, times=1.0, seed=0):
    rng = np.random.default_rng(seed)
    start = np.asarray(case.initial_models((0,)))[0]
    client, week = np.divmod(np.arange(case.count * WEEKS), WEEKS)
    price = start + 0.3 * rng.normal(size=(client.size, start.size))
    gamma = np.asarray(case.clients["gamma"])[client][:, None]
    sold = 10 - times * gamma * price + rng.normal(size=WEEKS)[week][:, None] + 0.05 * rng.normal(size=price.shape)
    return past_deployments(case, client, week, price, f=sold)


def test_prm_is_nearer_with_history_and_no_worse_in_the_end_with_a_wrong_one():
    """Three deployments with history against three from nothing; one program for all histories."""
    case = profl.cases.pricing(clients=4, goods=3)
    short = {"rounds": 12, "local_steps": 1, "samples": 100, "seeds": range(2), "progress": False}
    none = profl.simulate(case, profl.prm(keep=8), **short).excess.mean(0)
    right, wrong = (
        profl.simulate(case, profl.prm(keep=8, history=past_pricing(case, times)), **short) for times in (1.0, 0.7)
    )
    assert right.excess.mean(0)[3] < 0.5 * none[3]
    gap = case.risk(case.stable) - case.risk(case.optimum)
    assert wrong.excess.mean(0)[-1] < 1.1 * none[-1] + 1e-3 * gap
    assert np.all(right.info["history_bias"][:, 1:] >= 1.0)


def test_every_client_begins_with_its_own_history():
    """Whoever makes the first states: all at once, or one client's process."""
    past = past_pricing(CASE)
    config = profl.RunConfig(rounds=3, local_steps=1, samples=10)
    plan = make_plan(CASE, profl.prm(keep=4, history=past), config)
    theta = trees.take(plan.models, 0)
    own = compiled_first_state(plan.settings, plan.population, theta, 3).own.history
    everybody = first_states(plan.settings, plan.population, theta).own.history
    np.testing.assert_allclose(own.slope, past.slope[3], rtol=1e-6)
    np.testing.assert_allclose(everybody.slope, past.slope, rtol=1e-6)


@pytest.mark.slow
def test_every_engine_takes_history_alike():
    case = profl.cases.pricing(clients=4, goods=3)
    method, short = profl.prm(keep=8, history=past_pricing(case)), {"rounds": 3, "local_steps": 1, "samples": 100}
    run = profl.simulate(case, method, seeds=[0], progress=False, **short)
    again = profl.simulate(case, method, seeds=[0], progress=False, engine="debug", **short)
    clients = profl.worlds.simulated_clients(case, method, samples=100, seed=0)
    live = profl.train(case, method, clients, seed=0, progress=False, **short)
    np.testing.assert_allclose(again.theta, run.theta, rtol=1e-4)
    np.testing.assert_allclose(live.theta, run.theta, rtol=1e-4)


# -- campaigns ---------------------------------------------------------------------------------------------------------


def weeks(scale=1.0, seed=0, shops=("Basel", "Bern")):
    rng, rows = np.random.default_rng(seed), []
    for week in range(20):
        shock = rng.normal(size=2)
        for shop in shops:
            price = np.array([2.0, 3.0]) + 0.3 * rng.normal(size=2)
            sold = 8 - 1.5 * price + shock + 0.3 * rng.normal(size=(3, 2))
            rows += [[shop, week, *(scale * price), *day] for day in sold]
    return pandas.DataFrame(rows, columns=["client", "week", "apples", "pears", "sold_apples", "sold_pears"])


SHOP = Shop.problem()


def test_a_campaign_is_told_its_history_once_and_before_anything_else(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    made = {"clients": ["Basel", "Bern"], "samples": 3}
    method = profl.prm(keep=4)
    with profl.Campaign(url, SHOP, method, **made) as campaign, profl.Campaign(url, SHOP, method) as other:
        for frame, said in (
            (weeks(100.0), "typically .* times those of this campaign: are they in other units"),
            (weeks(shops=("Basel", "Chur")), "Chur"),
            (weeks().drop(columns="pears"), "missing: pears"),
            (weeks().assign(pears=3.0), "pears never varies"),
        ):
            with pytest.raises(profl.InputError, match=said):
                campaign.tell_history(frame)
        asked = campaign.ask()
        past = campaign.tell_history(weeks())
        assert campaign.tell_history(weeks()) == past  # the same again is harmless
        with pytest.raises(profl.InputError, match="another history was told on"):
            other.tell_history(weeks(seed=1))
        with pytest.raises(profl.InputError, match=r"typically .* times those that were told"):
            campaign.tell(asked[0].id, np.full((3, 2), 400.0))
        events = [event.kind for event in campaign.events()]
        assert events == ["opened", "asked", "asked", "history"]
        assert other._journal.state().participants[0].now.state.own.history is not None
        assert campaign.ask()[0].id == asked[0].id
    with profl.Campaign(url, SHOP, profl.prm(keep=4)) as again:  # of the same identity: history is in the log
        assert again._journal.fold.plan.settings.method.history == past
    with profl.Campaign(None, SHOP, profl.pofl(), **made) as campaign, pytest.raises(profl.InputError, match="for prm"):
        campaign.tell_history(weeks())


def test_history_after_the_first_answer_is_refused():
    case = profl.cases.pricing(clients=2, goods=2)
    campaign = profl.Campaign(None, case, profl.prm(keep=4), clients=["Basel", "Bern"], samples=3)
    campaign._teller._tellings = lambda: {"Basel": ["something"]}
    table = weeks().rename(columns={"apples": "theta[0]", "pears": "theta[1]"})
    with pytest.raises(profl.InputError, match="history comes before the first deployment is told"):
        campaign.tell_history(table)


def test_the_optimum_by_the_history_and_what_an_experiment_gains():
    """Demand 8 - 1.5 price: the best price is 2.67; what is not known of the slopes is worth an experiment."""
    frame = weeks(shops=("Basel", "Bern", "Chur", "Olten"))
    clients = {name: i for i, name in enumerate(sorted(set(frame["client"])))}
    world = as_world(SHOP, 4)
    table = read_table(frame, clients, SHOP.names, np.zeros((1, 2)), world.family, list(SHOP.columns))
    past = fit_table(world, table, SHOP.names, 0.3, True)
    found = prospects(world, table, past)
    assert np.all(np.abs(found.optimum - 8 / 3) < 2 * found.error + 0.1)
    assert np.all(found.error < 1.5)
    first, last = found.experiments[0], found.experiments[-1]
    assert 0 < first.gain <= found.excess
    assert first.net <= last.net
    assert found.pays is not None
    by_data, with_bias = slope_error(past)
    assert np.all(by_data < with_bias)
    sure = prospects(world, table, replace(past, belief=0.0, pooled_error=1e-6 * past.pooled_error))
    assert sure.pays is None or sure.pays.net < 1e-3  # who knows all has nothing to learn


def test_the_command_reports_in_tables_and_as_json(tmp_path):
    (tmp_path / "shop.py").write_text(PROBLEM)
    weeks().to_csv(tmp_path / "weeks.csv", index=False)
    words = ["history", f"{tmp_path}/shop.py:problem", f"{tmp_path}/weeks.csv", "--json", f"{tmp_path}/found.json"]
    done = subprocess.run([sys.executable, "-m", "profl", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "slope of" in done.stdout
    assert "experiment" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    own = found["slopes"][0]
    assert own["interval"][0] < own["slope"] < own["interval"][1]
    assert [one["deployments"] for one in found["experiments"]] == [5, 10, 30]
