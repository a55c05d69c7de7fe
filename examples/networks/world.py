"""People of two groups who answer to how a network scores them; what all examples of this folder have in common.

Class 0 makes itself look like class 1, the more the kinder the network is on average. People do not see parameters:
they see the mean score of each group, which is the ``signal``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import profl

PEOPLE = jnp.linspace(-2.0, 2.0, 8).reshape(2, 4, 1)  # a public reference set: two groups, four people each


def problem(name, initial, score):
    """The problem of a network with parameters ``initial(key)`` and ``score(theta, x)`` of people (..., 1)."""

    def signal(theta):
        return jax.nn.sigmoid(score(theta, PEOPLE)).mean(1)

    def loss(theta, z):
        found = score(theta, z["x"])
        return jax.nn.softplus(found) - z["y"] * found

    def sample(key, theta, client, n):
        who, noise = jax.random.split(key)
        y = jax.random.bernoulli(who, 0.5, (n,)).astype(jnp.int32)
        moved = client["gamma"] * signal(theta).mean() * (1 - y)
        return {"x": (2.0 * y - 1 + moved)[:, None] + jax.random.normal(noise, (n, 1)), "y": y}

    clients = {"gamma": np.array([0.5, 1.0])}
    return profl.Problem(name, loss, profl.ClassMeans(), sample, clients=clients, initial=initial, signal=signal)


def train(problem, rounds=5):
    """A short run; prints and returns the loss of what came in, in the first round and in the last."""
    run = profl.simulate(problem, profl.pofl(0.1), rounds=rounds, samples=100, seeds=[0], progress=False)
    first, last = (float(run.info["loss"][0, at]) for at in (1, -1))
    print(f"{problem.name}: mean loss {first:.3f} in round 1, {last:.3f} in round {rounds}")
    return first, last
