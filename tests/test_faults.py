"""Whatever goes wrong: no model outside its space, no state lost, an end with its reason, equal bits after crashes.

``make test-faults`` runs 500 schedules; a failing one prints the command that runs it again.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
ENGINES = {"live": 400, **({"flower": 100} if find_spec("flwr") else {})}
GROUP = 20  # schedules of one test: they share what is compiled
FULL = [(name, first) for name, count in ENGINES.items() for first in range(0, count, GROUP)]


def check(engine: str, seed: int, folder: Path) -> str:
    try:
        return import_module(f"tests.faults.{engine}").run(seed, folder)
    except Exception as error:
        raise AssertionError(f"run it again with: python -m tests.faults {engine} {seed}") from error


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_schedules(engine, tmp_path):
    told = [check(engine, seed, tmp_path / str(seed)) for seed in range(6)]
    assert sum("equal bits" in line for line in told) >= 2  # every third has crashes alone


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "first"), FULL)
def test_schedules(engine, first, tmp_path):
    for seed in range(first, first + GROUP):
        check(engine, seed, tmp_path / str(seed))
