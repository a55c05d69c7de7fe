"""Stop when it is done: by what a method expects of its model, in every engine after the same round."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.methods.stopping import REASONS
from profl.storage.hashes import sha256
from tests.killed import CASE
from tests.problems import noting

GOOD, SPENT = REASONS[1], REASONS[2]
SETTINGS: dict[str, Any] = {"rounds": 9, "local_steps": 2, "samples": 20, "progress": False}
COUNTS = ("deployments", "samples", "bytes_up", "bytes_down", "refused")
needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")


@dataclass(frozen=True)
class Counting(profl.methods.Method):
    """It moves by 0.05 a step and counts its turns: the expected excess is ``pace`` over their number.

    With ``by_seed`` the excess is larger the lower the coordinate that the seed began with.
    """

    pace: float = 1.0
    exchanges: int = 0
    gain: float = 1.0
    price: float = 0.0
    unknown: str = ""
    by_seed: bool = False
    name = "counting"

    def step(self, problem, state, theta, arrival, key):
        return problem.project(theta + 0.05), state, {"loss": jnp.mean(arrival.batch)}

    def figures(self, problem, state, theta):
        return {"first": theta[0]}

    def open(self, problem, theta):
        return {"turns": jnp.zeros(()), "pace": self.pace * (4.0 - theta[0] if self.by_seed else 1.0)}

    def combine(self, problem, server, theta, reports, weights, accepted, key):
        model, _, mail = super().combine(problem, server, theta, reports, weights, accepted, key)
        return model, {**server, "turns": server["turns"] + 1}, mail

    def forecast(self, problem, server):
        stated = profl.methods.Forecast(
            server["pace"] / server["turns"], 0.1 / server["turns"], self.gain / server["turns"], self.price
        )
        return stated._replace(**{self.unknown: jnp.nan}) if self.unknown else stated


def sites(method, seen):
    """Clients that note every deployment."""
    return noting(profl.worlds.simulated_clients(CASE, method, samples=20, seed=3), seen)


def fast(method, seen, **settings):
    return profl.simulate(CASE, method, seeds=[3], **settings)


def debug(method, seen, **settings):
    return profl.simulate(CASE, method, seeds=[3], engine="debug", **settings)


def live(method, seen, **settings):
    return profl.train(CASE, method, sites(method, seen), seed=3, **settings)


def flower(method, seen, checkpoint=None, messages=None, **settings):
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    settings.pop("progress")
    federation = Federation(CASE, method, 4, seed=3, **settings)
    grid = InProcessGrid(make_client_app(federation, sites(method, seen)), 4)
    run = ProFLStrategy(federation, wait=1.0, checkpoint=checkpoint).run(grid)
    if messages is not None:
        messages.append(next(grid.numbers) - 1)
    return run


ENGINES = {"fast": fast, "debug": debug, "live": live, "flower": flower}
each_engine = pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=needs_flower if name == "flower" else ()) for name in ENGINES]
)


# 1.1 / turns <= 0.3 from the fourth turn on; with one exchange a round those are two rounds.
# 20 * 1 / turns <= 3 + 1 from the fifth on.
STOPS = {
    "good": (Counting(), profl.StopWhenSettled(0.3, least=1), 4, GOOD),
    "good, with exchanges": (Counting(exchanges=1), profl.StopWhenSettled(0.3, least=1), 2, GOOD),
    "good, but more is wanted": (Counting(), profl.StopWhenSettled(0.3, least=11), 6, GOOD),
    "spent": (Counting(price=3.0), profl.StopWhenSettled(cost=1.0, payback=20, least=1), 5, SPENT),
    "spent, with another payback": (
        Counting(price=3.0),
        profl.StopWhenSettled(cost=1.0, payback=12, least=1),
        3,
        SPENT,
    ),
    "both": (Counting(price=20.0), profl.StopWhenSettled(2.0, least=1), 1, GOOD),
    "no cost": (Counting(), profl.StopWhenSettled(least=1), None, None),
}


EVERYWHERE = ("good, with exchanges", "spent")  # how it is judged is the same code in every engine
ONCE = (*EVERYWHERE, "no cost")  # in a run; of the others by default the judgement alone


@pytest.mark.parametrize("name", STOPS)
def test_it_is_judged_after_every_round(name):
    method, stop, end, reason = STOPS[name]
    why = []
    for round_ in range(1, 10):
        turns = jnp.asarray((1.0 + method.exchanges) * round_)
        why.append(int(stop.why(method.forecast(None, {"turns": turns, "pace": method.pace}), 2 * round_)))
    done = next((round_ for round_, found in enumerate(why, 1) if found), None)
    assert done == end
    assert end is None or REASONS[why[end - 1]] == reason


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(
            name, engine, marks=needs_flower if engine == "flower" else () if name in ONCE else pytest.mark.slow
        )
        for name in STOPS
        for engine in (ENGINES if name in EVERYWHERE else ["fast"])
    ],
)
def test_a_run_ends_with_the_round_in_which_it_is_done(name, engine):
    """What comes before is the run without ``stop``; after it nothing is deployed, sent or counted."""
    method, stop, end, reason = STOPS[name]
    seen: list[Any] = []
    run = ENGINES[engine](method, seen, stop=stop, **SETTINGS)
    assert run.settled == (end,)
    assert run.stop_reason == (reason,)
    last = end or 9
    whole = fast(method, None, **SETTINGS)
    kept = np.minimum(np.arange(10), last)
    np.testing.assert_allclose(run.theta, whole.theta[:, kept], rtol=1e-6)
    np.testing.assert_allclose(run.info["loss"], whole.info["loss"][:, kept], rtol=1e-5)
    np.testing.assert_allclose(run.info["first"], whole.info["first"][:, kept], rtol=1e-6)
    for figure in COUNTS:
        np.testing.assert_array_equal(getattr(run, figure), getattr(whole, figure)[:, kept])
    turns = (1 + method.exchanges) * np.minimum(np.arange(1, 10), last)
    np.testing.assert_allclose(run.expected_excess[0], [np.nan, *(1.0 / turns)], rtol=1e-6)
    np.testing.assert_allclose(run.expected_error[0], [np.nan, *(0.1 / turns)], rtol=1e-6)
    if engine in ("live", "flower"):
        assert sorted(seen) == [(client, step) for client in range(4) for step in range(2 * last)]


@needs_flower
def test_flower_sends_no_message_after_the_end():
    sent: list[int] = []
    flower(Counting(exchanges=1), [], messages=sent, stop=profl.StopWhenSettled(0.3, least=1), **SETTINGS)
    assert sent == [4 + 2 * 2 * 4]  # who is there; two rounds of two turns


@each_engine
@pytest.mark.parametrize("record_every", [3, 4])
def test_an_end_between_two_records_is_in_the_next_one(engine, record_every):
    """Done after round 4: a record itself, or one round after it."""
    settings = {**SETTINGS, "record_every": record_every}
    run = ENGINES[engine](Counting(), [], stop=profl.StopWhenSettled(0.3, least=1), **settings)
    whole = fast(Counting(), None, **SETTINGS)
    at = np.minimum(run.rounds, 4)
    assert run.rounds.tolist() == {3: [0, 3, 6, 9], 4: [0, 4, 8, 9]}[record_every]
    np.testing.assert_allclose(run.theta, whole.theta[:, at], rtol=1e-6)
    np.testing.assert_array_equal(run.deployments, whole.deployments[:, at])
    losses = whole.info["loss"][0]
    means = {3: [losses[1:4].mean(), losses[4], losses[4]], 4: [losses[1:5].mean()] * 3}[record_every]
    np.testing.assert_allclose(run.info["loss"][0, 1:], means, rtol=1e-5)
    if run.live is not None:
        np.testing.assert_allclose(run.live.risk[0, -1], losses[4], rtol=1e-5)


def test_seeds_stop_each_by_itself():
    """The excess after round t is (4 - first coordinate of the start) / t: at most 0.45 less 0.1 / t."""
    method, stop, seeds = Counting(by_seed=True), profl.StopWhenSettled(0.45, least=1), range(5)
    runs = [profl.simulate(CASE, method, seeds=seeds, engine=e, stop=stop, **SETTINGS) for e in ("fast", "debug")]
    paces = 4.0 - runs[0].theta[:, 0, 0]
    expected = tuple(next((t for t in range(1, 10) if (p + 0.1) / t <= 0.45), None) for p in paces)
    assert len(set(expected)) > 2  # else this shows nothing
    for run in runs:
        assert run.settled == expected
        assert run.deployments[:, -1].tolist() == [8 * (end or 9) for end in expected]
        alone = profl.simulate(CASE, method, seeds=[1], stop=stop, **SETTINGS)
        np.testing.assert_allclose(run.theta[1], alone.theta[0], rtol=1e-6)
        np.testing.assert_allclose(run.info["loss"][1], alone.info["loss"][0], rtol=1e-5)


@pytest.mark.parametrize("figure", profl.methods.Forecast._fields)
def test_nan_never_stops(figure):
    """Both reasons hold at once, but for the NaN."""
    stop, forecast = profl.StopWhenSettled(1.0, payback=20, least=1), profl.methods.Forecast(0.1, 0.1, 0.1, 10.0)
    assert int(stop.why(forecast, 1)) == 1
    assert int(stop.why(forecast._replace(excess=2.0), 1)) == 2
    assert int(stop.why(forecast._replace(**{figure: jnp.nan}), 1)) == 0


def test_a_run_whose_forecast_is_unknown_goes_on():
    run = fast(Counting(price=1e3, unknown="gain"), None, stop=profl.StopWhenSettled(1e3, least=1), **SETTINGS)
    assert run.settled == (None,)


def test_regret_is_a_mean_over_what_was_deployed():
    case, settings = profl.cases.housing(clients=2), {**SETTINGS, "seeds": [0]}

    @dataclass(frozen=True)
    class Still(Counting):
        def step(self, problem, state, theta, arrival, key):
            return theta, state, {"loss": jnp.mean(arrival.weights)}

        def figures(self, problem, state, theta):
            return {}

        def open(self, problem, theta):
            return {"turns": jnp.zeros(()), "pace": 1.0}

    run = profl.simulate(case, Still(), stop=profl.StopWhenSettled(0.3, least=1), **settings)
    assert run.settled == (4,)
    np.testing.assert_allclose(run.deployed_regret[0, 1:], run.excess[0, 0], rtol=1e-4)


@each_engine
def test_a_run_that_is_done_stays_so(engine, tmp_path):
    """Cut off between two records, resumed, and resumed again for longer: always what a run without a cut gives."""
    if engine == "debug":
        with pytest.raises(profl.InputError, match="checkpoint needs engine='fast'"):
            debug(Counting(), None, checkpoint=tmp_path, **SETTINGS)
        return
    settings = {**SETTINGS, "stop": profl.StopWhenSettled(0.3, least=1), "record_every": 3}
    whole = ENGINES[engine](Counting(), [], **settings)
    ENGINES[engine](Counting(), [], checkpoint=tmp_path, **{**settings, "rounds": 2})
    runs, seen = [], []
    for _ in range(2):
        runs.append(ENGINES[engine](Counting(), seen, checkpoint=tmp_path, **settings))
    made = [] if engine == "fast" else [(client, step) for client in range(4) for step in range(4, 8)]
    assert sorted(seen) == made
    for run in runs:
        assert run.settled == whole.settled == (4,)
        assert run.stop_reason == (GOOD,)
        for figure in ("theta", "deployments", "expected_excess", "expected_error"):
            np.testing.assert_allclose(getattr(run, figure), getattr(whole, figure), rtol=1e-6)
        np.testing.assert_allclose(run.info["loss"], whole.info["loss"], rtol=1e-5)
    longer = ENGINES[engine](Counting(), seen, checkpoint=tmp_path, **{**settings, "rounds": 12})
    assert longer.settled == (4,)
    assert longer.deployments[0].tolist() == [0, 24, 32, 32, 32]
    with pytest.raises(profl.InputError, match=r"another run: .*stop: attribute tolerance was 0.3, is 0.2"):
        ENGINES[engine](Counting(), seen, checkpoint=tmp_path, **{**settings, "stop": profl.StopWhenSettled(0.2)})


def test_too_few_reports_are_still_an_error():
    """One report of four cannot be used: the round changes nothing, whatever would have been expected after it."""
    settings = {**SETTINGS, "attack": "nan", "hostile": [1], "min_reports": 4}
    for engine in (fast, debug):
        with pytest.raises(profl.TooFewReports, match="round 1: fewer than min_reports=4") as found:
            engine(Counting(), None, stop=profl.StopWhenSettled(1e9, least=1), **settings)
        assert found.value.run.settled == (None,)


def test_it_is_in_the_summary_in_json_and_on_disk(tmp_path):
    run = profl.simulate(
        CASE, Counting(by_seed=True), seeds=range(5), stop=profl.StopWhenSettled(0.45, least=1), **SETTINGS
    )
    ends = [end for end in run.settled if end]
    text = run.summary()
    expected, error = (values[:, -1].mean() for values in (run.expected_excess, run.expected_error))
    assert f"expected excess over PO {expected:.4g} ± {error:.4g}" in text
    assert (
        f"{len(ends)} of 5 seeds stopped after {2 * min(ends)} to {2 * max(ends)} deployments per client because"
        in text
    )
    assert GOOD in text
    plain = json.loads(json.dumps(run.to_dict()))
    assert plain["settled"] == list(run.settled)
    assert plain["stop_reason"] == list(run.stop_reason)
    np.testing.assert_allclose(plain["expected_excess"]["mean"], expected, rtol=1e-6)
    run.save(tmp_path / "run.npz")
    back = profl.load(tmp_path / "run.npz")
    assert back.settled == run.settled
    assert back.stop_reason == run.stop_reason
    np.testing.assert_array_equal(back.expected_excess, run.expected_excess)
    np.testing.assert_array_equal(back.expected_error, run.expected_error)
    one = fast(Counting(), None, stop=profl.StopWhenSettled(0.3, least=1), **SETTINGS)
    assert f"\nstopped after 8 deployments per client because {GOOD}" in one.summary()
    silent = fast(profl.pfl(), None, **SETTINGS)
    assert silent.expected_excess is None
    assert silent.expected_error is None
    assert silent.settled == silent.stop_reason == (None,)
    assert "stopped" not in silent.summary()


def test_a_run_that_was_saved_before_there_was_a_stop_can_be_read(tmp_path):
    run = fast(profl.pfl(), None, **SETTINGS)
    run.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays.pop("meta")))
    del meta["settled"], meta["stop_reason"]
    meta |= {"format": 4, "sha256": sha256(sorted(arrays.items()))}
    np.savez(tmp_path / "old.npz", **arrays, meta=np.array(json.dumps(meta)))
    assert profl.load(tmp_path / "old.npz").settled == (None,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": 0.0}, r"tolerance must be above 0, got 0.0; tolerance=None"),
        ({"tolerance": "small"}, r"tolerance must be a finite number, got 'small'"),
        ({"cost": -1}, r"cost must be at least 0, got -1; try"),
        ({"payback": 0}, r"payback must be above 0, got 0; try"),
        ({"least": 0}, r"least must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(profl.InputError, match=message):
        profl.StopWhenSettled(**settings)


@dataclass(frozen=True)
class Silent(Counting):
    name = "silent"

    def forecast(self, problem, server):
        return None


@each_engine
def test_a_method_that_states_no_forecast_is_refused_before_any_work(engine):
    for method in (profl.pfl(), Silent()):
        seen: list[Any] = []
        with pytest.raises(profl.InputError, match=f"{method.name}: this method states no uncertainty; prm does"):
            ENGINES[engine](method, seen, stop=profl.StopWhenSettled(0.1), **SETTINGS)
        assert not seen


def test_stop_must_be_one():
    with pytest.raises(
        profl.InputError, match=r"stop must be a profl.StopWhenSettled such as profl.StopWhenSettled\(0.01\), got 0.01"
    ):
        fast(Counting(), None, stop=0.01, **SETTINGS)
