"""``profl reproduce``: what is kept, what is run again, exit codes, and every item in its quick form."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from profl import checks
from profl.cli import app
from profl.cli import reproduce as commands
from profl.data import MissingDataError
from profl.experiments import reproduce as work
from profl.experiments.claims import at_most
from profl.experiments.paper import ITEMS, Found, Item

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
    """An item that runs nothing and notes that it was asked."""

    def run(trial):
        ran.append(name)
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
    for item in ITEMS.values():
        assert {"eta", "R", "n", "rounds", "case"} <= item.settings.keys(), item.name
        assert item.why
        assert item.paper


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
