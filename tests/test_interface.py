"""What people type: names, signatures that type checkers see, and old names that warn."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import profl

ONE_RUN = {"seeds": "seed"}  # what RunConfig calls several
SETTINGS = [field.name for field in dataclasses.fields(profl.RunConfig)]
MODULES = ("callbacks", "cases", "data", "methods", "parts", "server", "worlds")


def federation():
    pytest.importorskip("flwr")
    from profl.run.flower.federation import Federation

    return Federation.__init__


ENTRIES = {
    "simulate": (lambda: profl.simulate, {}, {}),
    "compare": (lambda: profl.compare, {}, {}),
    "train": (lambda: profl.train, ONE_RUN, {"seeds": 0, "min_reports": 1}),
    "Federation": (federation, ONE_RUN, {"seeds": 0, "min_reports": 1}),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_point_takes_the_settings_of_a_run(name):
    """All of them, by the same words, in the same order, with the same types and defaults but for those stated."""
    find, words, defaults = ENTRIES[name]
    parameters = inspect.signature(find()).parameters
    named = [key for key, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    assert named[: len(SETTINGS)] == [words.get(key, key) for key in SETTINGS]
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values())
    for field in dataclasses.fields(profl.RunConfig):
        own = parameters[words.get(field.name, field.name)]
        expected = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        assert own.default == defaults.get(field.name, expected), field.name
        assert own.annotation == ("int" if field.name in words else field.type), field.name


def test_simulate_and_train_take_the_same_order():
    assert list(inspect.signature(profl.simulate).parameters)[:2] == ["problem", "method"]
    assert list(inspect.signature(profl.train).parameters)[:3] == ["problem", "method", "clients"]


SETTING_VALUES = {
    "rounds": 3,
    "local_steps": 2,
    "samples": [20, 21],
    "seeds": 4,
    "participation": 0.5,
    "scheme": "weighted",
    "record_every": 2,
    "initial": 1.5,
    "attack": "nan",
    "hostile": [1],
    "min_reports": 1,
    "stop": profl.StopWhenSettled(0.5),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_setting_reaches_the_config_under_its_own_name(name, monkeypatch):
    """The entry points hand settings on by position: each must land where it belongs."""
    built: list[profl.RunConfig] = []

    class Done(Exception):
        pass

    def config(*values: object) -> None:
        built.append(profl.RunConfig(*values))
        raise Done

    find, words, _ = ENTRIES[name]
    function = find()
    monkeypatch.setitem(inspect.unwrap(function).__globals__, "RunConfig", config)
    given = {words.get(key, key): value for key, value in SETTING_VALUES.items()}
    first = {"compare": (None, [profl.pfl()])}.get(name, (None,) * (2 if name == "simulate" else 3))
    with pytest.raises(Done):
        function(*((None,) if name == "Federation" else ()), *first, **given)
    assert vars(built[0]) == {**SETTING_VALUES, "seeds": (4,)}


def test_a_run_of_one_seed_refuses_several():
    case, method = profl.cases.housing(clients=2), profl.pfl()
    clients = profl.worlds.simulated_clients(case, method, samples=20)
    with pytest.raises(profl.InputError, match=r"seed must be one whole number, got \[0, 1\]"):
        profl.train(case, method, clients, rounds=1, seed=[0, 1])


def test_the_old_order_of_train_still_works_and_warns():
    case, method = profl.cases.housing(clients=2), profl.pfl()
    clients = profl.worlds.simulated_clients(case, method, samples=20)
    settings = {"rounds": 2, "samples": 20, "progress": False}
    with pytest.warns(DeprecationWarning, match=r"train\(problem, method, clients\)") as caught:
        old = profl.train(clients, method, case, **settings)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        new = profl.train(case, method, clients, **settings)
        named = profl.train(clients=clients, method=method, problem=case, **settings)
    assert old.theta.tolist() == new.theta.tolist() == named.theta.tolist()


# -- names


@pytest.mark.parametrize("name", profl.OLD_NAMES)
def test_an_old_name_warns_and_is_what_its_new_name_says(name):
    place, _, new = profl.OLD_NAMES[name].rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"^profl\.{name} is {profl.OLD_NAMES[name]} now") as caught:
        thing = profl.__getattr__(name)
    assert len(caught) == 1
    module = importlib.import_module(place)
    assert thing is vars(module)[new]
    assert place.startswith("profl_papers") or new in module.__all__
    assert name not in profl.__all__


def test_an_old_name_can_be_imported_and_the_warning_names_the_importer():
    with pytest.warns(DeprecationWarning, match="profl.Settled is profl.StopWhenSettled now") as caught:
        from profl import Settled
    assert Settled is profl.StopWhenSettled
    assert caught[0].filename == __file__


def test_what_is_shown_is_what_is_public():
    assert dir(profl) == sorted([*profl.__all__, "__version__"])
    assert len(profl.__all__) <= 48  # a page of completions
    assert {name for name in profl.__all__ if isinstance(vars(profl)[name], ModuleType)} == set(MODULES)
    for name in MODULES:
        module = vars(profl)[name]
        assert set(module.__all__) <= set(vars(module)), name
    assert set(profl.cases.CASES) <= set(profl.cases.__all__)


def test_an_unknown_name_is_an_error_and_an_added_method_is_found(monkeypatch):
    with pytest.raises(AttributeError, match="module 'profl' has no attribute 'Scedule'"):
        _ = profl.Scedule
    monkeypatch.setitem(profl.methods.ALGORITHMS, "mine", profl.pfl)
    assert profl.mine is profl.pfl


# -- type checkers

RIGHT = """
import profl

case = profl.cases.pricing(clients=4)
method: profl.methods.Method = profl.pofl(explore=profl.parts.Exploration())
run = profl.simulate(case, method, rounds=5, seeds=range(3), samples=[1, 2, 3, 4], stop=profl.StopWhenSettled())
clients = profl.worlds.simulated_clients(case, method)
live: profl.Run = profl.train(case, method, clients, rounds=5, seed=3, privacy=profl.parts.Privacy(1.0))
runs = profl.compare(case, [method], rounds=5, attack=profl.server.ATTACKS["nan"], hostile=[1])
watch = profl.callbacks.Terminal()
config = profl.RunConfig(rounds=5)
"""
WRONG = {
    "profl.simulate(case, method, round=5)": 'Unexpected keyword argument "round"',
    'profl.simulate(case, method, rounds="five")': 'Argument "rounds" to "simulate" has incompatible type "str"',
    "profl.simulate(case, method)": 'Missing named argument "rounds"',
    "profl.simulate(case, method, rounds=5, seed=3)": 'Unexpected keyword argument "seed"',
    "profl.train(case, method, clients, rounds=5, seeds=3)": 'Unexpected keyword argument "seeds"',
    "profl.train(case, method, clients, rounds=5, seed=range(3))": 'incompatible type "range"; expected "int"',
    "profl.train(clients, method, case, rounds=5)": 'Argument 1 to "train" has incompatible type',
    "profl.compare(case, [method], round=5)": 'Unexpected keyword argument "round"',
    "profl.Settled()": 'Module has no attribute "Settled"',
}


def test_type_checkers_see_the_signatures(tmp_path):
    """mypy on a person's own script, strict about what a module exports."""
    pytest.importorskip("mypy")
    script = tmp_path / "own.py"
    first = RIGHT.count("\n") + 1
    script.write_text(RIGHT + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--no-implicit-reexport", "--follow-imports=silent", str(script)]
    source = Path(profl.__file__).parent.parent
    own = {"MYPYPATH": str(source), "PATH": "", "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=tmp_path, check=False)
    errors: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            number = int(line.split(":")[1])
            errors[number] = errors.get(number, "") + line
    expected = {first + i: message for i, message in enumerate(WRONG.values())}
    assert set(errors) == set(expected), done.stdout
    for number, message in expected.items():
        assert message in errors[number]
