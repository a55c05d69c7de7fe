"""People who come back with other features if they are rejected (Mofakhami, Mitliagkas and Gidel, AISTATS 2023).

A person x of a client's rows is rejected with the probability g(theta, x) that the model gives them. Who is rejected
comes back with the strategic features of another row, drawn at random; other features and the class stay:

    z = (x, y) with probability 1 - g(theta, x),   else z = (x with x'_S in place of x_S, y),   x' a row at random

Where all features are strategic, the density of x is p(x) (1 - g(theta, x) + E g): it depends on the model's
predictions alone, whatever the parameters are. The risk of a model on what another brought in is a sum over all pairs
of rows,

    DPR(deployed; theta) = E_x [(1 - g) l(theta, (x, y)) + g E_x' l(theta, (x with x'_S, y))],   g = g(deployed, x).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Loss, Theta


@dataclass(frozen=True)
class ResampleIfRejected(Reaction):
    """A reaction whose clients are {"x": (rows, d), "y": (rows,)}; with {"count": ()} only the first rows are people.

    Args:
      chance: ``chance(theta, x)`` of people (..., d), the probability (...) that each is rejected.
      strategic: the columns of x that a rejected person changes; None for all.
      loss: the problem's, for exact answers; they cost rows x rows losses each. None for none.

    >>> import numpy as np
    >>> chance = lambda theta, x: jax.nn.sigmoid(x @ theta)
    >>> people = {"x": np.eye(2), "y": np.array([0, 1])}
    >>> reaction = ResampleIfRejected(chance, strategic=(1,))
    >>> batch = jax.jit(reaction.sample, static_argnums=3)(random.seed_key(0), np.full(2, 100.0), people, 5)
    >>> [leaf.shape for leaf in jax.tree.leaves(batch)], np.asarray(batch["x"])[:, 0] + batch["y"]
    ([(5, 2), (5,)], Array([1., 1., 1., 1., 1.], dtype=float32))
    """

    chance: Callable[[Theta, Array], Array]
    strategic: tuple[int, ...] | None = None
    loss: Loss | None = None

    def __post_init__(self) -> None:
        checks.function("chance", "(theta, x) -> probability", self.chance)
        if self.loss is not None:
            checks.function("loss", "(theta, z) -> number", self.loss)
        if self.strategic is not None:
            columns = tuple(self.strategic) if isinstance(self.strategic, Iterable) else ()
            if not columns or any(type(column) is not int or column < 0 for column in columns):
                raise checks.InputError(
                    f"strategic must be columns of x, such as (0, 2), or None, got {checks.shown(self.strategic)}"
                )
            object.__setattr__(self, "strategic", columns)

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        who, back, other = jax.random.split(key, 3)
        rows, others = (random.indices(k, n, _count(client)) for k in (who, other))
        x = client["x"][rows]
        return {"x": self.resample(back, self.chance(theta, x), x, client["x"][others]), "y": client["y"][rows]}

    def resample(self, key: Key, chance: Array, x: Array, others: Array) -> Array:
        """People ``x`` (n, d), those who are rejected with the strategic features of ``others`` (n, d)."""
        rejected = jax.random.uniform(key, chance.shape, chance.dtype) < chance
        return jnp.where(rejected[:, None], self.replace_strategic(x, others), x)

    def replace_strategic(self, x: Array, others: Array) -> Array:
        """``x`` with the strategic features of ``others``."""
        if self.strategic is None:
            return jnp.broadcast_to(others, x.shape)
        columns = jnp.array(self.strategic)
        return x.at[..., columns].set(others[..., columns])

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return None if self.loss is None else self._risk

    def _risk(self, deployed: Theta, theta: Theta, client: Client) -> Array:
        x, y = client["x"], client["y"]
        people = jnp.arange(x.shape[0]) < _count(client)
        share = people.astype(x.dtype) / jnp.sum(people)
        assert self.loss is not None
        losses = jax.vmap(self.loss, (None, 0))
        g = self.chance(deployed, x)

        def as_other(total: Array, other: tuple[Array, Array]) -> tuple[Array, None]:
            features, its_share = other
            return total + its_share * losses(theta, {"x": self.replace_strategic(x, features), "y": y}), None

        back = jax.lax.scan(as_other, jnp.zeros(x.shape[0], x.dtype), (x, share))[0]
        return share @ ((1 - g) * losses(theta, {"x": x, "y": y}) + g * back)


def _count(client: Client) -> Any:
    return client["count"] if "count" in client else client["x"].shape[0]
