"""A run with checkpoints that a test kills: ``python -m tests.killed ENGINE FOLDER OUT ROUNDS`` writes theta.

The engines ``sites`` and ``shops`` have clients whose deployments are real: each one changes something, is noted, and
brings in data that nobody can draw again. A site can hand them over again (``collect``), a shop cannot.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import profl
from profl import random

DEMAND = 6.0


def sample(key, theta, client, n):
    return DEMAND - client["gamma"] * theta + random.normal(key, n, 2)


def revenue(theta, z):
    return -jnp.sum(theta * z)


@jax.jit
def start(key):
    return 2.0 + jax.random.uniform(key, (2,))


CASE = profl.Problem(
    "simulated shops",
    revenue,
    profl.GaussianMean(),
    sample,
    clients={"gamma": np.array([1.0, 1.4, 1.8, 2.2])},
    initial=start,
    project=profl.Box(0.0, 6.0),
    weights=[0.1, 0.2, 0.3, 0.4],
)
QUICK = profl.pofl(jacobian="least_squares")  # compiles in a third of the time
METHODS = {
    "loop": QUICK,
    "sites": QUICK,
    "shops": QUICK,
    "quick": QUICK,
    "simulate": profl.pofl(),
    "shared": profl.profl(filter="none", share=2),
    "adaptive": profl.profl(filter="none", samples=profl.parts.AdaptiveSamples(0.2, 20, 80)),
}
SETTINGS = {"rounds": 12, "local_steps": 2, "samples": 30, "participation": 0.75, "progress": False}


def run(engine: str, folder: str | None = None, pause: float = 0.0, **settings) -> profl.Run:
    method = METHODS[engine]
    settings = {**SETTINGS, "checkpoint": folder, **settings}
    if engine in ("simulate", "adaptive", "quick"):
        return profl.simulate(CASE, method, seeds=[0, 1], **settings)
    if engine in ("sites", "shops"):
        made = [{"sites": Site, "shops": Shop}[engine](number, Path(folder).parent) for number in range(CASE.count)]
        return profl.train(CASE, method, made, **{**settings, "local_steps": 5, "participation": 1.0})
    clients = profl.worlds.simulated_clients(CASE, method, samples=30)
    clients[0] = Paced(clients[0], pause)
    return profl.train(CASE, method, clients, **settings)


class Paced:
    """A client that takes its time, so that a kill finds the run under way."""

    def __init__(self, client, pause):
        self.client, self.pause = client, pause

    def deploy(self, theta, samples, step):
        time.sleep(self.pause)
        return self.client.deploy(theta, samples, step)


class Shop:
    """A client that writes down what it deploys, in ``deployed.jsonl``."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.folder = number, folder

    def deploy(self, theta, samples, step, id):
        line = {"client": self.number, "step": step, "id": id, "theta": np.asarray(theta).tobytes().hex()}
        sold = DEMAND - (1 + 0.4 * self.number) * theta + np.random.default_rng().normal(size=(samples, 2))
        self.note(id, json.dumps(line), sold)
        time.sleep(0.01)  # so that a kill finds it deployed and not told
        return sold

    def note(self, id, line, sold):
        with open(self.folder / "deployed.jsonl", "ab", buffering=0) as file:
            file.write(line.encode() + b"\n")


class Site(Shop):
    """One that keeps the data of its deployments: each is one file, there as a whole or not at all."""

    def note(self, id, line, sold):
        unique = f"{id}-{uuid.uuid4().hex}"
        np.savez(self.folder / f".{unique}.npz", line=line, sold=sold)
        os.replace(self.folder / f".{unique}.npz", self.folder / f"{unique}.npz")

    def collect(self, id, theta, samples):
        files = list(self.folder.glob(f"{id}-*.npz"))
        return np.load(files[0])["sold"] if files else None


def deployments(folder: Path) -> list[dict]:
    """What was deployed."""
    shops = folder / "deployed.jsonl"
    lines = shops.read_text().splitlines() if shops.exists() else []
    lines += [str(np.load(file)["line"]) for file in folder.glob("[0-9]*-*.npz")]
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    engine, folder, out, rounds = sys.argv[1:]
    np.save(out, run(engine, folder, pause=0.05, rounds=int(rounds)).theta)
