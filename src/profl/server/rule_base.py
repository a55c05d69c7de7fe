"""What an aggregation rule is, and how the server applies one (paper, Algorithm 1, line 17).

    rule(vectors (k, m), weights (k,), accepted (k,) bool, centre (m,)) -> (m,)

A rule that compares clients with their earlier reports sets ``has_memory`` and defines two functions more. Their memory
is part of the method's state at the server.

    rule.open(clients, size) -> memory
    rule.weigh(memory, vectors, weights, accepted, centre, client_ids (k,)) -> (weights (k,), memory)

``profl.server.rules`` has the rules, ``profl.server.gate`` says which reports may be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import checks, trees
from profl.problem.problem import View
from profl.typing import Array, Theta


class Rule:
    """Base class of aggregation rules; subclasses are frozen dataclasses.

    Attributes:
      has_memory: whether it compares clients with their earlier reports; then it defines ``open`` and ``weigh``.
      by_coordinate: whether the aggregate of a number depends on no other number of the rows.
    """

    has_memory: bool = False
    by_coordinate: bool = False

    def __call__(self, vectors: Array, weights: Array, accepted: Array, centre: Array) -> Array:
        """The aggregate (m,) of the accepted rows of ``vectors`` (k, m); ``centre`` is the previous aggregate."""
        raise NotImplementedError

    def aggregate_models(self, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
        """The aggregate of stacked models, as a pytree like ``centre``, the model that they started from."""
        flat, unravel = ravel_pytree(centre)
        return unravel(self(jax.vmap(trees.ravel)(models), weights, accepted, flat))

    def aggregate_weighed(self, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
        """The same where ``weights`` are those of ``weigh``, which has compared these very models."""
        return self.aggregate_models(models, weights, accepted, centre)

    @property
    def of_entries(self) -> Rule:
        """The rule that weighs the clients by their other entries, which are not models."""
        return self

    def open(self, clients: int, size: int) -> Any:
        """The memory before the first round, of so many clients and vectors of ``size`` numbers."""
        return ()

    def weigh(
        self, memory: Any, vectors: Array, weights: Array, accepted: Array, centre: Array, client_ids: Array
    ) -> tuple[Array, Any]:
        """The weights (k,) that this round's reports have, and the next memory; asked before the rule is applied."""
        return weights, memory

    def distrusted(self, memory: Any) -> dict[str, Array]:
        """The round from which on each client is distrusted, (clients,), -1 where it is not; by the reason in words."""
        return {}


@dataclass(frozen=True)
class FunctionRule(Rule):
    """A plain function of four arguments as a rule."""

    function: Callable[[Array, Array, Array, Array], Array]

    def __call__(self, vectors: Array, weights: Array, accepted: Array, centre: Array) -> Array:
        return self.function(vectors, weights, accepted, centre)


class MaskedRule(Rule):
    """Base class of rules that need not think of refused rows.

    Unusable rows become 0 with share 0, the shares sum to one, and the result is NaN where no row is usable.
    """

    def __call__(self, vectors: Array, weights: Array, accepted: Array, centre: Array) -> Array:
        usable = accepted & (weights > 0)
        share = jnp.where(usable, weights, 0.0).astype(vectors.dtype)
        share = share / jnp.where(jnp.any(usable), jnp.sum(share), 1.0)
        rows = jnp.where(usable[:, None], vectors, 0.0)
        return jnp.where(jnp.any(usable), self.combine(rows, share, usable, centre), jnp.nan)

    def combine(self, rows: Array, share: Array, usable: Array, centre: Array) -> Array:
        """The aggregate (m,) of ``rows`` (k, m) with ``share`` (k,) of the weight each."""
        raise NotImplementedError


def open_memory(rule: Rule, problem: View, theta: Theta) -> Any:
    """The memory of a rule before the first round; () for a rule without memory."""
    return rule.open(problem.client_count, trees.ravel(theta).size) if rule.has_memory else ()


def weigh(
    rule: Rule, memory: Any, problem: View, models: Theta, weights: Array, accepted: Array, centre: Theta
) -> tuple[Array, Any]:
    """The weights (k,) of stacked models once the rule has compared the clients with its memory; its next memory."""
    if not rule.has_memory:
        return weights, memory
    like = jax.eval_shape(lambda: open_memory(rule, problem, centre))
    if str(jax.tree.structure(memory)) != str(jax.tree.structure(like)):
        raise checks.InputError(
            f"{type(rule).__name__} remembers clients, and the method keeps something else at the server: let it hand "
            "super().combine what super().open made, and keep what that returns"
        )
    flat, sent = jax.vmap(trees.ravel)(models), trees.ravel(centre)
    assert problem.client_ids is not None
    return rule.weigh(memory, flat, weights, accepted, sent, problem.client_ids)


def weighted_mean(models: Theta, weights: Array, accepted: Array) -> Theta:
    """sum_i w_i theta_i over the accepted models, w renormalised over them; NaN where none is accepted.

    >>> models = jnp.array([[1.0], [3.0], [jnp.nan]])
    >>> weighted_mean(models, jnp.array([0.25, 0.25, 0.5]), jnp.array([True, True, False]))
    Array([2.], dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    share = share / jnp.sum(share)

    def average(leaf: Array) -> Array:
        safe = jnp.where(accepted.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0.0)
        return jnp.tensordot(share.astype(leaf.dtype), safe, axes=1)

    return jax.tree.map(average, models)
