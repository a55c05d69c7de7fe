"""``profl reproduce``: what is kept, what is run again, exit codes, settings, and every item in its quick form."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import robust
from benchmarks.bench import Bench, run
from profl import checks
from profl.cli import app
from profl.cli import reproduce as commands
from profl.data import MissingDataError
from profl_papers import profl2024
from profl_papers import reproduce as work
from profl_papers import trial as trials
from profl_papers.claims import Part, at_least, at_most, close
from profl_papers.profl2024 import ITEMS, Found, Item, Trial
from profl_papers.profl2024.printed import SUFFIX, WORK

NAMES = [
    "table1",
    "fig2a",
    "fig2b",
    "fig2c",
    "fig3a",
    "fig3b",
    "fig3c",
    "fig4a",
    "fig4b",
    "fig4c",
    "fig4d",
    "fig5a",
    "fig5b",
    "fig6a",
    "fig6b",
]


def made_item(name: str, ran: list[str], measured: float = 1.0, **more) -> Item:
    """An item that runs nothing and notes that it was asked; all its settings count as used."""

    def run(trial):
        ran.append(name)
        trial.used.update({key: [value, *np.atleast_1d(value)] for key, value in trial.settings.items()})
        row = {"rounds": trial.settings["rounds"], "risk": 0.25, "nothing": float("inf")}
        series = {"x": [0, 1], "mean": [2.0, 1.0], "low": [1.5, 0.5], "high": [2.5, 1.5]}
        lines = [{"label": "PFL", "method": "pfl", **series}, {"label": "ProFL", "method": "profl", **series}]
        spec = {"title": name, "x": "deployments", "y": "risk", "scale": "linear", "lines": lines}
        levels = [{"label": "optimum (PO)", "value": 0.5}]
        return Found([row], [at_most("a figure", measured, 2.0, paper="1")], [{**spec, "levels": levels}])

    settings = {"rounds": 200, "h": (0, 0.5)}
    return Item(name, f"title of {name}", {"eta": 0.1}, settings, "made", run, **more)


@pytest.fixture(autouse=True)
def no_pages(monkeypatch):
    """The report has tests of its own; here every directory would draw its landscapes again."""
    monkeypatch.setattr(commands, "write_pages", lambda *_: None)


@pytest.fixture
def made(monkeypatch):
    """Three items in place of the paper's; the list says which were run."""
    ran: list[str] = []
    items = {name: made_item(name, ran) for name in ("table1", "fig2a", "fig3a")}
    monkeypatch.setattr(work, "ITEMS", items)
    return items, ran


def call(*arguments):
    """In this process: the made items are not known to another."""
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments), "--workers", "1"], catch_exceptions=False)


def test_every_item_of_the_paper_is_there():
    assert list(ITEMS) == NAMES
    for name, stated in ITEMS.items():
        assert {"case", "clients", "method", "eta", "R", "n", "rounds"} <= stated.settings.keys(), name
        assert stated.why
        assert stated.paper


def test_a_second_run_is_kept_and_a_deleted_item_is_redone_alone(made, tmp_path):
    _, ran = made
    assert call("all", "--out", tmp_path).exit_code == 0
    assert ran == ["table1", "fig2a", "fig3a"]
    assert call("--out", tmp_path).exit_code == 0
    assert len(ran) == 3
    (tmp_path / "fig2a.json").unlink()
    call("--out", tmp_path)
    assert ran[3:] == ["fig2a"]


def test_what_makes_a_result_stale(made, tmp_path):
    """Other seeds, another length, --force, a damaged file, another version: each runs the item again."""
    _, ran = made
    call("table1", "--out", tmp_path)
    for arguments in (["--seeds", "0-2"], ["--quick", "--force"], ["--quick", "--seeds", "3"]):
        before = len(ran)
        call("table1", "--out", tmp_path, *arguments)
        assert len(ran) == before + 1, arguments
        call("table1", "--out", tmp_path, *[a for a in arguments if a != "--force"])
        assert len(ran) == before + 1, arguments
    file = tmp_path / "table1.json"
    for content in (file.read_text()[:50], "[]", file.read_text().replace('"profl": "', '"profl": "9.')):
        file.write_text(content)
        before = len(ran)
        call("table1", "--quick", "--out", tmp_path)
        assert len(ran) == before + 1, content[:20]


def test_a_quick_run_does_not_replace_a_full_one(made, tmp_path):
    _, ran = made
    call("table1", "--out", tmp_path)
    with pytest.raises(checks.InputError, match="holds a full run"):
        call("table1", "--out", tmp_path, "--quick")
    assert ran == ["table1"]
    assert work.read(tmp_path / "table1.json")["seeds"] == 10


def test_other_settings_run_again(made, tmp_path, monkeypatch):
    items, ran = made
    call("table1", "--out", tmp_path)
    items["table1"].settings["h"] = (0, 1)
    call("table1", "--out", tmp_path)
    assert ran == ["table1", "table1"]


def test_a_run_that_is_cut_off_goes_on(made, tmp_path):
    items, ran = made

    def fail(trial):
        raise KeyboardInterrupt

    whole = items["fig2a"]
    items["fig2a"] = Item(whole.name, whole.title, whole.paper, whole.settings, whole.why, fail)
    call("--out", tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["table1.json"]
    items["fig2a"] = whole
    call("--out", tmp_path)
    assert ran == ["table1", "fig2a", "fig3a"]


def test_a_file_of_all_items_is_written_after_each_and_gone_on_with(made, tmp_path):
    items, ran = made
    path = tmp_path / "all.json"
    whole, written = items["fig2a"], []

    def cut_off(trial):
        written.extend(json.loads(path.read_text())["items"])
        raise ValueError("a bug")

    items["fig2a"] = dataclasses.replace(whole, run=cut_off)
    with pytest.raises(ValueError, match="a bug"):
        call("--json", path)
    assert [found["item"] for found in written] == ["table1"]
    items["fig2a"] = whole
    call("--json", path)
    assert ran == ["table1", "fig2a", "fig3a"]
    assert [found["item"] for found in json.loads(path.read_text())["items"]] == ["table1", "fig2a", "fig3a"]
    with pytest.raises(checks.InputError, match="holds a full run"):
        call("--json", path, "--quick")
    path.write_text(path.read_text().replace('"source": "', '"source": "other '))
    call("table1", "--json", path)
    assert ran[3:] == ["table1"]


def test_json_has_the_form_of_the_design(made, tmp_path):
    call("table1", "fig3a", "--json", tmp_path / "all.json", "--quiet")
    items = json.loads((tmp_path / "all.json").read_text())["items"]
    assert [found["item"] for found in items] == ["table1", "fig3a"]
    assert {"item", "seeds", "seconds", "rows", "claims"} <= items[0].keys()
    assert items[0]["seeds"] == 10
    assert items[0]["rows"][0]["nothing"] is None
    assert {"claim", "expected", "measured", "threshold", "holds"} <= items[0]["claims"][0].keys()


def test_a_claim_that_fails_exits_1_and_is_named(made):
    items, ran = made
    items["fig3a"] = made_item("fig3a", ran, measured=3.0)
    result = call("all")
    assert result.exit_code == 1
    assert "2 of 3 claims hold" in result.output
    assert "does not hold: fig3a: a figure" in result.output
    assert call("table1").exit_code == 0


def test_a_claim_that_holds_in_direction_alone_is_named_and_does_not_exit_1(made):
    """Three verdicts: the middle one is counted apart and says by how much a figure is off."""
    items, _ = made
    far = at_least("a bias", 0.01, 0.005, printed=0.55)
    run = items["fig3a"].run
    items["fig3a"] = dataclasses.replace(items["fig3a"], run=lambda trial: run(trial)._replace(claims=[far]))
    result = call("all")
    assert result.exit_code == 0
    assert "2 of 3 claims hold, 1 in direction" in result.output
    assert "in direction, 55 times smaller: fig3a: a bias" in result.output


def test_what_was_changed_after_results_were_seen_is_said_wherever_a_result_is(made, tmp_path):
    """In the terminal, of one item and of several, and in the file; the words are today's, though the run is kept."""
    items, ran = made
    items["fig2a"] = dataclasses.replace(items["fig2a"], changed="A tolerance, from 1 to 2.", finding="Found so.")
    assert "fig2a: Changed after results had been seen: A tolerance" in call("all", "--out", tmp_path).output
    items["fig2a"] = dataclasses.replace(items["fig2a"], changed="Nothing but words.")
    shown = call("fig2a", "--out", tmp_path).output
    assert "Changed after results had been seen: Nothing but words." in shown
    assert "Found so." in shown
    assert len(ran) == 3
    assert work.read_all(tmp_path)[1]["changed"] == "Nothing but words."
    assert "Changed" not in call("table1").output


@pytest.mark.parametrize(("measured", "holds", "far"), [(1.0, True, ""), (1.1, True, "off by 0.1"), (0.8, False, "")])
def test_a_figure_is_close_or_only_on_the_right_side(measured, holds, far):
    claim = close("a figure", measured, 1.0, 0.05, direction=measured > 0.9)
    assert claim.holds == holds
    assert claim.far == far or not holds


def test_a_paper_stands_for_its_items_and_all_are_listed():
    assert [item.name for item in work.choose(["profl2024"])] == NAMES
    names = [name for name in work.works() if name != WORK]  # that runs on request
    listed = CliRunner().invoke(app, ["reproduce", "--list"], catch_exceptions=False)
    assert listed.exit_code == 0
    assert all(name in listed.output for name in (*NAMES, *names))
    printed = [item.name for item in work.choose(["profl2024"], literal=True)]
    assert printed == [*NAMES, *(name + SUFFIX for name in NAMES)]


def test_missing_data_say_how_to_get_them_before_anything_runs(made, tmp_path, monkeypatch):
    items, ran = made
    items["fig3a"] = made_item("fig3a", ran, data=("adult",))
    monkeypatch.setenv("PROFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingDataError, match="profl data get adult"):
        call("all")
    assert ran == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig2d"], "did you mean"),
        (["--seeds", "x"], "seeds must look like"),
        (["--workers", "0"], "workers must be"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(checks.InputError, match=message):
        CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)


# -- a result's settings are those it was made with

SETTING = {
    **{"learning_rate": "eta", "window": "H", "local_steps": "R", "samples": "n"},
    **{"fraction": "eps", "min_samples": "min n", "max_samples": "n"},
    "at_most": "most junk",
}
"""What a parameter is called in settings, where its name is another."""
PASSES_NOTHING = {"eps": [0], "H": [None], "share": [None], "tolerance": [None]}
"""Stated values that make no call or leave a parameter at its default."""


def made_problem():
    """What an item looks at in its problem; nothing is solved for the settings' test."""
    return SimpleNamespace(name="made", optimum=0.0, stable=1.0, risk=lambda theta: theta, accuracy=lambda theta: theta)


def made_run():
    """What an item looks at in a run of two seeds and ten rounds; nothing is run for the settings' test."""
    falling = np.linspace([2.0, 3.0], [1.0, 1.5], 11).T
    counted = np.cumsum(np.ones((2, 11)), axis=1)
    series = {"risk": falling, "excess": falling, "accuracy": falling, "samples": counted, "deployments": counted}
    seeds = {"seeds": (0, 1), "diverged": np.zeros(2, bool), "rounds": np.arange(11), "settings": {"clients": 2}}
    known = {"algorithm": "made", "optimum_risk": 0.0, "stable_risk": 1.0}
    tail = {"tail": lambda name: series[name][:, -1], "tail_excess": lambda: falling[:, -1]}
    return SimpleNamespace(**series, **seeds, **known, **tail)


@pytest.fixture
def passed(monkeypatch):
    """Setting -> values that cases, methods, junk, sample sizes and runs were in fact given; none of them is made."""
    seen: dict[str, list] = {}

    def note(name, value):
        if value not in seen.setdefault(name, []):
            seen[name].append(value)

    def spy(function, kind=None, ready=None, ignored=()):
        @functools.wraps(function)
        def called(*positional, **named):
            if kind:
                note(kind, function.__name__)
            given = inspect.signature(function).bind(*positional, **named).arguments
            for name, value in given.items():
                if name not in ignored:
                    note(SETTING.get(name, name), value)
            return ready

        return called

    case = made_problem()
    for name, function in trials.CASES.items():
        monkeypatch.setitem(trials.CASES, name, spy(function, "case", case))
    for name, function in trials.METHODS.items():
        monkeypatch.setitem(trials.METHODS, name, spy(function, "method", ignored=["samples"]))
    monkeypatch.setattr(trials, "contaminate", spy(trials.contaminate, ready=case, ignored=["problem"]))
    monkeypatch.setattr(trials, "AdaptiveSamples", spy(trials.AdaptiveSamples))
    monkeypatch.setattr(trials, "RobustFilter", spy(trials.RobustFilter, ready="robust"))
    ignored = ["problem", "algorithm", "method", "seeds", "progress"]
    monkeypatch.setattr(trials, "simulate", spy(trials.simulate, ready=made_run(), ignored=ignored))
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_an_item_uses_what_it_states_and_states_what_it_uses(name, passed):
    result = work.run(ITEMS[name], range(2))
    stated = {key: value if isinstance(value, list) else [value] for key, value in result["settings"].items()}
    expected = {key: [v for v in values if v not in PASSES_NOTHING.get(key, [])] for key, values in stated.items()}
    assert {key: sorted(values, key=str) for key, values in passed.items()} == {
        key: sorted(values, key=str) for key, values in expected.items()
    }


def test_items_make_cases_and_methods_through_their_trial_alone():
    """Whoever imports a case, a method or an engine could use what no setting states."""
    own = ("claims", "item", "measures", "profl2024", "trial")
    allowed = (*(f"profl_papers.{name}" for name in own), "profl.problem.problem", "profl.results.record")
    for file in Path(profl2024.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if module and module.split(".")[0] in ("profl", "profl_papers"):
                assert module.startswith(allowed), f"{file.name} imports {module}"


STATED = {"case": "housing", "clients": 2, "heterogeneity": (0, 0.5), "method": "pfl", "eta": 0.01, "rounds": 5}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trial: trial.case(heterogeneity=0.3), "heterogeneity = 0.3 is used but not stated"),
        (lambda trial: trial.case(), "settings state 2 values of heterogeneity: choose one"),
        (lambda trial: trial.case(heterogeneity=0, eps=0.1), "eps = 0.1 is used but not stated"),
        (lambda trial: trial.case(heterogeneit=0), "did you mean 'heterogeneity'"),
        (lambda trial: trial.method("profl"), "method = 'profl' is used but not stated"),
        (lambda trial: trial.method("pfl", tolerance=0.1), "tolerance = 0.1 is used but not stated"),
        (lambda trial: trial.method("pfl", eta=0.1), "eta = 0.1 is used but not stated"),
        (lambda trial: trial.simulate(None, None, n=5), "n = 5 is used but not stated"),
        (lambda trial: trial.check(), "settings state case = 'housing', which no run used"),
    ],
)
def test_a_trial_refuses_what_is_not_stated(call, message):
    with pytest.raises(checks.InputError, match=message):
        call(Trial(STATED, (0,)))


def test_a_value_that_no_run_used_is_refused():
    trial = Trial({key: STATED[key] for key in ("case", "clients", "heterogeneity")}, (0,))
    trial.case(heterogeneity=0)
    with pytest.raises(checks.InputError, match=r"settings state heterogeneity = 0\.5, which no run used"):
        trial.check()
    trial.case(heterogeneity=0.5)
    trial.check()


def test_benchmarks_are_plain_data():
    """Whatever kind of number a part hands over."""
    row = {"a": np.float32(0.5), "b": np.int64(2), "c": np.bool_(True), "d": jnp.ones(2), "e": np.nan}
    made = run({}, Bench(timed={"made": lambda: Part([row], [at_most("one", jnp.ones(()), 2)])}))
    assert json.loads(json.dumps(made))["rows"] == [{"a": 0.5, "b": 2, "c": True, "d": [1.0, 1.0], "e": None}]


@pytest.mark.slow
def test_a_benchmark_in_single_precision_is_plain_data(monkeypatch):
    """The filter's table, whose rows are NumPy's numbers of 32 bits."""
    monkeypatch.setattr(robust, "FIXED_SOURCES", ("blob",))
    found = run({}, Bench(timed={"robust": functools.partial(robust.filter_alone, 2)}))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.slow
def test_processes_side_by_side_find_the_same(tmp_path):
    """Two items in two processes, and one after the other: equal figures, in the paper's order."""
    items = [ITEMS["fig5b"], ITEMS["fig6a"]]
    beside, alone = (work.reproduce(items, range(2), quick=True, workers=workers) for workers in (2, 1))
    for one, other in zip(beside, alone, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize("name", ["fig6a"])
def test_a_quick_run(name, tmp_path):
    check_quick(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_item_runs_quickly(name, tmp_path):
    try:
        ITEMS[name].check_data()
    except MissingDataError as error:
        pytest.skip(str(error))
    check_quick(name, tmp_path)


def check_quick(name, tmp_path):
    """Short runs prove nothing; the form is complete, and every line has a band around its mean."""
    result = call(name, "--quick", "--out", tmp_path)
    assert result.exit_code in (0, 1)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["seeds"] == 2
    assert found["rows"]
    assert all(claim["measured"] is not None or not claim["holds"] for claim in found["claims"])
    assert found["panels"]
    for panel in found["panels"]:
        for line in panel["lines"]:
            assert len(line["x"]) == len(line["mean"]) == len(line["low"]) == len(line["high"]) > 1
            for low, mean, high in zip(line["low"], line["mean"], line["high"], strict=True):
                assert low - 1e-5 * abs(low) <= mean <= high + 1e-5 * abs(high)
