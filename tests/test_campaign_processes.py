"""A process for every call of a campaign gives the run of ``simulate``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    method = METHODS[name]
    url, (case, _) = f"sqlite:///{tmp_path}/juice.db", stores(count)
    for _ in range(rounds):
        for word in ("ask", "tell"):
            command = [sys.executable, "-m", "tests.campaign_call", word, url, name, str(count)]
            subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    with Campaign(url, case, method) as campaign:
        run = campaign.run()
    expected = profl.simulate(
        case, method, rounds=rounds, local_steps=1, samples=SAMPLES, seeds=[0], record_every=1, progress=False
    )
    np.testing.assert_allclose(run.theta, expected.theta, atol=1e-5)
    assert run.deployments[0, -1] == rounds * count
