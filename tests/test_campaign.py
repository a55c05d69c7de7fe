"""Campaigns: the log is the truth, a process may end after each call, and the states are those of every engine."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas
import pytest
import sqlalchemy as sa

import profl
from profl.campaign import Campaign
from profl.campaign.fold import Fold
from profl.campaign.readings import check_units
from tests.problems import QUICK

CASE = profl.cases.pricing(clients=3, goods=2)
NAMES = ["Basel", "Bern", "Chur"]
SAMPLES = 20
POFL = profl.pofl(jacobian=QUICK)


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = datetime(2026, 1, 5, tzinfo=UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/prices.db"


def open_campaign(url, method=POFL, **options):
    return Campaign(url, CASE, method, **{"clients": NAMES, "samples": SAMPLES, **options})


def answer(clients, deployment, local_steps):
    """What a simulated client brings in."""
    step = (deployment.round - 1) * local_steps + deployment.step - 1
    return clients[NAMES.index(deployment.client)].deploy(deployment.theta, deployment.samples, step=step)


def batch(seed=0, rows=SAMPLES):
    return np.random.default_rng(seed).normal(5.0, 1.0, (rows, 2))


@pytest.mark.parametrize(
    "method", [POFL, profl.prm(), profl.profl(filter="paper", jacobian=QUICK)], ids=lambda m: m.name
)
def test_a_call_per_process_gives_the_bits_of_train(url, method):
    steps, rounds = (1, 4) if method.name == "PRM" else (2, 3)
    clients = profl.worlds.simulated_clients(CASE, method, samples=SAMPLES)
    seen = []
    for _ in range(rounds * steps):
        with open_campaign(url, method, local_steps=steps) as campaign:
            asked = campaign.ask()
        with Campaign(url, CASE, method) as campaign:
            assert [one.id for one in campaign.ask()] == [one.id for one in asked]
            for deployment in reversed(asked):  # the order does not matter
                campaign.tell(deployment.id, answer(clients, deployment, steps))
        seen += [one.id for one in asked]
    with Campaign(url, CASE, method) as campaign:
        run = campaign.run()
    expected = profl.train(CASE, method, clients, rounds=rounds, local_steps=steps, samples=SAMPLES, progress=False)
    np.testing.assert_array_equal(run.theta, expected.theta)
    np.testing.assert_array_equal(run.live.risk, expected.live.risk)
    assert seen == list(range(1, 3 * rounds * steps + 1))


def test_the_state_is_a_fold_of_the_log_and_a_snapshot_only_a_cache(url):
    def finished():
        with Campaign(url, CASE, POFL) as campaign:
            return campaign.ask()[0].theta, campaign.model()

    with open_campaign(url) as campaign:
        for turn in range(3):
            for deployment in campaign.ask():
                campaign.tell(deployment.id, batch(turn))
        campaign.ask()
    with_snapshot = finished()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(sa.text("select count(*) from profl_snapshots")).scalar() == 2
        connection.execute(sa.text("delete from profl_snapshots"))
    np.testing.assert_array_equal(with_snapshot, finished())
    with engine.begin() as connection:
        connection.execute(
            sa.text("insert into profl_snapshots select 1, seq, chain, x'00' from profl_events where kind = 'closed'")
        )
    np.testing.assert_array_equal(with_snapshot, finished())


def test_a_damaged_newest_snapshot_costs_one_round_and_not_all(url, monkeypatch):
    with open_campaign(url) as campaign:
        for turn in range(4):
            for deployment in campaign.ask():
                campaign.tell(deployment.id, batch(turn))
        campaign.ask()
        expected = campaign.model()
    with sa.create_engine(url).begin() as connection:
        newest = "(select max(seq) from profl_snapshots)"
        connection.execute(sa.text(f"update profl_snapshots set data = x'00' where seq = {newest}"))
    closed, close = [], Fold.close
    monkeypatch.setattr(Fold, "close", lambda *args, **named: closed.append(1) or close(*args, **named))
    with Campaign(url, CASE, POFL) as campaign:
        np.testing.assert_array_equal(campaign.model(), expected)
    assert len(closed) == 1


def test_what_was_told_long_ago_can_be_told_again_without_a_database():
    campaign = Campaign(None, CASE, POFL, clients=NAMES, samples=SAMPLES)
    for turn in range(3):
        for deployment in campaign.ask():
            campaign.tell(deployment.id, batch(turn))
    campaign.ask()
    assert campaign.tell(1, batch(0)).again
    with pytest.raises(profl.InputError, match=r"was told on .* with other data: nothing was written"):
        campaign.tell(1, batch(1))
    with pytest.raises(profl.InputError, match="in memory keeps its newest round alone: the data of event 2 are gone"):
        campaign.data(campaign.events()[1])


def test_two_processes_at_once_ask_for_the_same_deployments(url):
    one, other = open_campaign(url), open_campaign(url)
    first = one.ask()
    assert [d.id for d in other.ask()] == [d.id for d in first] == [1, 2, 3]
    one.tell(1, batch(1))
    other.tell(2, batch(2))
    other.tell(1, batch(1))  # told by the other one already
    one.tell(3, batch(3))
    assert [d.id for d in other.ask()] == [d.id for d in one.ask()] == [4, 5, 6]
    np.testing.assert_array_equal(one.ask()[0].theta, other.ask()[0].theta)


def test_who_writes_second_decides_again(url, monkeypatch):
    one, other = open_campaign(url), open_campaign(url)
    deployments = one.ask()
    append, done = one._journal.store.append, []

    def late(sealed):
        if not done:
            done.append(other.tell(deployments[1].id, batch(2)))
        append(sealed)

    monkeypatch.setattr(one._journal.store, "append", late)
    one.tell(deployments[0].id, batch(1))
    assert [event.kind for event in one.events()] == ["opened", *["asked"] * 3, "told", "told"]
    assert one.status().told == 2


def test_the_same_data_are_harmless_and_others_an_error(url):
    campaign = open_campaign(url)
    campaign.ask()
    assert not campaign.tell(1, batch()).again
    assert campaign.tell(1, batch()).again
    with pytest.raises(profl.InputError, match=r"deployment 1 \(Basel, round 1\) was told on .* with other data"):
        campaign.tell(1, batch(1))
    assert campaign.status().told == 1


def test_a_round_ends_at_its_deadline_if_enough_is_there(url):
    clock = Clock()
    campaign = open_campaign(url, deadline=7, min_reports=2, clock=clock)
    first = campaign.ask()
    assert first[0].until == clock.now + timedelta(days=7)
    campaign.tell(1, batch(1))
    clock.now += timedelta(days=8)
    assert [one.id for one in campaign.ask()] == [2, 3]  # one report is not enough
    assert len(campaign.status().overdue) == 2
    campaign.tell(2, batch(2))
    assert [one.id for one in campaign.ask()] == [4, 5, 6]
    with pytest.raises(
        profl.InputError, match="closed with its round on 2026-01-13, without data: nothing was written"
    ):
        campaign.tell(3, batch(3))
    [(round_, client, what)] = campaign.status().incidents
    assert (round_, client) == (1, "Chur")
    assert "no data came by 2026-01-12" in what
    assert campaign.run().live.absent[0].tolist() == [0, 1]


def test_who_is_skipped_or_withdrawn_is_left_out_of_the_round(url):
    campaign = open_campaign(url)
    campaign.ask()
    campaign.skip(1, "shop closed")
    campaign.skip(1, "shop closed")  # once
    campaign.withdraw(2)
    with pytest.raises(profl.InputError, match=r"deployment 1 \(Basel\) was skipped on"):
        campaign.withdraw(1)
    with pytest.raises(profl.InputError, match="was skipped on"):
        campaign.tell(1, batch())
    assert [one.client for one in campaign.ask()] == ["Chur"]
    campaign.tell(3, batch())
    assert [one.id for one in campaign.ask()] == [4, 5, 6]
    texts = [what for _, _, what in campaign.status().incidents]
    assert texts == ["skipped: shop closed", "withdrawn: never put to use"]
    with pytest.raises(profl.InputError, match="was told on"):
        campaign.skip(3, "too late")


def test_a_round_without_any_data_changes_nothing(url):
    campaign = open_campaign(url)
    start = campaign.model()
    for deployment in campaign.ask():
        campaign.skip(deployment.id, "strike")
    assert len(campaign.ask()) == 3
    np.testing.assert_array_equal(campaign.model(), start)


class Shop:
    """A shop whose prices and sales have names."""

    @staticmethod
    def problem(**options):
        return profl.LiveProblem(
            "shop",
            lambda price, sold: -price @ sold,
            profl.GaussianMean(sd=1.0),
            np.zeros(2),
            np.array([2.0, 3.0]),
            profl.Box(0.0, 6.0),
            **{"names": ["apples", "pears"], "columns": ["sold_apples", "sold_pears"], **options},
        )


def shops(url, **options):
    problem = Shop.problem(**options)
    return Campaign(url, problem, POFL, ["Basel", "Bern"], samples=SAMPLES)


def sales(scale=1.0, rows=SAMPLES, seed=0, **more):
    data = scale * np.random.default_rng(seed).normal(5.0, 1.0, (rows, 2))
    return pandas.DataFrame({"sold_pears": data[:, 1], "sold_apples": data[:, 0], **more})


def test_tables_go_in_and_out_by_name(url, tmp_path):
    campaign = shops(url)
    asked = campaign.ask()
    assert list(asked[0].table) == ["apples", "pears"]
    asked.to_csv(tmp_path / "next.csv")
    written = pandas.read_csv(tmp_path / "next.csv")
    assert list(written.columns) == ["deployment", "client", "purpose", "until", "apples", "pears"]
    np.testing.assert_allclose(written.loc[0, ["apples", "pears"]].tolist(), asked[0].theta)
    week = pandas.concat([sales(client="Bern", seed=2), sales(client="Basel", seed=1)])
    week.to_csv(tmp_path / "sales.csv", index=False)
    assert [told.client for told in campaign.tell_frame(tmp_path / "sales.csv")] == ["Bern", "Basel"]
    assert all(told.again for told in campaign.tell_frame(tmp_path / "sales.csv"))
    [told, *_] = [event for event in campaign.events() if event.kind == "told"]
    np.testing.assert_allclose(campaign.data(told)["batch"], sales(seed=2)[["sold_apples", "sold_pears"]], rtol=1e-6)
    campaign.ask()
    assert all(told.again for told in campaign.tell_frame(week))  # told again when the next ones are out
    assert campaign.status().told == 0


def test_the_first_table_names_the_columns_where_the_problem_does_not(url):
    campaign = shops(url, columns=None)
    campaign.ask()
    campaign.tell(1, sales())
    with pytest.raises(profl.InputError, match="missing: sold_pears"):
        campaign.tell(2, sales().rename(columns={"sold_pears": "birnen"}))


BAD = {
    "wrong columns": (lambda: sales().rename(columns={"sold_pears": "pears"}), "'sold_pears' may be 'pears'"),
    "no rows": (lambda: sales(rows=0), "sent an empty batch"),
    "NaN": (lambda: sales().assign(sold_pears=np.nan), "NaN or Inf in 20 of 20 rows"),
    "a word": (lambda: sales().assign(sold_pears="many"), "must hold numbers"),
    "another shape": (lambda: np.zeros((20, 3)), r"must have shape \(2,\), got \(3,\)"),
    "other units": (lambda: sales(scale=100.0), "typically 1e\\+02 times those that were told before"),
    "other units, smaller": (lambda: sales(scale=0.01), "typically 0.01 times those that were told before"),
    "missing rows": (lambda: sales().assign(sold_pears=None), "all 20 rows have missing values"),
    "a column twice": (lambda: pandas.concat([sales(), sales()], axis=1), "twice"),
    "no table": (lambda: "many", "there is no file many"),
    "nothing": (lambda: None, "sent nothing"),
    "far too many": (lambda: sales(rows=64 * SAMPLES + 1), "too many"),
    "no file": (lambda: "nowhere.csv", "there is no file nowhere.csv"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_data_is_one_sentence_and_nothing_is_written(url, kind):
    data, words = BAD[kind]
    campaign = shops(url)
    campaign.ask()
    campaign.tell(1, sales())
    before = len(campaign.events())
    with pytest.raises(profl.InputError, match=words) as error:
        campaign.tell(2, data())
    assert str(error.value).endswith("nothing was written")
    assert len(campaign.events()) == before


def test_units_that_changed_on_purpose_are_taken(url):
    campaign = shops(url)
    campaign.ask()
    campaign.tell(1, sales())
    assert campaign.tell(2, sales(scale=100.0), check=False).rows == SAMPLES


def test_tables_of_strangers_are_refused(url):
    campaign = shops(url)
    campaign.ask()
    with pytest.raises(profl.InputError, match="unknown client 'Brn'; did you mean 'Bern'"):
        campaign.tell_frame(sales(client="Brn"))
    with pytest.raises(profl.InputError, match="needs a column 'deployment' or 'client'"):
        campaign.tell_frame(sales())
    with pytest.raises(profl.InputError, match="there is no deployment 9; open are 1, 2"):
        campaign.tell_frame(sales(deployment=9))
    half = sales(client=["Basel"] * 10 + [None] * 10)
    with pytest.raises(profl.InputError, match="empty cells"):
        campaign.tell_frame(half)
    both = pandas.concat([sales(client="Basel"), sales(client="Bern").assign(sold_pears=np.nan)])
    with pytest.raises(profl.InputError, match="Bern"):
        campaign.tell_frame(both)  # all or nothing
    assert campaign.status().told == 0


IDS = {
    "of last month": (1, "closed with its round on 2026-01-13, without data"),
    "of nothing": (99, "there is no deployment 99; open are 3, 4"),
    "in words": ("Basel", "there is no deployment 'Basel'"),
    "a half": (3.5, r"there is no deployment 3\.5"),
    "none": (None, "there is no deployment None"),
}


@pytest.mark.parametrize("kind", IDS)
def test_an_id_that_is_not_open_is_one_sentence_and_nothing_is_written(url, kind):
    clock = Clock()
    campaign = Campaign(
        url, Shop.problem(), POFL, ["Basel", "Bern"], samples=SAMPLES, clock=clock, deadline=7, min_reports=1
    )
    campaign.ask()
    campaign.tell(2, sales())
    clock.now += timedelta(days=8)
    assert [one.id for one in campaign.ask()] == [3, 4]
    number, words = IDS[kind]
    before = len(campaign.events())
    calls = [
        lambda: campaign.tell(number, sales()),
        lambda: campaign.skip(number, "closed"),
        lambda: campaign.withdraw(number),
    ]
    if isinstance(number, (int, float, str)):
        calls.append(lambda: campaign.tell_frame(sales(deployment=number)))
    for call in calls:
        with pytest.raises(profl.InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    assert len(campaign.events()) == before


def test_a_table_that_names_another_client_is_refused(url):
    campaign = shops(url)
    campaign.ask()
    with pytest.raises(profl.InputError, match="deployment 1 belongs to Basel, the table says Bern: nothing"):
        campaign.tell_frame(sales(deployment=1, client="Bern"))
    assert campaign.tell_frame(sales(deployment=1, client="Basel"))[0].client == "Basel"


def test_of_a_table_that_grows_only_the_new_rows_are_written(url):
    """Basel's old rows are no data of its next deployment."""
    campaign = Campaign(url, Shop.problem(), POFL, ["Basel", "Bern"], samples=SAMPLES, local_steps=2)
    campaign.ask()
    campaign.tell_frame(sales(client="Basel", seed=1))
    assert [(one.id, one.client) for one in campaign.ask()] == [(2, "Bern"), (3, "Basel")]
    both = pandas.concat([sales(client="Basel", seed=1), sales(client="Bern", seed=2)])
    assert [(told.deployment, told.again) for told in campaign.tell_frame(both)] == [(1, True), (2, False)]
    assert [one.client for one in campaign.ask()] == ["Basel", "Bern"]


def test_a_loss_that_has_changed_since_is_refused(url):
    with shops(url) as campaign:
        campaign.ask()
        before = campaign.events()
    other = dataclasses.replace(Shop.problem(), loss=lambda price, sold: -0.5 * price @ sold)
    with pytest.raises(profl.InputError, match=r"made with something else: loss was .*Nothing was written"):
        Campaign(url, other, POFL)
    with shops(url) as campaign:
        assert campaign.events() == before


def poisson_tellings(rows, means, rule, seed=0, shops=83, weeks=52):
    """(share of false alarms, share of hundredfold numbers, but zeros, that are caught) of weekly sales."""
    rng = np.random.default_rng(seed)
    usual = means(rng, shops)
    own, told = [[] for _ in range(shops)], []
    alarms, caught = [], []
    for _ in range(weeks):
        for shop in range(shops):
            price = 1.0 + rng.uniform(-0.2, 0.2)
            size = [float(rng.poisson(usual[shop] * price**-3.0, rows).mean())]
            others = told if not own[shop] else []
            alarms.append(rule(size, own[shop], others))
            if size[0] > 0 and (own[shop] or others) and rng.random() < 0.2:
                caught += [rule([factor * size[0]], own[shop], others) for factor in (100.0, 0.01)]
            own[shop].append(size)
            told.append(size)
    return np.mean(alarms), np.mean(caught)


def test_units_are_doubted_where_they_changed_and_hardly_ever_else():
    def refused(*sizes):
        try:
            check_units(*sizes)
        except profl.InputError:
            return True
        return False

    def even(rng, shops):
        return rng.uniform(1.0, 50.0, shops)

    def uneven(rng, shops):
        return np.exp(rng.uniform(0.0, np.log(50.0), shops))

    found = [poisson_tellings(rows, means, refused) for rows in (1, 7) for means in (even, uneven)]
    false, caught = np.mean(found, axis=0)
    assert false < 1e-3
    assert caught > 0.99
    assert min(share for _, share in found) > 0.99


def test_another_problem_method_or_setting_is_refused(url):
    with open_campaign(url) as campaign:
        campaign.ask()
    other = profl.cases.pricing(clients=3, goods=2, sensitivity=2.5)
    with pytest.raises(profl.InputError, match=r"made with something else: .*Nothing was written"):
        Campaign(url, other, POFL)
    with pytest.raises(profl.InputError, match="made with another problem"):
        Campaign(url, profl.cases.pricing(clients=3, goods=4), POFL)
    with pytest.raises(profl.InputError, match="method was"):
        Campaign(url, CASE, profl.pfl())
    with pytest.raises(profl.InputError, match="made with samples 20, got 30"):
        open_campaign(url, samples=30)
    with pytest.raises(profl.InputError, match="made with clients"):
        Campaign(url, CASE, POFL, clients=["a", "b", "c"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": ["a", "b"]}, "has 3 clients, 2 are named"),
        ({"clients": ["a", "b", "b"]}, "b is there twice"),
        ({"clients": "Basel"}, "has 3 clients, 1 are named"),
        ({"deadline": 0}, "deadline must be a finite number above 0"),
        ({"local_steps": 0}, "local_steps must be a whole number"),
        ({"min_reports": 4}, "min_reports must be at most 3"),
    ],
)
def test_bad_settings_make_no_database(tmp_path, options, words):
    with pytest.raises(profl.InputError, match=words):
        open_campaign(f"sqlite:///{tmp_path}/none.db", **options)
    assert not list(tmp_path.iterdir())


def test_a_database_that_is_not_there_is_not_made_by_opening(tmp_path):
    with pytest.raises(profl.InputError, match=r"there is no database .*none.db: make the campaign first"):
        Campaign(f"sqlite:///{tmp_path}/none.db", CASE, POFL)
    with pytest.raises(profl.InputError, match=r"must be a URL such as sqlite:///prices\.db"):
        Campaign("prices.db", CASE, POFL, NAMES)
    assert not list(tmp_path.iterdir())


def test_one_database_holds_several_campaigns(url):
    apples, pears = open_campaign(url, name="apples"), open_campaign(url, name="pears")
    apples.ask()
    assert len(apples.events()) == 4
    assert len(pears.events()) == 1
    with pytest.raises(profl.InputError, match=r"there is no campaign 'plums' in .*; there are: apples, pears"):
        Campaign(url, CASE, POFL, name="plums")


def test_a_changed_log_is_seen(url):
    with open_campaign(url) as campaign:
        campaign.ask()
        campaign.tell(1, batch())
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("update profl_events set at = '2020-01-01T00:00:00+00:00' where seq = 3"))
    with pytest.raises(profl.InputError, match=r"event 3 \(asked\) was changed or damaged"):
        Campaign(url, CASE, POFL)


def test_damaged_data_are_seen(url):
    with open_campaign(url) as campaign:
        for deployment in campaign.ask():
            campaign.tell(deployment.id, batch())
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        content = connection.execute(sa.text("select data from profl_events where seq = 5")).scalar()
        changed = content[:200] + bytes([content[200] ^ 1]) + content[201:]
        connection.execute(sa.text("update profl_events set data = :data where seq = 5"), {"data": changed})
    with Campaign(url, CASE, POFL) as campaign, pytest.raises(profl.InputError, match="data of event 5"):
        campaign.ask()


def test_a_newer_database_is_refused_and_an_older_one_is_migrated(url, monkeypatch):
    from profl.campaign import sql

    open_campaign(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("update profl_meta set value = '99' where name = 'schema'"))
    with pytest.raises(profl.InputError, match="is of a newer profl"):
        Campaign(url, CASE, POFL)
    with engine.begin() as connection:
        connection.execute(sa.text("update profl_meta set value = '1' where name = 'schema'"))
    moved = []
    monkeypatch.setattr(sql, "SCHEMA", 2)
    monkeypatch.setitem(sql.MIGRATIONS, 1, lambda connection: moved.append(connection.dialect.name))
    Campaign(url, CASE, POFL).close()
    Campaign(url, CASE, POFL).close()
    assert moved == ["sqlite"]


def test_rounds_end_a_campaign(url):
    campaign = open_campaign(url, rounds=1)
    for deployment in campaign.ask():
        campaign.tell(deployment.id, batch())
    assert campaign.ask() == ()
    assert campaign.status().over == "all 1 rounds are done"
    assert campaign.run().rounds.tolist() == [0, 1]


def test_a_campaign_stops_where_its_method_expects_too_little(url):
    stop = profl.StopWhenSettled(tolerance=1e6, least=2)
    campaign = open_campaign(url, profl.prm(), stop=stop)
    clients = profl.worlds.simulated_clients(CASE, profl.prm(), samples=SAMPLES)
    for _ in range(2):
        for deployment in campaign.ask():
            campaign.tell(deployment.id, answer(clients, deployment, 1))
    assert campaign.ask() == ()
    assert campaign.status().over == "expected excess below the tolerance"
    assert campaign.forecast().stop == "expected excess below the tolerance"
    assert campaign.run().settled == (2,)


def test_a_delayed_batch_counts_for_the_model_that_brought_it_in(url):
    campaign = open_campaign(url)
    first = campaign.ask()
    for deployment in first:
        campaign.tell(deployment.id, batch())
    second = campaign.ask()
    campaign.tell(second[0].id, profl.worlds.Delayed(batch(1), first[0].theta))
    [event] = [event for event in campaign.events() if event.deployment == second[0].id and event.kind == "told"]
    np.testing.assert_array_equal(campaign.data(event)["deployed"], first[0].theta)


def test_a_model_that_is_a_tree_has_named_numbers(url):
    problem = profl.LiveProblem(
        "tree",
        lambda theta, z: (theta["slope"] @ z["x"] + theta["level"] - z["y"]) ** 2,
        profl.LinearGaussian(),
        {"x": np.zeros(1), "y": 0.0},
        {"slope": np.zeros(1), "level": 0.0},
    )
    campaign = Campaign(url, problem, profl.pfl(), ["one"], samples=SAMPLES)
    [deployment] = campaign.ask()
    assert deployment.table == {"level": 0.0, "slope[0]": 0.0}
    frame = pandas.DataFrame({"y": np.arange(20.0), "x[0]": np.ones(20)})
    campaign.tell(1, frame)
    [event] = [event for event in campaign.events() if event.kind == "told"]
    np.testing.assert_array_equal(campaign.data(event)["batch['y']"], np.arange(20.0))


def test_memory_store_forgets_old_batches():
    campaign = Campaign(None, CASE, POFL, NAMES, samples=SAMPLES)
    for turn in range(3):
        for deployment in campaign.ask():
            campaign.tell(deployment.id, batch(turn))
    campaign.ask()
    assert len(campaign._journal.store._data) <= 12
