"""A problem whose data come from live clients: ``profl.train`` runs it. No exact risk and no optimum are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.problem.families import Family
from profl.problem.limits import as_limits, limited_space
from profl.problem.model_space import everywhere
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.problem.validation import arguments
from profl.typing import Array, Batch, Client, Key, Loss, Theta


@dataclass(frozen=True)
class Unknown(Reaction):
    """The reaction of live clients, of which only the shapes of a sample are known."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], type], ...]  # shape and dtype of each leaf of one sample

    live = True

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        """Zeros: engines use only the shapes."""
        return jax.tree.unflatten(self.structure, [jnp.zeros((n, *shape), dtype) for shape, dtype in self.leaves])


@checks.explain_call
@dataclass(frozen=True, eq=False)
class LiveProblem:
    """A problem whose data come from live clients: a loss and a family, without a reaction.

    Args:
      name: shown in tables and plots.
      loss: ``loss(theta, z)`` of one sample, a scalar.
      family: describes the data's distribution by f; see ``profl.problem.families``.
      sample: one sample z, as an example of its structure, shapes and dtypes; the values do not matter.
      initial: the model to start from, or ``initial(key) -> theta``.
      project: onto the model space.
      weights: alpha_i; equal by default.
      signal: what the data react to, a vector made from theta; theta itself by default.
      push: where a sample would lie under another model, if that is known; see ``Problem``.
      names: what the numbers of a model are called, in the order of its flattened pytree.
      columns: what the numbers of a sample are called, likewise: the columns of a table of data.
      version: stands for what cannot be compared from process to process; see ``Problem``.
      limits: what every deployed model keeps; see ``Problem``.

    >>> from profl.problem.families import GaussianMean
    >>> shop = LiveProblem("shop", lambda price, z: -jnp.sum(price * z), GaussianMean(), np.zeros(2), np.ones(2))
    >>> shop.problem(3).count, shop.problem(3).exact
    (3, False)
    """

    name: str
    loss: Loss
    family: Family
    sample: Batch
    initial: Any
    project: Callable[[Theta], Theta] = everywhere
    weights: Any = None
    signal: Callable[[Theta], Array] = trees.ravel
    push: Any = None
    names: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    version: str | None = None
    limits: Any = ()

    def __post_init__(self) -> None:
        arguments.check_statement(self)
        initial = arguments.as_initial(self.initial)
        like = jax.eval_shape(initial, random.seed_key(0)) if self.limits else None
        limited_space(self.project, as_limits(self.limits), like)
        _shapes(self.sample)
        for name in ("names", "columns"):
            words = getattr(self, name)
            if words is not None and (isinstance(words, str) or not isinstance(words, Iterable)):
                raise checks.InputError(f"{name} must be words such as ['tea', 'coffee'], got {checks.shown(words)}")

    def __repr__(self) -> str:
        return f"<LiveProblem {self.name!r}: data come from clients that deploy for real>"

    def problem(self, clients: int) -> Problem:
        """The ``Problem`` for a number of clients, as the engines take it."""
        return Problem(
            name=self.name,
            loss=self.loss,
            family=self.family,
            reaction=Unknown(jax.tree.structure(self.sample), _shapes(self.sample)),
            clients={"client": np.arange(checks.positive_int("the number of clients", clients))},
            initial=self.initial,
            project=self.project,
            weights=self.weights,
            signal=self.signal,
            push=self.push,
            version=self.version,
            limits=self.limits,
        )


def _shapes(sample: Batch) -> tuple[tuple[tuple[int, ...], type], ...]:
    """The shape and dtype of each leaf of a sample."""
    leaves = jax.tree.leaves(sample)
    if not leaves:
        raise checks.InputError("sample must be one sample z, such as np.zeros(5), got nothing")
    return tuple((np.shape(leaf), _dtype(leaf)) for leaf in leaves)


def _dtype(leaf: Any) -> type:
    """float, which JAX takes in its own precision, or int32 for integers."""
    kind = np.asarray(leaf).dtype.kind
    if kind not in "fiub":
        raise checks.InputError(f"sample must hold numbers, got {np.asarray(leaf).dtype}")
    return float if kind == "f" else np.int32
