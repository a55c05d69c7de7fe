"""Two neighbouring data sets through every engine: of what leaves a client nothing differs but what was noised.

The one function that clips and noises is blinded: it gives numbers that do not depend on what it is given. Then all
that leaves a client, and all that anybody makes of it, must be the same to the bit, whatever becomes of the client's
data. ``test_privacy`` holds that function itself to its clip and its variance. Structures are walked as they are found,
so a field that is added tomorrow is compared tomorrow.
"""

from __future__ import annotations

import inspect
import logging
import time
from dataclasses import fields, is_dataclass, replace

import jax
import numpy as np
import optax
import pytest

import profl
from profl.campaign import fold
from profl.parts.jacobian.estimators import ESTIMATORS
from profl.parts.privacy import Privacy
from profl.run.live import protection
from profl.run.round import Work
from profl.run.run_history import run_round
from profl.server.rules import MIX, RULES
from tests.killed import CASE
from tests.problems import QUICK

SETTINGS = {"rounds": 2, "local_steps": 2, "samples": 20}
PRIVACY = Privacy(noise=0.5, clip=0.3)
CLIENTS = 4
PUSHED = replace(
    CASE,
    name="pushed shops",
    push=lambda z, deployed, theta: z - (theta - deployed),
)


def customers(theta, samples, step, client):
    rng = np.random.default_rng([client, step])
    return 6 - (1 + 0.4 * client) * np.asarray(theta) + rng.normal(size=(samples, 2))


def raising(kind):
    def spoil(batch):
        raise kind(f"customer {batch[0]} is odd")

    return spoil


def with_nan(batch):
    batch[3, 1] = np.nan
    return batch


NEIGHBOURS = {
    "as it is": lambda batch: batch,
    "other values": lambda batch: 40 - 3 * batch,
    "fewer rows": lambda batch: batch[:3],
    "more rows": lambda batch: np.repeat(batch, 3, axis=0),
    "no rows": lambda batch: batch[:0],
    "nothing": lambda batch: None,
    "NaN": with_nan,
    "huge": lambda batch: np.full_like(batch, 3e38),
    "words": lambda batch: np.full(batch.shape, "secret"),
    "another shape": lambda batch: batch[:, :1],
    "an exception": raising(ValueError),
    "an exit": raising(SystemExit),
}
"""What client 0 brings in place of its own data."""
FEW = ("as it is", "other values", "fewer rows", "huge", "an exception")


class Shop:
    def __init__(self, client, spoil):
        self.client, self.spoil = client, spoil if client == 0 else NEIGHBOURS["as it is"]

    def deploy(self, theta, samples, step):
        return self.spoil(customers(theta, samples, step, self.client))


def blind(self, tree, clip, number):
    rng = np.random.default_rng(number)
    return jax.tree.map(lambda leaf: 0.1 * clip * rng.normal(size=leaf.shape), tree)


@pytest.fixture(autouse=True)
def blinded(monkeypatch):
    monkeypatch.setattr(Privacy, "_add_noise", blind)


# -- what leaves, through each engine ----------------------------------------------------------------------------------


def by_train(method, spoil, problem=CASE, timeout=60.0):
    """Reports, and all that a run shows, saves or tells."""
    seen = []

    def watched(plan, root, history, clients, *rest):
        seen.append({client: report._replace(states="stay") for client, report in sorted(clients().items())})
        return run_round(plan, root, history, clients, *rest)

    shops = [Shop(client, spoil) for client in range(CLIENTS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "run_round", watched)
        listen = {"report": seen.append, "callbacks": seen.append, "progress": False, "timeout": timeout}
        run = profl.train(problem, method, shops, privacy=PRIVACY, **SETTINGS, **listen)
    return [*seen, *shown(run)]


def shown(run):
    run = replace(run, seconds=0.0)
    return run, run.to_dict(), run.summary(), run.to_pandas().to_dict("list"), run.to_pandas("clients").to_dict("list")


def by_flower(method, spoil, problem=CASE):
    """The bytes of every reply, and all that a run shows, saves or tells."""
    pytest.importorskip("flwr")
    from flwr.common.serde import recorddict_to_proto

    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app

    seen = []

    class Tapped(InProcessGrid):
        def deliver(self, message):
            replies = super().deliver(message)
            for reply in replies:
                assert not reply.has_error()
                assert "error" not in reply.content
                seen.append(recorddict_to_proto(reply.content).SerializeToString(deterministic=True))
            return replies

    own = Federation(problem, method, CLIENTS, privacy=PRIVACY, **SETTINGS)
    shops = [Shop(client, spoil) for client in range(CLIENTS)]
    strategy = ProFLStrategy(own, wait=1.0, report=seen.append, callbacks=seen.append)
    run = strategy.run(Tapped(make_client_app(own, shops), CLIENTS))
    return [*seen, *shown(run)]


ENGINES = {"train": by_train, "flower": by_flower}


def walk(value, path=""):
    """(where, what) of everything in a structure."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        for key in value:
            yield from walk(value[key], f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield f"{path} length", len(value)
        for i, item in enumerate(value):
            yield from walk(item, f"{path}[{i}]")
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        yield path, (str(array.dtype), array.shape, array.tobytes())
    else:
        assert value is None or isinstance(value, (bool, int, float, str, bytes)), f"{path} is a {type(value)}"
        yield path, repr(value)


def differences(one, other):
    """Where two structures are not the same to the bit."""
    one, other = dict(walk(one)), dict(walk(other))
    return sorted(where for where in one.keys() | other.keys() if one.get(where) != other.get(where))


def compare(engine, method, names, problem=CASE):
    usual = ENGINES[engine](method, NEIGHBOURS["as it is"], problem)
    assert len(dict(walk(usual))) > 100
    for name in names:
        assert differences(usual, ENGINES[engine](method, NEIGHBOURS[name], problem)) == [], name


# -- the tests ---------------------------------------------------------------------------------------------------------

SHARED = profl.profl(filter="none", share=2, jacobian=QUICK)


@pytest.mark.parametrize(("engine", "names"), [("train", tuple(NEIGHBOURS)), ("flower", FEW)])
def test_nothing_that_leaves_tells_neighbours_apart(engine, names):
    compare(engine, SHARED, names)


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(field, marks=pytest.mark.slow if field == "regret" else ())  # needs a problem that is exact
        for field in sorted(set(Work._fields) - {"states", "answered"})
    ],
)
def test_a_field_that_leaks_is_noticed(field, monkeypatch):
    """The comparison itself: each field of a report in turn leaves as it is. (Who is silent never gets so far.)"""
    protect, compared = protection.protect_report, {"finite": "huge"}.get(field, "fewer rows")

    def leaky(privacy, plan, sent, work, client, round_):
        return protect(privacy, plan, sent, work, client, round_)._replace(**{field: getattr(work, field)})

    monkeypatch.setattr(protection, "protect_report", leaky)
    problem = profl.cases.pricing(clients=CLIENTS, goods=2) if field == "regret" else CASE
    usual = by_train(SHARED, NEIGHBOURS["as it is"], problem)
    assert differences(usual, by_train(SHARED, NEIGHBOURS[compared], problem))


def test_words_of_an_exception_stay_in_the_log_of_the_client(caplog):
    with caplog.at_level(logging.WARNING, "profl.client"):
        told = by_train(SHARED, NEIGHBOURS["an exception"])
    assert "ValueError: customer [" in caplog.text
    assert not any("customer" in str(what) or "ValueError" in str(what) for _, what in walk(told))


def test_a_client_that_takes_too_long_reports_like_any_other():
    def slow(batch):
        time.sleep(0.6)
        return batch

    usual = by_train(SHARED, NEIGHBOURS["as it is"])
    assert differences(usual, by_train(SHARED, slow, timeout=0.3)) == []


# -- every option of the recipes ---------------------------------------------------------------------------------------

RECIPES = {"pfl": profl.pfl, "pofl": profl.pofl, "profl": profl.profl}
LIGHT = {"pofl": {"jacobian": QUICK}, "profl": {"jacobian": QUICK, "filter": "none"}}
OPTIONS = {
    "learning_rate": [0.05],
    "window": [4],
    "optimiser": [optax.adam],
    "correction": [None],
    "personal": [True],
    "jacobian": [*ESTIMATORS],
    "explore": [None, profl.parts.Exploration(), profl.parts.Exploration(directions="uncovered", fade=0.5)],
    "second_term": ["pathwise", "score", "push"],
    "filter": ["none", "robust", "paper", profl.parts.RobustFilter(at_most=0.1)],
    "aggregate": [*RULES, *(MIX + name for name in RULES)],
    "share": [None, "shrink", "auto", 2],
    "samples": [None],
}
"""Each option of a recipe with its values; those that are refused are below."""
EXACT = profl.cases.pricing(clients=CLIENTS, goods=2)
REFUSED = {
    "learning_rate": ("auto", "reports deployed, gradient, gradient_noise, loss_change, loss_error, steepness"),
    "correction": ("scaffold", "reports control"),
    "samples": (profl.parts.AdaptiveSamples(0.2, 20, 80), "number of samples must not depend on the data"),
}


def cases():
    for recipe, make in RECIPES.items():
        for option in inspect.signature(make).parameters:
            for value in OPTIONS[option]:  # an option that is new has to be added there
                yield pytest.param(recipe, option, value, id=f"{recipe}-{option}-{method_name(value)}")


def method_name(value):
    return getattr(value, "__name__", None) or str(value)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("recipe", "option", "value"), [*cases()])
def test_no_option_of_a_recipe_leaks(engine, recipe, option, value):
    method = RECIPES[recipe](**{**LIGHT.get(recipe, {}), option: value})
    compare(engine, method, FEW, PUSHED if value == "push" else EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_the_default_and_everything_at_once(engine):
    for method in (
        profl.profl(),
        profl.profl(share="auto", aggregate="nnm+trimmed_mean", optimiser=optax.adam),
        profl.profl(share="shrink", filter="paper", jacobian="kalman", aggregate="krum"),
        profl.pofl(personal=True, second_term="score"),
    ):
        compare(engine, method, tuple(NEIGHBOURS), EXACT)


@pytest.mark.parametrize("option", REFUSED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_options_that_tell_more_are_refused_before_any_work(recipe, option):
    if option not in inspect.signature(RECIPES[recipe]).parameters:
        pytest.skip(f"{recipe} has no {option}")
    value, message = REFUSED[option]
    method, never = RECIPES[recipe](**{option: value}), [raising(AssertionError)] * CLIENTS
    shops = [Shop(client, spoil) for client, spoil in enumerate(never)]
    with pytest.raises(profl.InputError, match=message):
        profl.train(CASE, method, shops, privacy=PRIVACY, progress=False, **SETTINGS)
    pytest.importorskip("flwr")
    from profl.run.flower import Federation, ProFLStrategy

    with pytest.raises(profl.InputError, match=message):
        ProFLStrategy(Federation(CASE, method, CLIENTS, privacy=PRIVACY, **SETTINGS))


@pytest.mark.parametrize("method", [profl.prm(), profl.two_stage()], ids=["prm", "two_stage"])
def test_methods_that_tell_more_are_refused(method):
    with pytest.raises(profl.InputError, match="privacy protects a model and a Jacobian once a round"):
        profl.train(CASE, method, [Shop(0, None)] * CLIENTS, privacy=PRIVACY, **{**SETTINGS, "rounds": 20})


def test_simulate_has_no_privacy():
    with pytest.raises(TypeError, match="privacy"):
        profl.simulate(CASE, profl.pfl(), privacy=PRIVACY, **SETTINGS)
