"""Command lines that nobody would type: each ends with a status and, where it is refused, one line."""

from __future__ import annotations

import pytest

import profl
from tests import command_lines


@pytest.mark.faults
@pytest.mark.slow
def test_three_hundred_command_lines_end_without_a_traceback(tmp_path):
    found = [command_lines.check(number, tmp_path / "place") for number in range(300)]
    assert not list(filter(None, found)), "\n".join(filter(None, found))


@pytest.mark.faults
def test_command_lines_end_without_a_traceback(tmp_path, monkeypatch):
    """The short form: what a run would give is at hand, and only written."""
    settings = {"rounds": 2, "samples": 20, "seeds": [0], "progress": False}
    run = profl.simulate(profl.cases.housing(clients=2), profl.pfl(), **settings)
    monkeypatch.setattr("profl.cli.run.simulate_config", lambda *_, **__: run)
    monkeypatch.setattr("profl.cli.compare.simulate_config", lambda *_, **__: run)
    found = [command_lines.check(number, tmp_path / "place") for number in range(1000, 1030)]
    assert not list(filter(None, found)), "\n".join(filter(None, found))
