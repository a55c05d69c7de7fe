"""One of several processes of some runs, started by ``tests.test_processes``: prints a line of JSON for each.

``python -m tests.several PORT PROCESSES NUMBER RUNS``, with a list of the arguments of ``run`` as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import profl
from tests.problems import unmeasured


def run(name: str, settings: dict[str, Any], clients: int = 8, double: bool = False) -> profl.Run:
    """A run of the method by this name, on a case that all processes make for themselves."""
    case = unmeasured(profl.cases.pricing(clients=clients, goods=2))
    with jax.enable_x64(double):
        return profl.simulate(case, profl.methods.ALGORITHMS[name](), progress=False, **settings)


def found(run: profl.Run) -> dict[str, Any]:
    """What must be the same in every process, and in one."""
    return {
        "theta": np.asarray(run.theta).tolist(),
        "samples": run.samples.tolist(),
        "regret": run.deployed_regret.tolist(),
        "info": {name: np.asarray(values, float).tolist() for name, values in sorted(run.info.items())},
    }


if __name__ == "__main__":
    port, processes, number = map(int, sys.argv[1:4])
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
    devices = [jax.device_count(), jax.local_device_count()]
    for arguments in json.loads(sys.argv[4]):
        try:
            result: dict[str, Any] = found(run(**arguments))
        except profl.InputError as error:
            result = {"error": str(error)}
        print(json.dumps({"devices": devices, **result}))
