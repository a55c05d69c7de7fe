"""The command line, as a person calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import profl
from profl.cli import app

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


def test_cases(tmp_path):
    result = call("cases", "--json", str(tmp_path / "cases.json"))
    assert result.exit_code == 0
    rows = {row["case"]: row for row in json.loads((tmp_path / "cases.json").read_text())["cases"]}
    assert rows["housing"]["stable"][0] == pytest.approx(7.7273, abs=1e-4)


def test_demo(tmp_path):
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
    assert [(run["case"], run["algorithm"]) for run in runs][2] == ("pricing", "pofl")
    assert runs[2]["tail_excess"]["mean"] < runs[0]["tail_excess"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "prcing"], "did you mean 'pricing'"),
        (["run", "pricing", "--algorithm", "poffl"], "did you mean 'pofl'"),
        (["run", "pricing", "--rounds", "0"], "rounds must be"),
        (["run", "pricing", "--seeds", "a-b"], "seeds must look like"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, message):
    done = subprocess.run([sys.executable, "-m", "profl.cli", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
