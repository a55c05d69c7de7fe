"""The command line, as a person calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from profl.cases import CASES
from profl.cli import app, main
from profl.cli.cases import ANSWERS, describe_case, stored

SHORT = ["--rounds", "3", "--samples", "20", "--seeds", "0-1", "--clients", "2"]


def call(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_help_teaches():
    assert "profl demo" in call("--help").output
    text = call("run", "--help").output
    assert "Local steps per round" in text
    assert "Example" in text


def test_run_writes_json_plot_and_file(tmp_path):
    files = [str(tmp_path / name) for name in ("run.json", "run.png", "run.npz")]
    result = call("run", "housing", *SHORT, "--json", files[0], "--plot", files[1], "--save", files[2])
    assert result.exit_code == 0
    assert "excess over PO" in result.output
    content = json.loads((tmp_path / "run.json").read_text())
    run = profl.load(files[2])
    assert content["runs"][0]["tail_excess"]["mean"] == pytest.approx(run.tail_excess().mean())
    assert (tmp_path / "run.png").stat().st_size > 5000


def test_quiet_prints_nothing(tmp_path):
    result = call("run", "housing", *SHORT, "--quiet", "--json", str(tmp_path / "a.json"))
    assert result.output == ""
    assert (tmp_path / "a.json").exists()


def test_compare():
    result = call("compare", "housing", *SHORT, "--algorithms", "pfl,pofl")
    assert result.exit_code == 0
    assert "pofl" in result.output


@pytest.mark.parametrize("names", [("housing", "adult"), pytest.param(tuple(CASES), marks=pytest.mark.slow)])
def test_cases(names, tmp_path, monkeypatch):
    monkeypatch.setattr("profl.cli.cases.CASES", {name: CASES[name] for name in names})
    result = call("cases", "--json", str(tmp_path / "cases.json"))
    assert result.exit_code == 0
    rows = {row["case"]: row for row in json.loads((tmp_path / "cases.json").read_text())["cases"]}
    assert tuple(rows) == names
    assert rows["housing"]["stable"][0] == pytest.approx(7.7273, abs=1e-4)


@pytest.mark.parametrize(
    "name", ["housing", *[pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "housing"]]
)
def test_stored_answers_are_those_of_today(name):
    known = stored()
    if name not in known:
        pytest.skip("not stored: solved when asked for")
    found = describe_case(name, CASES[name])
    for key in ANSWERS:
        if found[key] is not None:  # its data are here
            np.testing.assert_allclose(known[name][key], found[key], atol=1e-5, rtol=1e-5)


def test_a_case_that_somebody_added_is_solved(tmp_path, monkeypatch):
    monkeypatch.setattr("profl.cli.cases.CASES", {"housing": lambda: profl.cases.housing(heterogeneity=0)})
    call("cases", "--quiet", "--json", str(tmp_path / "cases.json"))
    (row,) = json.loads((tmp_path / "cases.json").read_text())["cases"]
    assert row["optimum_risk"] == pytest.approx(5.556549, abs=1e-6)  # the closed form; with the default 5.6819


def again():
    return replace(profl.cases.pricing(), name="again")


@pytest.mark.parametrize("second", [again, pytest.param(profl.cases.housing, marks=pytest.mark.slow)])
def test_demo(second, tmp_path, monkeypatch):
    """By default its second case is the first one again, whose programs are there."""
    monkeypatch.setattr("profl.experiments.compare.housing", second)
    result = call(
        "demo",
        "--rounds",
        "40",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "demo.png"),
        "--json",
        str(tmp_path / "d.json"),
    )
    assert result.exit_code == 0
    assert (tmp_path / "demo.png").stat().st_size > 5000
    runs = json.loads((tmp_path / "d.json").read_text())["runs"]
    made = [(case, algorithm) for case in ("pricing", second.__name__) for algorithm in ("pfl", "pg", "pofl")]
    assert [(run["case"], run["algorithm"]) for run in runs] == made
    assert runs[2]["tail_excess"]["mean"] < runs[0]["tail_excess"]["mean"]


def test_an_error_is_one_line_and_exit_2_of_the_process():
    done = subprocess.run([sys.executable, "-m", "profl.cli", "run", "prcing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'pricing'" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "pricing", "--algorithm", "poffl"], "did you mean 'pofl'"),
        (["run", "pricing", "--rounds", "0"], "rounds must be"),
        (["run", "pricing", "--seeds", "a-b"], "seeds must look like"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["profl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
