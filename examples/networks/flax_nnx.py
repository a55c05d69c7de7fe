"""A Flax NNX network: ``nnx.split`` makes a pytree of its parameters, ``nnx.merge`` the network again."""

import jax
from flax import nnx
from world import problem, train


def made(key):
    rngs = nnx.Rngs(params=key)
    return nnx.Sequential(nnx.Linear(1, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 1, rngs=rngs))


graph = nnx.split(made(jax.random.key(0)))[0]


def initial(key):
    return nnx.split(made(key))[1]


def score(theta, x):
    return nnx.merge(graph, theta)(x)[..., 0]


if __name__ == "__main__":
    train(problem("Flax NNX", initial, score))
