"""Whatever goes wrong: no model outside its space, no state lost, an end with its reason, equal bits after crashes.

``make test-faults`` runs 1,440 schedules; a failing one prints the command that runs it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.postgresql import server, why_not

pytestmark = pytest.mark.faults
ENGINES = {
    "live": 400,
    "campaign": 300,
    "campaign_postgresql": 300,
    "disk": 300,
    **({"flower": 100, "network": 40} if find_spec("flwr") else {}),
}
SHORT = {"campaign": 9, "campaign_postgresql": 3, "network": 1}  # schedules of the default run
GROUP = 20  # schedules of one test: they share what is compiled
NEEDED = pytest.mark.skipif(bool(why_not()), reason=why_not())
MARKS = {"campaign_postgresql": [NEEDED]}
FULL = [(name, first) for name, count in ENGINES.items() for first in range(0, count, GROUP)]
ROOT = Path(__file__).parent.parent


def check(engine: str, seed: int, folder: Path) -> str:
    try:
        return import_module(f"tests.faults.{engine}").run(seed, folder)
    except Exception as error:
        raise AssertionError(f"run it again with: python -m tests.faults {engine} {seed}") from error


@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS.get(name, [])) for name in ENGINES])
def test_a_few_schedules(engine, tmp_path):
    count = SHORT.get(engine, 6)
    told = [check(engine, seed, tmp_path / str(seed)) for seed in range(count)]
    assert sum("equal bits" in line for line in told) >= max(1, count // 3)  # every third has crashes alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "first"), [pytest.param(name, first, marks=MARKS.get(name, [])) for name, first in FULL]
)
def test_schedules(engine, first, tmp_path):
    for seed in range(first, first + GROUP):
        check(engine, seed, tmp_path / str(seed))


@pytest.fixture(scope="module")
def postgresql():
    with server() as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=NEEDED)])
def test_two_processes_at_once_are_killed_again_and_again(kind, seed, tmp_path, request):
    """By SIGKILL, at any statement or commit; two that live bring it to its end, and the bits are the same."""
    from tests.faults import campaign_log as log

    url = f"sqlite:///{tmp_path}/prices.db" if kind == "sqlite" else request.getfixturevalue("postgresql")
    if kind == "postgresql":
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    killed = 0
    for turn in range(4):
        numbers = [-1, -1] if turn == 3 else [100 * seed + 10 * turn + k for k in range(2)]
        command = [sys.executable, "-m", "tests.killed_campaign", url]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started = [
            subprocess.Popen([*command, str(number)], cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"}, **pipes)
            for number in numbers
        ]
        for process in started:
            out, err = process.communicate(timeout=300)
            assert process.returncode == -9 or out == "done\n", err
            killed += process.returncode == -9
    assert killed >= 2
    with log.open_campaign(url) as after:
        told = {event.deployment: after.data(event)["batch"] for event in after.events() if event.kind == "told"}
        log.compare(after, log.check(after, {}, told, set(told)))
