"""``make floor``: what it lets pass, what it fails, and the file it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import floor, floor_figures

FLOORS = {"instructions": {"pfl": 1000}, "time": {"pfl": 1.0}, "memory": {"pofl": 500.0}}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The command with figures of our own in place of measured ones."""
    monkeypatch.setattr(floor, "FLOORS", tmp_path / "floors.toml")
    monkeypatch.setattr(floor.track, "HERE", tmp_path)
    monkeypatch.setattr(floor.track, "HISTORY", tmp_path / "history.jsonl")
    monkeypatch.setattr(floor_figures, "dump_programs", lambda folder: None)

    def call(*arguments, times=(1.0,), instructions=1000, memory=500.0):
        attempts = iter(times)
        monkeypatch.setattr(floor_figures, "times", lambda: {"time": {"pfl": next(attempts)}})
        monkeypatch.setattr(floor_figures, "exact", lambda folder: {"instructions": {"pfl": instructions}})
        monkeypatch.setattr(floor_figures, "memory", lambda: {"memory": {"pofl": memory}})
        app = floor.typer.Typer()
        app.command()(floor.main)
        return CliRunner().invoke(app, arguments)

    floor.FLOORS.write_text(floor.as_toml(FLOORS))
    return call


def test_exact_figures_have_no_margin(measured):
    assert measured().exit_code == 0
    result = measured(instructions=1001)
    assert result.exit_code == 1
    assert "instructions, pfl: 1001, the floor is 1000" in result.output
    assert "make floor UPDATE=1" in result.output
    result = measured(instructions=999)
    assert result.exit_code == 0
    assert "instructions, pfl: below the floor" in result.output


def test_a_time_over_its_floor_is_measured_twice_more(measured):
    assert measured(times=(1.39,)).exit_code == 0
    assert measured(times=(2.0, 2.1, 1.3)).exit_code == 0
    result = measured(times=(2.0, 1.5, 1.6))
    assert result.exit_code == 1
    assert "time, pfl: 1.5, the floor is 1 and 40 % are allowed on it" in result.output


def test_memory_has_a_margin_of_its_own(measured):
    assert measured(memory=540.0).exit_code == 0
    assert measured(memory=560.0).exit_code == 1


def test_update_writes_the_floors_and_history_a_line(measured, tmp_path):
    assert measured("--update", "--history", instructions=2000).exit_code == 0
    written = tomllib.loads(floor.FLOORS.read_text())
    assert written["instructions"] == {"pfl": 2000}
    assert measured(instructions=2000).exit_code == 0
    (line,) = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    assert line["benchmark"] == "floor"
    assert line["claims"] == {"instructions, pfl": 2000, "time, pfl": 1.0, "memory, pofl": 500.0}
    assert (tmp_path / "history.png").exists()


def test_the_floors_are_of_what_is_measured():
    floors = tomllib.loads(floor.FLOORS.read_text())
    assert set(floors) == {*floor.MARGINS, "versions"}
    assert list(floors["time"]) == list(floors["instructions"]) == list(floor_figures.METHODS)


def test_the_largest_program_of_a_dump(tmp_path):
    (tmp_path / "module_1.before_optimizations.txt").write_text("a = b\n")
    (tmp_path / "module_2.before_optimizations.txt").write_text("a = b\nc = d\n")
    (tmp_path / "module_2.cpu_after_optimizations.txt").write_text("a = b\n" * 9)
    assert floor_figures.largest_program(tmp_path) == 2


@pytest.mark.slow
def test_floor_measures_all_of_it():
    """Whether the times hold depends on what else the machine does: the exact figures must."""
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-m", "benchmarks.floor"], cwd=root, capture_output=True, text=True)
    for kind, name in [("instructions", "prm"), ("time", "profl"), ("programs", "pfl, first run"), ("memory", "pofl")]:
        assert f"{kind:13}{name}" in done.stdout, done.stderr
    assert "instructions" not in done.stderr
    assert "programs" not in done.stderr
