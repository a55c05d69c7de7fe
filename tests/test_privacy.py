"""Local differential privacy: clipping, noise, and the account of epsilon against an independent accountant.

``test_privacy_leaks`` holds what leaves a client to be noised or the same for all data.
"""

from __future__ import annotations

import json
import sqlite3
import stat
import warnings
from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import chi2, kstest

import profl
from profl.campaign import fold
from profl.parts import privacy as mechanism
from profl.run.live import protection
from profl.run.plan import make_plan
from profl.run.run_history import run_round
from profl.server import entries
from profl.storage.atomic import atomic
from profl.storage.checkpoints import Checkpoints
from tests.killed import CASE
from tests.problems import QUICK

SETTINGS = {"rounds": 3, "local_steps": 2, "samples": 20, "progress": False}
SHARED = profl.profl(filter="none", share=2, jacobian=QUICK)
RARE = 1e-7  # how often chance alone may fail a test


def seeded(*arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return profl.parts.Privacy(*arguments, **named)


def assert_variance(values, sd):
    """Sums of squares of independent normal numbers are chi-square distributed."""
    squares, count = float(np.sum((np.asarray(values, np.float64) / sd) ** 2)), np.size(values)
    assert chi2.ppf(RARE, count) < squares < chi2.isf(RARE, count), squares / count


# -- the mechanism -----------------------------------------------------------------------------------------------------


def test_moves_are_clipped_and_noised():
    """The mean is the clipped move, (30, 40) clipped to 2; the spread is 2 C z in every entry, of Jacobians 2 C_J z."""
    privacy = profl.parts.Privacy(noise=0.5, clip=2.0, clip_jacobian=3.0)
    sent, own = {"a": np.zeros(2), "b": np.ones(20_000)}, {"a": jnp.array([30.0, 40.0]), "b": jnp.ones(20_000)}
    draws = [privacy.model(sent, own) for _ in range(300)]
    assert_variance([np.asarray(draw["a"]) - np.array([1.2, 1.6]) for draw in draws], 2.0)
    assert_variance(np.asarray(draws[0]["b"]) - 1, 2.0)
    still = np.ones((40, 50)) * np.sqrt(9 / 2000)  # of length 3: not clipped
    assert_variance([np.asarray(privacy.jacobian(jnp.asarray(still))) - still for _ in range(5)], 3.0)


@pytest.mark.parametrize("length", [0.0, 1e-30, 0.2, 0.5, 0.6, 1e30, np.inf, np.nan])
def test_without_noise_a_report_is_within_the_clip(length, monkeypatch):
    """So that two of them are at most 2 C apart; a move that is not finite is none."""
    monkeypatch.setattr(mechanism, "standard_normals", np.zeros)
    privacy, sent = profl.parts.Privacy(1.0, clip=0.5, clip_jacobian=0.5), jnp.array([1.0, 2.0])
    own = sent + length * jnp.array([0.6, 0.8])
    moved = np.asarray(privacy.model(sent, own)) - np.asarray(sent)
    expected = min(length, 0.5) if np.isfinite(length) else 0.0
    np.testing.assert_allclose(moved, expected * np.array([0.6, 0.8]), atol=3e-7)
    np.testing.assert_allclose(privacy.jacobian(own - sent), moved, atol=3e-7)


def test_every_number_of_the_noise_is_the_operating_systems():
    one, other = mechanism.standard_normals((40_000,)), mechanism.standard_normals((40_000,))
    assert kstest(one, "norm").pvalue > RARE
    assert abs(np.mean(one * other)) < 6 / 200
    assert abs(np.mean(one[1:] * one[:-1])) < 6 / 200


def test_noise_differs_from_report_to_report_unless_a_seed_is_given():
    sent, own = jnp.zeros(3), jnp.ones(3)
    assert not np.array_equal(profl.parts.Privacy(1.0).model(sent, own), profl.parts.Privacy(1.0).model(sent, own))
    with pytest.warns(UserWarning, match="whoever knows the seed can take the noise off"):
        fixed = profl.parts.Privacy(1.0, seed=0)
    np.testing.assert_array_equal(fixed.model(sent, own, 4), fixed.model(sent, own, 4))
    assert not np.array_equal(fixed.model(sent, own, 4), fixed.model(sent, own, 5))


@pytest.mark.parametrize(
    "bad",
    [
        {"noise": 0.0},
        {"noise": 1.0, "clip": -1.0},
        {"noise": 1.0, "clip_jacobian": 0},
        {"noise": 1.0, "delta": 1.0},
        {"noise": 1.0, "seed": -1},
    ],
)
def test_bad_input(bad):
    with pytest.raises(profl.InputError):
        profl.parts.Privacy(**bad)


# -- what leaves in a run ----------------------------------------------------------------------------------------------


class Broken:
    def deploy(self, theta, samples):
        raise ValueError("customer 7 is odd")


WIDE = profl.LiveProblem("wide", lambda theta, z: jnp.sum(theta * z), profl.GaussianMean(), np.zeros(40), np.ones(40))


def sent_and_reported(clients, method, problem, **settings):
    """(the model that was sent, a report) of every client and round."""
    seen = []

    def watched(plan, root, history, clients, *rest):
        theta = np.asarray(history.carry.theta)
        seen.extend((theta, entries.values(report.reports)) for report in clients().values())
        return run_round(plan, root, history, clients, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "run_round", watched)
        return seen, profl.train(problem, method, clients, progress=False, **settings)


def test_who_fails_sends_noise_of_the_stated_variance():
    """Reports of clients that did not move are noise alone: 4 clients, 3 rounds, 40 numbers and a Jacobian of 40^2."""
    privacy, method = profl.parts.Privacy(noise=0.7, clip=0.2, clip_jacobian=1.5), SHARED
    seen, run = sent_and_reported([Broken()] * 4, method, WIDE, rounds=3, local_steps=1, samples=9, privacy=privacy)
    assert len(seen) == 12
    assert_variance([report["theta"] - sent for sent, report in seen], 0.28)
    assert_variance([report["jacobian"] for _, report in seen], 2.1)
    assert not run.incidents
    assert run.samples[0, -1] == 4 * 3 * 9


def test_a_private_run_sends_noised_reports_and_nothing_else_about_the_data():
    clients = profl.worlds.simulated_clients(CASE, SHARED, samples=20)
    plain = profl.train(CASE, SHARED, clients, **SETTINGS)
    privacy = seeded(0.01, clip=0.5, seed=1)
    run = profl.train(CASE, SHARED, clients, privacy=privacy, **SETTINGS)
    assert 0 < np.max(np.abs(run.theta - plain.theta)) < 0.5
    assert np.all(np.isnan(run.live.risk))  # losses stay at the clients
    assert run.samples[0, -1] == plain.samples[0, -1]
    assert plain.jacobians is not None
    assert run.final is None  # the raw Jacobians
    again = profl.train(CASE, SHARED, clients, privacy=privacy, **SETTINGS)
    np.testing.assert_array_equal(again.theta, run.theta)


def test_what_is_reported_lies_in_the_model_space():
    clients, method = profl.worlds.simulated_clients(CASE, profl.pfl(), samples=20), profl.pfl()
    seen, _ = sent_and_reported(clients, method, CASE, rounds=3, samples=20, privacy=profl.parts.Privacy(9.0))
    reported = np.array([report["theta"] for _, report in seen])
    assert np.all((reported >= 0) & (reported <= 6))
    assert np.any(reported == 0)


def test_a_client_goes_on_from_its_last_good_state(monkeypatch):
    """A batch of 3e38 makes the state bad; with the next one the client works again."""
    monkeypatch.setattr(mechanism, "standard_normals", np.zeros)

    class Once:
        def deploy(self, theta, samples, step):
            batch = np.tile(5 - np.asarray(theta), (samples, 1))
            return np.full_like(batch, 3e38) if step == 1 else batch

    problem = replace(WIDE, sample=np.zeros(2), initial=np.ones(2))
    settings = {"rounds": 3, "local_steps": 1, "samples": 9, "privacy": profl.parts.Privacy(1.0)}
    seen, _ = sent_and_reported([Once()], profl.pfl(optimiser=optax.adam), problem, **settings)
    moved = [float(np.max(np.abs(report["theta"] - sent))) for sent, report in seen]
    assert moved[0] > 0.005
    assert moved[1] == 0.0
    assert moved[2] > 0.005
    assert all(np.all(np.isfinite(leaf)) for _, report in seen for leaf in jax.tree.leaves(report))


# -- the account -------------------------------------------------------------------------------------------------------


def accountant(noise, count, delta=1e-5):
    """dp-accounting's epsilon of ``count`` Gaussian mechanisms; it rounds losses up to multiples of 1e-4."""
    found = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    event = found.SelfComposedDpEvent(found.GaussianDpEvent(noise), count)
    return PLDAccountant().compose(event).get_epsilon(delta)


@pytest.mark.parametrize(
    ("noise", "reports", "share", "delta"),
    [(1.0, 1, False, 1e-5), (2.0, 50, False, 1e-5), (8.0, 100, True, 1e-6), (1.5, 2, True, 1e-9)],
)
def test_epsilon_is_the_accountants(noise, reports, share, delta):
    stated = profl.parts.Privacy(noise).epsilon(reports, delta, share=share)
    assert stated == pytest.approx(accountant(noise, reports * (2 if share else 1), delta), rel=1e-4, abs=1e-6)


def test_delta_at_epsilon_is_exact():
    """Against arithmetic with 60 digits, from a millionth of an epsilon to twenty thousand."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(60):
        for mu in (1e-3, 0.1, 1.0, 5.0, 30.0, 200.0):
            for delta in (1e-4, 1e-5, 1e-12):
                epsilon = mechanism.gaussian_epsilon(1 / mu, 1, delta)
                m, e = mp.mpf(1) / mp.mpf(1 / mu), mp.mpf(epsilon)
                exact = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
                assert float(exact / delta) == pytest.approx(1, abs=1e-10)
    assert mechanism.gaussian_epsilon(1e3, 1, 1e-2) == 0.0


@pytest.fixture(scope="module")
def shops():
    return profl.worlds.simulated_clients(CASE, SHARED, samples=20)


def test_the_run_has_an_account_that_the_accountant_confirms(shops, tmp_path):
    privacy = profl.parts.Privacy(4.0, clip=0.1, delta=1e-6)
    run = profl.train(CASE, SHARED, shops, privacy=privacy, **{**SETTINGS, "rounds": 5, "participation": 0.5})
    spent = run.privacy
    assert spent.reports.sum() == 5 * 2
    assert len(set(spent.reports.tolist())) > 1
    expected = [accountant(4.0, 2 * count, 1e-6) if count else 0.0 for count in spent.reports.tolist()]
    np.testing.assert_allclose(spent.epsilon, expected, rtol=1e-4)
    worst = int(np.argmax(spent.reports))
    line = f"at delta 1e-06 after {spent.reports[worst]} reports of client {worst}"
    assert line in run.summary()
    assert "the clients' own risk in the end" not in run.summary()
    run.save(tmp_path / "run.npz")
    loaded = profl.load(tmp_path / "run.npz").privacy
    assert loaded[:6] == spent[:6]
    np.testing.assert_array_equal(loaded.reports, spent.reports)
    np.testing.assert_array_equal(loaded.epsilon, spent.epsilon)
    json.dumps(run.to_dict()["privacy"])
    assert run.to_pandas("clients")["epsilon"].tolist() == spent.epsilon.tolist()


def test_a_run_with_a_seed_for_its_noise_says_that_nothing_is_protected(shops):
    run = profl.train(CASE, SHARED, shops, privacy=seeded(4.0, seed=1), **SETTINGS)
    assert "WARNING: Privacy(seed=...): whoever knows the seed" in run.summary()


class Crash(BaseException):
    """The process is gone."""


def test_noise_is_drawn_once_and_a_report_counts_once(shops, tmp_path, monkeypatch):
    """A crash before round 2 is in the log, and one after; all files are the owner's alone."""
    privacy, folder = profl.parts.Privacy(1.0), tmp_path / "run"
    settings = {"privacy": privacy, "checkpoint": folder, **SETTINGS}

    def crashing(plan, root, history, *rest):
        if history.round == 1:
            raise Crash
        return run_round(plan, root, history, *rest)

    def stopping(record):
        models.append(record.theta[0])
        if record.round == 2:
            raise Crash

    models = []
    with monkeypatch.context() as patch:
        patch.setattr(fold, "run_round", crashing)
        with pytest.raises(Crash):
            profl.train(CASE, SHARED, shops, callbacks=lambda record: models.append(record.theta[0]), **settings)
    with pytest.raises(Crash):
        profl.train(CASE, SHARED, shops, callbacks=stopping, **settings)
    with closing(sqlite3.connect(folder / "campaign.db")) as database, database:
        database.execute("delete from profl_snapshots")  # a cache: the log has the noise
    run = profl.train(CASE, SHARED, shops, **settings)
    np.testing.assert_array_equal(run.theta[0, :3], [models[0], models[1], models[-1]])
    assert run.privacy.reports.tolist() == [3] * 4
    assert run.privacy.epsilon[0] == privacy.epsilon(3, share=True)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    again = profl.train(CASE, SHARED, shops, **settings)
    assert again.privacy.reports.tolist() == [3] * 4
    with pytest.raises(profl.InputError, match=r"privacy was Privacy\(noise=1\.0"):
        profl.train(CASE, SHARED, shops, **{**settings, "privacy": profl.parts.Privacy(2.0)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot tell from"),
        ("{", "cannot tell from"),
        ("[1]", "cannot tell from"),
        ('{"privacy": "x", "reports": [9, 9]}', "is the account of x with 2 clients"),
        ('{"privacy": "%s", "reports": [9, 9, -1, 9]}', "choose another folder"),
    ],
)
def test_an_account_beside_checkpoints_that_cannot_be_read_ends_a_run_before_it_begins(tmp_path, content, message):
    """That of a Flower server."""
    privacy, plan = profl.parts.Privacy(1.0), make_plan(CASE, SHARED, profl.RunConfig(rounds=1, seeds=[0]))
    with Checkpoints(tmp_path, {}) as saved:
        protection.Account(privacy, plan, saved).charge(range(4))
        saved.save(1, {})
        assert protection.Account(privacy, plan, saved).counts.tolist() == [1] * 4
        file = tmp_path / "privacy.json"
        file.unlink() if content is None else file.write_text(content.replace("%s", repr(privacy)))
        with pytest.raises(profl.InputError, match=message):
            protection.Account(privacy, plan, saved)


def test_a_private_file_is_its_owners_alone(tmp_path):
    with atomic(tmp_path / "new" / "one", private=True) as temporary:
        temporary.write_text("x")
    assert stat.S_IMODE((tmp_path / "new" / "one").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


# -- over Flower -------------------------------------------------------------------------------------------------------


def test_over_flower_a_node_counts_what_it_sent(tmp_path):
    """The server dies when the replies of round 2 are there: the nodes know that they have sent one more."""
    pytest.importorskip("flwr")
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    privacy = profl.parts.Privacy(4.0)
    own = Federation(CASE, SHARED, 4, privacy=privacy, **{k: v for k, v in SETTINGS.items() if k != "progress"})
    grid = InProcessGrid(make_client_app(own, folder=tmp_path / "nodes"), 4)
    dying = ProFLStrategy(own, checkpoint=tmp_path / "server", wait=1.0)
    read = dying._read
    dying._read = lambda replies: (_ for _ in ()).throw(Crash) if dying.history.round == 1 else read(replies)
    with pytest.raises(Crash):
        dying.run(grid)
    for context in grid.contexts.values():
        context.state.clear()  # the nodes are started anew as well, and have their disks
    run = ProFLStrategy(own, checkpoint=tmp_path / "server", wait=1.0).run(grid)
    assert run.privacy.reports.tolist() == [4] * 4
    assert run.privacy.epsilon[2] == privacy.epsilon(4, share=True)
    files = [file for file in (tmp_path / "nodes").rglob("*") if file.is_file()]
    assert len(files) > 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert not run.incidents


def test_over_flower_an_error_says_nothing(monkeypatch, caplog):
    pytest.importorskip("flwr")
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app
    from profl.run.flower.state_store import StateStore

    def full(*arguments):
        raise OSError("no space left for customer 7")

    monkeypatch.setattr(StateStore, "save", full)
    own = Federation(CASE, SHARED, 4, privacy=profl.parts.Privacy(4.0), rounds=1, local_steps=2, samples=20)
    with pytest.raises(profl.TooFewReports) as stopped:
        ProFLStrategy(own, wait=1.0, patience=1).run(InProcessGrid(make_client_app(own), 4))
    assert {what for _, _, what in stopped.value.run.incidents} == {protection.FAILED}
    assert "customer" not in str(stopped.value)
    assert "no space left for customer 7" in caplog.text


def no_client(number):
    raise ValueError("customer 7 is odd")


@pytest.mark.parametrize(("make", "config"), [(no_client, {}), (None, {"client": "tests.nowhere:clients"})])
def test_over_flower_a_client_that_cannot_be_made_reports_like_any_other(make, config):
    pytest.importorskip("flwr")
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    own = Federation(CASE, SHARED, 4, privacy=profl.parts.Privacy(4.0), rounds=1, local_steps=2, samples=20)
    run = ProFLStrategy(own, wait=1.0).run(InProcessGrid(make_client_app(own, make), 4, config))
    assert run.privacy.reports.tolist() == [1] * 4
    assert not run.incidents
