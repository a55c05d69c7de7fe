"""``simulate`` under ``jax.distributed``: several processes on this machine make the run that one makes, to 1e-5."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.several import found, run

SETTINGS = {"rounds": 4, "local_steps": 2, "samples": 40, "seeds": [0]}
ROOT = Path(__file__).parent.parent


def by_several(processes, runs, devices=1):
    """What each process found, a list per process with one item per run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.several", str(port), str(processes)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(number), json.dumps(runs)], cwd=ROOT, env=environment, **pipes)
        for number in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=500) for process in started]
    finally:
        for process in started:
            process.kill()
    lines = [[line for line in out.splitlines() if line.startswith('{"devices"')] for out, _ in ended]
    assert [len(own) for own in lines] == [len(runs)] * processes, ended[0][1]
    return [[json.loads(line) for line in own] for own in lines]


def compare(several, arguments):
    """All processes return the same run, and it is the one that this process makes; of prm's figures, the loss.

    Others of its figures are of one candidate among several, and the last bit may decide which.
    """
    alone = found(run(**arguments))
    if arguments["name"] == "prm":
        alone["info"] = {"loss": alone["info"]["loss"]}
    for one in several:
        assert json.dumps(one) == json.dumps(several[0])
        for name, values in alone.items():
            pairs = values if isinstance(values, dict) else {name: values}
            there = one[name] if isinstance(values, dict) else one
            for key, expected in pairs.items():
                np.testing.assert_allclose(there[key], expected, rtol=1e-5, atol=1e-5, err_msg=key)


def test_two_processes_make_the_run_of_one_and_go_on_from_its_checkpoints(tmp_path):
    """By clients, by seeds, and in two halves of which another number of processes makes the second."""
    folder = str(tmp_path / "checkpoints")
    by_clients = {"name": "pfl", "settings": SETTINGS}
    by_seeds = {"name": "pfl", "settings": {**SETTINGS, "seeds": [0, 1]}}
    half = {"name": "pfl", "settings": {**SETTINGS, "rounds": 2, "checkpoint": folder}}
    uneven = {**by_clients, "clients": 3}
    results = by_several(2, [by_clients, by_seeds, half, uneven])
    assert results[0][0]["devices"] == [2, 1]
    for index, arguments in enumerate([by_clients, by_seeds]):
        compare([own[index] for own in results], arguments)
    whole = results[0][0]
    rest = found(run("pfl", {**SETTINGS, "checkpoint": folder}))  # here: the folder holds round 2
    np.testing.assert_allclose(rest["theta"], whole["theta"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[0][2]["theta"], np.asarray(rest["theta"])[:, :3], rtol=1e-5, atol=1e-5)
    assert "must be a multiple of the 2 processes, got 1 seeds and 3 clients" in results[1][3]["error"]


@pytest.mark.slow
def test_four_processes_of_two_devices_make_the_run_of_one(tmp_path):
    """With a filter, exchanges, a part of the clients, an attack, by seeds, and from what one process began.

    prm in double precision: the last bit of a loss decides the fourth digit of its models.
    """
    folder = str(tmp_path / "checkpoints")
    runs = [
        {"name": "profl", "settings": SETTINGS},
        {"name": "pofl", "settings": {**SETTINGS, "participation": 0.5, "attack": "sign_flip"}, "clients": 16},
        {"name": "prm", "settings": {**SETTINGS, "rounds": 6, "local_steps": 1}, "double": True},
        {"name": "pfl", "settings": {**SETTINGS, "seeds": list(range(8)), "record_every": 2}},
    ]
    run("pfl", {**SETTINGS, "rounds": 2, "checkpoint": folder})
    results = by_several(4, [*runs, {"name": "pfl", "settings": {**SETTINGS, "checkpoint": folder}}], devices=2)
    assert results[0][0]["devices"] == [8, 2]
    for index, arguments in enumerate(runs):
        compare([own[index] for own in results], arguments)
    compare([own[-1] for own in results], {"name": "pfl", "settings": SETTINGS})
