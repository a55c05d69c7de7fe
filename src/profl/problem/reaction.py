"""Reactions: what data come in once theta is deployed at a client.

A reaction states ``sample``. One that is known exactly also states

* ``parameters(theta, client)``: f_i(theta), the parameters of the family;
* ``decoupled(deployed, theta, client)``: DPR_i(deployed; theta) = E_{z ~ D_i(deployed)} l(z; theta), the risk of the
  model theta on the data that another model brought in (paper, Section II-A). Everything exact follows from it by
  differentiation: the risk is DPR_i(theta; theta), repeated gradient descent follows its gradient in the second
  argument alone, and the performative gradient is the total derivative;
* ``accuracy(deployed, theta, client)``, for classification: the share of right decisions.

A reaction holds no state. (People who adapt slowly would need one: it would enter and leave ``sample``.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from profl import random, trees
from profl.typing import Array, Batch, Client, Key, Theta


class Reaction:
    """Base class; subclasses are frozen dataclasses, so that equal reactions share compiled code."""

    parameters: Callable[..., Array] | None = None
    decoupled: Callable[..., Array] | None = None
    accuracy: Callable[..., Array] | None = None

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        raise NotImplementedError(f"{type(self).__name__} must define sample(key, theta, client, n) -> batch")

    def weights(self, client: Client, n: int, count: Array) -> Array:
        """Sample weights that sum to one when only the first ``count`` of ``n`` samples exist."""
        return jnp.where(jnp.arange(n) < count, 1.0 / count, 0.0)


@dataclass(frozen=True)
class SampledReaction(Reaction):
    """A reaction given by a function ``sample(key, theta, client, n)`` and, if known, ``parameters(theta, client)``."""

    function: Callable[[Key, Theta, Client, int], Batch]
    parameters: Callable[..., Array] | None = None

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.function(key, theta, client, n)


@dataclass(frozen=True)
class PooledReaction(Reaction):
    """All clients as one: theta is deployed everywhere and the data are put together, member m with weight alpha_m.

    A pooled client is ``{"members": stacked clients, "weights": alpha}``.
    """

    member: Reaction

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        count = trees.rows(client["members"])
        keys = jax.vmap(lambda m: random.data_key(key, m, 0))(jnp.arange(count))
        pooled = jax.vmap(lambda k, c: self.member.sample(k, theta, c, n))(keys, client["members"])
        return trees.joined(pooled)

    def weights(self, client: Client, n: int, count: Array) -> Array:
        each = jax.vmap(lambda c, k: self.member.weights(c, n, k))(client["members"], count)
        return (client["weights"][:, None] * each).ravel()

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._average(self.member.decoupled)

    @property
    def accuracy(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._average(self.member.accuracy)

    @staticmethod
    def _average(function: Callable[..., Array] | None) -> Callable[..., Array] | None:
        if function is None:
            return None

        def average(deployed: Theta, theta: Theta, client: Client) -> Array:
            return client["weights"] @ jax.vmap(lambda c: function(deployed, theta, c))(client["members"])

        return average
