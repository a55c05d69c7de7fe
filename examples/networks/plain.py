"""A network as a dictionary of arrays: nothing but JAX."""

import jax
import jax.numpy as jnp
from world import problem, train


def initial(key):
    inner, outer = jax.random.split(key)
    weights = jax.random.normal(inner, (1, 16)), jax.random.normal(outer, (16,)) / 4
    return {"inner": weights[0], "bias": jnp.zeros(16), "outer": weights[1]}


def score(theta, x):
    return jnp.tanh(x @ theta["inner"] + theta["bias"]) @ theta["outer"]


if __name__ == "__main__":
    train(problem("plain JAX", initial, score))
