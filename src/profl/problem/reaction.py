"""Reactions: the distribution D_i(theta) of the data that a client gets once theta is deployed.

A reaction defines ``sample``. One that is known exactly also defines

* ``parameters(theta, client)``: f_i(theta), the parameters of the family;
* ``decoupled(deployed, theta, client)``: DPR_i(deployed; theta) = E_{z ~ D_i(deployed)} l(z; theta), the risk of the
  model theta on the data that another model brought in (paper, Section II-A). Everything exact follows from it by
  differentiation: the risk is DPR_i(theta; theta), repeated gradient descent follows its gradient in the second
  argument alone, and the performative gradient is the total derivative;
* ``accuracy(deployed, theta, client)``, for classification: the share of right decisions.

A reaction with memory or drift has a state per client, of fixed shape: ``start`` is the first one, ``move`` changes it
once with every deployment, ``sample_in`` draws data from it, and ``risk_in`` is the risk in it. The functions above
then describe the long run, after theta has been deployed for good. ``profl.problem.memory`` has ready-made ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from profl import checks, random, trees
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

    # -- memory: nothing to define where people respond at once --------------------------------------------------------

    def start(self, theta: Theta, client: Client) -> Any:
        """The state of a client's people before the first deployment, in a run that begins with ``theta``."""
        return ()

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        """The state after ``theta`` is deployed."""
        return state

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        """n samples in that state, with ``theta`` deployed."""
        return self.sample(key, theta, client, n)

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        """The risk of ``theta`` in that state, with ``deployed`` deployed."""
        assert self.decoupled is not None
        return self.decoupled(deployed, theta, client)

    live: bool = False
    """Whether real people react, so that nothing can be sampled here."""

    drifts: bool = False
    """Whether the world moves by itself, so that the optimum depends on time."""

    level: str | None = None
    """The name of the client's number that moves by default where the world drifts."""

    def at(self, clients: Client, time: float) -> tuple[Reaction, Client]:
        """(the long run of a world that is frozen at ``time`` deployments, the stacked clients in it)."""
        return self, clients


@dataclass(frozen=True)
class SampledReaction(Reaction):
    """A reaction given by a function ``sample(key, theta, client, n)`` and, if known, ``parameters(theta, client)``."""

    function: Callable[[Key, Theta, Client, int], Batch]
    parameters: Callable[..., Array] | None = None

    def __post_init__(self) -> None:
        checks.function("sample", "(key, theta, client, n) -> batch", self.function)
        if self.parameters is not None:
            checks.function("parameters", "(theta, client) -> f", self.parameters)

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.function(key, theta, client, n)


@dataclass(frozen=True)
class WrappedReaction(Reaction):
    """Another reaction, ``inner``, to which everything is forwarded that a subclass does not define.

    ``inner`` sees the model ``inner_model(theta)`` and the client ``client[client_key]``, by default both unchanged.
    """

    inner: Reaction

    client_key: ClassVar[str | None] = None

    def inner_client(self, client: Client) -> Client:
        return client if self.client_key is None else client[self.client_key]

    def inner_model(self, theta: Theta) -> Theta:
        return theta

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.inner.sample(key, self.inner_model(theta), self.inner_client(client), n)

    def weights(self, client: Client, n: int, count: Array) -> Array:
        return self.inner.weights(self.inner_client(client), n, count)

    def start(self, theta: Theta, client: Client) -> Any:
        return self.inner.start(self.inner_model(theta), self.inner_client(client))

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        return self.inner.move(state, key, self.inner_model(theta), self.inner_client(client))

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.inner.sample_in(state, key, self.inner_model(theta), self.inner_client(client), n)

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        models = self.inner_model(deployed), self.inner_model(theta)
        return self.inner.risk_in(state, *models, self.inner_client(client))

    @property
    def parameters(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._forward(self.inner.parameters)

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._forward(self.inner.decoupled)

    @property
    def accuracy(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return self._forward(self.inner.accuracy)

    def _forward(self, function: Callable[..., Array] | None) -> Callable[..., Array] | None:
        """A function of models and a client, for this reaction's; None stays None."""
        if function is None:
            return None
        return lambda *models: function(*map(self.inner_model, models[:-1]), self.inner_client(models[-1]))

    @property
    def level(self) -> str | None:  # type: ignore[override]
        return self.inner.level

    @property
    def drifts(self) -> bool:  # type: ignore[override]
        return self.inner.drifts

    @property
    def live(self) -> bool:  # type: ignore[override]
        return self.inner.live

    def at(self, clients: Client, time: float) -> tuple[Reaction, Client]:
        inner, inside = self.inner.at(self.inner_client(clients), time)
        return replace(self, inner=inner), inside if self.client_key is None else {**clients, self.client_key: inside}


class Unmeasured(WrappedReaction):
    """A reaction without its exact risk."""

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return None

    @property
    def accuracy(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return None


@dataclass(frozen=True)
class PooledReaction(Reaction):
    """All clients as one: theta is deployed everywhere and the data are put together, member m with weight alpha_m.

    A pooled client is ``{"members": stacked clients, "weights": alpha}``.
    """

    member: Reaction

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        pooled = jax.vmap(lambda k, c: self.member.sample(k, theta, c, n))(self._keys(key, client), client["members"])
        return trees.concatenate_batches(pooled)

    def start(self, theta: Theta, client: Client) -> Any:
        return jax.vmap(lambda c: self.member.start(theta, c))(client["members"])

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        moved = jax.vmap(lambda s, k, c: self.member.move(s, k, theta, c))
        return moved(state, self._keys(key, client), client["members"])

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        pooled = jax.vmap(lambda s, k, c: self.member.sample_in(s, k, theta, c, n))
        return trees.concatenate_batches(pooled(state, self._keys(key, client), client["members"]))

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        each = jax.vmap(lambda s, c: self.member.risk_in(s, deployed, theta, c))
        return client["weights"] @ each(state, client["members"])

    @property
    def level(self) -> str | None:  # type: ignore[override]
        return self.member.level

    @property
    def drifts(self) -> bool:  # type: ignore[override]
        return self.member.drifts

    @property
    def live(self) -> bool:  # type: ignore[override]
        return self.member.live

    def at(self, clients: Client, time: float) -> tuple[Reaction, Client]:
        member, members = self.member.at(clients["members"], time)
        return replace(self, member=member), {**clients, "members": members}

    @staticmethod
    def _keys(key: Key, client: Client) -> Key:
        return jax.vmap(lambda m: random.data_key(key, m, 0))(jnp.arange(trees.rows(client["members"])))

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
