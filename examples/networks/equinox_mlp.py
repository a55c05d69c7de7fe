"""An Equinox network: a pytree already; ``eqx.partition`` takes out what is no array."""

import equinox as eqx
import jax
import jax.numpy as jnp
from world import problem, train


def made(key):
    return eqx.nn.MLP(1, "scalar", width_size=16, depth=1, activation=jnp.tanh, key=key)


static = eqx.partition(made(jax.random.key(0)), eqx.is_array)[1]


def initial(key):
    return eqx.filter(made(key), eqx.is_array)


def score(theta, x):
    return jnp.vectorize(eqx.combine(theta, static), signature="(d)->()")(x)


if __name__ == "__main__":
    train(problem("Equinox", initial, score))
