"""A federation in one process that a test kills: ``python -m tests.flower_run FOLDER OUT ROUNDS``."""

from __future__ import annotations

import sys
import time

import numpy as np

from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app
from tests.killed import CASE, METHODS

SETTINGS = {"rounds": 6, "local_steps": 2, "samples": 30, "participation": 0.75, "seed": 3}


def federation(method=None, **settings):
    return Federation(CASE, METHODS["loop"] if method is None else method, 4, **{**SETTINGS, **settings})


class Slow(InProcessGrid):
    """Takes its time, so that a kill finds a round under way."""

    def deliver(self, message):
        time.sleep(0.03)
        return super().deliver(message)


if __name__ == "__main__":
    folder, out, rounds = sys.argv[1:]
    own = federation(rounds=int(rounds))
    app = make_client_app(own, folder=f"{folder}/clients")
    run = ProFLStrategy(own, checkpoint=f"{folder}/server").run(Slow(app, 4))
    np.save(out, run.theta)
