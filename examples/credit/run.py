"""Banks that score applicants who game the score: real credit data, split over banks, through ``profl.train``.

    profl data get credit
    python run.py

Every bank holds its own rows and never shows them. Once a score theta is published, applicants move from x to
x - gamma_i theta, which a bank only sees in the applications that come in. ``profl.cases.credit`` is the same world
with its answers stated; here it is used at the end alone, to say how good a score is on the people it attracts.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import profl
from profl.cases.responding import MeasuredClassMeans
from profl.cases.strategic import RidgeCrossEntropy

BANKS = 5


class Bank:
    """Rows of its own, and applicants who answer the published score."""

    def __init__(self, rows: np.ndarray, defaults: np.ndarray, gamma: float, seed: int) -> None:
        self.rows, self.defaults, self.gamma = rows, defaults, gamma
        self.seed = seed

    def deploy(self, theta, samples, step):
        chosen = np.random.default_rng([self.seed, step]).integers(len(self.rows), size=samples)
        return {"x": self.rows[chosen] - self.gamma * theta, "y": self.defaults[chosen]}


def banks(world: profl.Problem) -> list[Bank]:
    """The clients of the case as objects that hold nothing but their own rows."""
    parts = world.clients
    return [
        Bank(parts["x"][i].T[: parts["count"][i]], parts["y"][i][: parts["count"][i]], float(parts["gamma"][i]), i)
        for i in range(world.count)
    ]


def main(rounds: int = 60, data=None) -> dict[str, float]:
    """Accuracy at the start, after retraining, after profl, and at the optimum."""
    world = profl.cases.credit(clients=BANKS, data=data)
    features = world.clients["x"].shape[1]
    problem = profl.LiveProblem(
        "banks",
        RidgeCrossEntropy(),
        MeasuredClassMeans(),
        sample={"x": np.zeros(features), "y": 0},
        initial=world.initial,
        project=profl.Box(-10.0, 10.0),
        weights=world.weights,
    )
    found = {"start": 0.0, "stable point": world.accuracy(world.stable), "optimum": world.accuracy(world.optimum)}
    for name, method in {"retraining (pfl)": profl.pfl(0.3), "pofl": profl.pofl(0.3)}.items():
        run = profl.train(problem, method, banks(world), rounds=rounds, samples=2000, report=print, progress=False)
        found["start"] = world.accuracy(run.theta[0, 0])
        found[name] = float(np.mean([world.accuracy(theta) for theta in run.theta[0, -max(1, rounds // 10) :]]))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--data", help="file or folder with the credit data; else PROFL_DATA or the cache")
    options = parser.parse_args()
    try:
        figures = main(options.rounds, options.data)
    except profl.InputError as error:
        sys.exit(f"{error}")
    for name, accuracy in figures.items():
        print(f"{name:18} {accuracy:.2%}")
