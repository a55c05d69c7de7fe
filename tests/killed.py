"""A run with checkpoints that a test kills: ``python -m tests.killed ENGINE FOLDER OUT ROUNDS`` writes theta."""

from __future__ import annotations

import sys
import time

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
METHODS = {
    "loop": profl.pofl(jacobian="least_squares"),  # compiles in a third of the time
    "simulate": profl.pofl(),
    "shared": profl.profl(filter="none", share=2),
    "adaptive": profl.profl(filter="none", samples=profl.parts.AdaptiveSamples(0.2, 20, 80)),
}
SETTINGS = {"rounds": 12, "local_steps": 2, "samples": 30, "participation": 0.75, "progress": False}


def run(engine: str, folder: str | None = None, pause: float = 0.0, **settings) -> profl.Run:
    method = METHODS[engine]
    settings = {**SETTINGS, "checkpoint": folder, **settings}
    if engine in ("simulate", "adaptive"):
        return profl.simulate(CASE, method, seeds=[0, 1], **settings)
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


if __name__ == "__main__":
    engine, folder, out, rounds = sys.argv[1:]
    np.save(out, run(engine, folder, pause=0.05, rounds=int(rounds)).theta)
