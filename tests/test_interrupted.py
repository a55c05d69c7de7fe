"""Ctrl-C while ``profl run`` is at work: exit status 130, and what was done is in the file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

import profl

ROUNDS = 20000
"""So many that nobody sees the end of it; runs of this length once ended in a segmentation fault."""
SOON = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""Seconds: two, on a machine that is not doing many other things."""


HEARD = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('profl', run_name='__main__')"
)
"""``python -m profl``, also where the tests were started in the background: what is started there ignores Ctrl-C."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Where the processes keep their compiled code: only the first has to make it."""
    return str(tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize(
    "count", [1, pytest.param(3, marks=pytest.mark.pages), pytest.param(10, marks=pytest.mark.slow)]
)
def test_at_random_moments(count, tmp_path, compiled):
    draw = random.Random(count)
    for k in range(count):
        check_once(tmp_path / f"{k}", compiled, draw.uniform(0, 1.5))


def check_once(folder, compiled, wait):
    """Interrupted ``wait`` seconds after the first round is in the log."""
    folder.mkdir()
    log, saved = folder / "log.jsonl", folder / "run.npz"
    files = ["--log", str(log), "--save", str(saved), "--json", str(folder / "run.json")]
    command = ["run", "housing", "-a", "pfl", "--rounds", str(ROUNDS), "-n", "20", "--seeds", "0-1", "--clients", "2"]
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", HEARD, *command, *files], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not (log.is_file() and log.read_text().count("\n") > 1):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    time.sleep(wait)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    seconds = time.monotonic() - began
    assert process.returncode == 130, said
    assert "ending after the step it is at" in said
    run = profl.load(saved)
    done = int(run.rounds[-1])
    assert 0 < done < ROUNDS
    assert f"interrupted after round {done} of {ROUNDS}; what was done is in" in said
    assert str(saved) in said
    assert (folder / "run.json").is_file()
    assert seconds < SOON
