"""What the filter dropped: per client, one number in every engine, in the summary, and as incidents of a live run."""

from __future__ import annotations

import math
from importlib.util import find_spec
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import parts
from profl.run.live.filter_alerts import FilterAlert, update_alerts
from profl.run.totals import Dropped, add_dropped, mean_dropped_share, zero_dropped
from tests.test_loop import SHOP, Shop


@jax.jit
def near(gradients, weights):
    """Keeps what lies within 5 of the median; quick to compile."""
    return jnp.where(jnp.all(jnp.abs(gradients - jnp.median(gradients, axis=0)) < 5, axis=1), weights, 0.0)


METHOD = profl.chain(parts.TrustedSamples(near), parts.PlainGradient(), parts.Optimiser(0.01), name="filtered")
SHARES = [0.0, 0.1, 0.2, 0.4]
JUNK = profl.worlds.contaminate(profl.cases.pricing(clients=4, goods=2), SHARES, "blob", distance=30)
SETTINGS = {"rounds": 6, "local_steps": 2, "samples": 100, "participation": 0.75, "progress": False}


@pytest.fixture(scope="module")
def fast():
    with jax.enable_x64(True):
        return profl.simulate(JUNK, METHOD, seeds=[3, 5], **SETTINGS)


def test_engines_agree(fast):
    """Junk far off: what is dropped is what was put in. Means are over the rounds in which a client took part."""
    assert fast.dropped.shape == (2, 4)
    np.testing.assert_allclose(fast.dropped, [SHARES] * 2, atol=0.06)
    with jax.enable_x64(True):
        clients = profl.worlds.simulated_clients(JUNK, METHOD, samples=100, seed=3)
        slow = profl.simulate(JUNK, METHOD, seeds=[3, 5], engine="debug", **SETTINGS)
        live = profl.train(JUNK, METHOD, clients, seed=3, **SETTINGS)
    np.testing.assert_allclose(slow.dropped, fast.dropped, atol=1e-12)
    np.testing.assert_allclose(live.dropped, fast.dropped[:1], atol=1e-12)
    if find_spec("flwr") is None:
        return
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    with jax.enable_x64(True):
        settings = {name: value for name, value in SETTINGS.items() if name != "progress"}
        federation = Federation(JUNK, METHOD, 4, seed=3, **settings)
        over = ProFLStrategy(federation, wait=1.0).run(InProcessGrid(make_client_app(federation), 4))
    np.testing.assert_allclose(over.dropped, fast.dropped[:1], atol=1e-12)
    assert over.incidents == live.incidents


def test_summary(fast):
    lines = fast.summary().splitlines()
    told = next(line for line in lines if line.startswith("the filter dropped"))
    each = fast.dropped.mean(0)
    assert f"{each.mean():.1%} of the samples, most at client 3 ({each[3]:.1%}), client 2" in told
    warning = next(i for i, line in enumerate(lines) if line.startswith("WARNING"))
    assert "client 3" in lines[warning]
    assert "client 2" not in lines[warning]
    advice = " ".join(lines[warning:])
    assert all(word in advice for word in ("profl check", "reference=", "at_most=", "filter='none'"))


def test_nothing_is_said_where_nothing_was_dropped():
    case = profl.cases.pricing(clients=2, goods=2)
    clean, unfiltered = (
        profl.simulate(case, method, rounds=2, samples=20, seeds=[0], progress=False)
        for method in (METHOD, profl.pfl())
    )
    np.testing.assert_allclose(clean.dropped, 0.0, atol=1e-6)
    assert unfiltered.dropped is None
    for run in (clean, unfiltered):
        assert "the filter dropped" not in run.summary()


def test_it_is_kept(fast, tmp_path):
    fast.save(tmp_path / "run.npz")
    back = profl.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(back.dropped, fast.dropped)
    assert back.summary() == fast.summary()
    frame = fast.to_pandas(rows="clients")
    assert frame[(frame["seed"] == 5) & (frame["client"] == 2)]["dropped"].item() == fast.dropped[1, 2]
    found = fast.to_dict()["dropped"]
    assert (found["most"][0][0], found["much"]) == (3, 1)


def test_rounds_that_do_not_count():
    """A refused report and a share that was not told add nothing; a client drawn twice counts once."""
    clients, kept = np.array([2, 0, 2, 1]), np.array([0.6, 0.5, 0.6, np.nan], np.float32)
    accepted, add = np.array([True, False, True, True]), jax.jit(add_dropped)
    found = add(add(zero_dropped(4), clients, kept, accepted), clients, kept, accepted)
    np.testing.assert_array_equal(found.rounds, [0, 0, 2, 0])
    np.testing.assert_allclose(mean_dropped_share(found), [np.nan, np.nan, 0.4, np.nan], rtol=1e-6)


def test_pooled_clients_have_the_share_of_the_pool():
    pooled = profl.chain(
        parts.TrustedSamples(near), parts.PlainGradient(), parts.Optimiser(0.01), name="pooled", pooled=True
    )
    run = profl.simulate(JUNK, pooled, rounds=2, samples=100, seeds=[0], progress=False)
    np.testing.assert_allclose(run.dropped, np.full((1, 4), np.mean(SHARES)), atol=0.05)


class Sinking(Shop):
    """From deployment ``start`` on, before ``end``, this share of what it sends is junk."""

    def __init__(self, share, start=0, end=99):
        super().__init__()
        self.share, self.start, self.end = share, start, end

    def deploy(self, theta, samples, step):
        batch = self.demand(theta, samples)
        if self.start <= step < self.end:
            batch[: int(self.share * samples)] += 100.0
        return batch


LIVE = {"rounds": 12, "local_steps": 1, "samples": 100, "progress": False}


def test_incidents_of_a_live_run(tmp_path):
    """One incident per alert, reported when it begins; a run in parts has the same."""

    def clients():
        return [Shop(), Sinking(0.4), Sinking(0.15, start=6, end=9), Sinking(0.03)]

    heard: list[str] = []
    whole = profl.train(SHOP, METHOD, clients(), report=heard.append, **LIVE)
    assert whole.incidents == (
        (1, 1, "lost 40.0% of its samples to the filter, in 12 rounds in a row"),
        (7, 2, "lost 15.0% of its samples to the filter (0.0% before), in 3 rounds in a row"),
    )
    assert heard == [
        "round 1, client 1: lost 40.0% of its samples to the filter",
        "round 7, client 2: lost 15.0% of its samples to the filter (0.0% before)",
    ]
    assert "2 incidents" in whole.summary()
    for rounds in (4, 8, 12):
        parts = profl.train(SHOP, METHOD, clients(), checkpoint=tmp_path, **{**LIVE, "rounds": rounds})
    assert parts.incidents == whole.incidents
    np.testing.assert_array_equal(parts.dropped, whole.dropped)


def test_a_simulation_in_parts(tmp_path):
    settings = {"seeds": [3, 5], "checkpoint": tmp_path}
    for rounds in (2, 6):
        parts = profl.simulate(JUNK, METHOD, **{**SETTINGS, **settings, "rounds": rounds})
    np.testing.assert_allclose(parts.dropped, profl.simulate(JUNK, METHOD, seeds=[3, 5], **SETTINGS).dropped, atol=1e-6)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.02] * 5 + [0.2, 0.2, 0.02, 0.3], [(6, 2, 0.2, 0.02), (9, 1, 0.3, 0.065)]),
        ([0.02] * 4 + [0.2], []),  # too early to know what is usual
        ([0.02] * 5 + [0.069], []),
        ([0.2] * 5 + [0.24], []),  # of 25 samples, 5 standard errors are 0.4
        ([0.26, math.nan, 0.26], [(1, 2, 0.26, math.nan)]),  # a round without it ends nothing
        ([0.25] * 9, []),
    ],
)
def test_filter_alerts(shares, expected):
    """One client, one batch of 500 samples a round; 25 where it drops 0.2."""
    settings = SimpleNamespace(local_steps=1, method=SimpleNamespace(sizes=None))
    n = 25 if shares[0] == 0.2 else 500
    plan = SimpleNamespace(settings=settings, population=SimpleNamespace(counts=np.array([n])))

    def history(round_):
        known = [share for share in shares[:round_] if not math.isnan(share)]
        dropped = Dropped(np.array([sum(known)]), np.array([len(known)]))
        return SimpleNamespace(round=round_, carry=SimpleNamespace(dropped=dropped))

    alerts: tuple[FilterAlert, ...] = ()
    for round_ in range(len(shares)):
        alerts, _ = update_alerts(alerts, plan, history(round_), history(round_ + 1))
    found = [(one.round, one.rounds, one.dropped, one.usual) for one in alerts]
    np.testing.assert_allclose(found, np.reshape(expected, np.shape(found)))


def test_privacy_keeps_it_at_the_client():
    run = profl.train(SHOP, METHOD, [Sinking(0.4)], privacy=profl.parts.Privacy(noise=1.0, clip=0.5), **LIVE)
    assert np.isnan(run.dropped).all()
    assert not run.incidents
    assert "the filter dropped" not in run.summary()
