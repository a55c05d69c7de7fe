"""A process for every call of a campaign gives the run of ``simulate``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import profl
from profl.campaign import Campaign
from tests.campaign_call import METHODS, SAMPLES, stores

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "rounds", "count"), [("quick", 3, 2), pytest.param("prm", 30, 83, marks=pytest.mark.slow)]
)
def test_a_process_per_call_equals_one_simulation(name, rounds, count, tmp_path):
    """In double precision; in single, where rounding decides which models are taken, thirty rounds differ by 2e-5."""
    url = f"sqlite:///{tmp_path}/juice.db"
    own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "JAX_ENABLE_X64": "1"}
    for _ in range(rounds):
        for word in ("ask", "tell"):
            command = [sys.executable, "-m", "tests.campaign_call", word, url, name, str(count)]
            subprocess.run(command, check=True, cwd=ROOT, env=own)
    with jax.enable_x64(True):
        method, (case, _) = METHODS[name], stores(count)
        with Campaign(url, case, method) as campaign:
            run = campaign.run()
        layout = {"rounds": rounds, "local_steps": 1, "samples": SAMPLES, "record_every": 1}
        expected = profl.simulate(case, method, seeds=[0], progress=False, **layout)
    np.testing.assert_allclose(run.theta, expected.theta, atol=1e-5)
    assert run.deployments[0, -1] == rounds * count
