"""Limits on what comes in: a weighted sum of clients' expected outcomes stays below or above a number.

    sum_i w_i E_{z ~ D_i(theta)} outcome(theta, z)  <=  c        or  >=  c

A sales volume, a loss ratio, or with weights of both signs the difference between two groups of clients. The reaction
decides what comes in, so nobody knows the left side at a model that was never deployed: such a limit is kept with a
stated ``confidence``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Array, Batch, Theta


@checks.explain_call
@dataclass(frozen=True)
class OutcomeLimit:
    """The limit sum_i w_i E_i outcome(theta, z) <= ``at_most``, or >= ``at_least``, on what comes in.

    Args:
      outcome: ``outcome(theta, z)`` of one sample, a scalar, differentiable in both as a loss is.
      at_most: the largest value that is allowed, or
      at_least: the smallest one.
      weights: w_i, one number per client; the clients' own weights alpha_i by default. Weights of both signs compare
        two groups of clients.
      confidence: the probability with which a deployment is to keep the limit, above 0.5 and below 1.
      name: what tables call it.

    A volume of at least 20, and equal approval rates of clients 0 and 1 within 0.02:

    >>> def volume(prices, sold):
    ...     return jnp.sum(sold)
    >>> OutcomeLimit(volume, at_least=20).words
    'volume at least 20'
    >>> import jax
    >>> def approved(theta, z):
    ...     return jax.nn.sigmoid(theta @ z["x"])
    >>> gap = [OutcomeLimit(approved, at_most=0.02, weights=w, name="gap") for w in ([1, -1], [-1, 1])]
    """

    outcome: Callable[[Theta, Batch], Array]
    at_most: float | None = None
    at_least: float | None = None
    weights: Any = None
    confidence: float = 0.9
    name: str | None = None

    def __post_init__(self) -> None:
        checks.function("outcome", "(theta, z) -> number", self.outcome)
        if (self.at_most is None) == (self.at_least is None):
            raise checks.InputError(
                "an OutcomeLimit must have exactly one of at_most and at_least, got "
                f"{'neither' if self.at_most is None else 'both'}: two limits are two OutcomeLimits"
            )
        side = "at_most" if self.at_least is None else "at_least"
        object.__setattr__(self, side, checks.real(side, getattr(self, side)))
        if not 0.5 < checks.real("confidence", self.confidence) < 1:
            raise checks.InputError(
                f"confidence must be a probability above 0.5 and below 1, got {checks.shown(self.confidence)}"
            )
        if self.name is not None:
            checks.text("name", self.name)
        if self.weights is None:
            return
        weights = checks.numbers_of("weights of an OutcomeLimit", self.weights, "one number per client")
        if weights.ndim != 1 or not np.isfinite(weights).all() or not weights.any():
            raise checks.InputError(
                "weights of an OutcomeLimit must be finite numbers, one per client, not all 0, "
                f"got {checks.shown(self.weights)}"
            )
        object.__setattr__(self, "weights", tuple(weights.tolist()))

    @property
    def bound(self) -> float:
        """The number that the outcome stays below or above."""
        bound = self.at_most if self.at_least is None else self.at_least
        assert bound is not None
        return bound

    @property
    def sign(self) -> float:
        """1 where the outcome stays below the bound, -1 where it stays above."""
        return 1.0 if self.at_least is None else -1.0

    @property
    def quantile(self) -> float:
        """Standard errors that lie between the expected outcome and the bound."""
        return NormalDist().inv_cdf(self.confidence)

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or getattr(self.outcome, "__name__", type(self.outcome).__name__).replace("_", " ")

    @property
    def words(self) -> str:
        """The limit in words."""
        return f"{self.title} {'at most' if self.at_least is None else 'at least'} {self.bound:g}"

    def misses(self, outcomes: Any) -> Any:
        """By how much ``outcomes`` miss the limit; below zero where they keep it."""
        return self.sign * (outcomes - self.bound)


def outcome_limits(limits: Sequence[Any]) -> tuple[OutcomeLimit, ...]:
    """The limits on what comes in, among limits of all kinds."""
    return tuple(limit for limit in limits if isinstance(limit, OutcomeLimit))


def with_weights(limits: Sequence[OutcomeLimit], weights: np.ndarray) -> tuple[OutcomeLimit, ...]:
    """The limits with weights of their own, those of the clients by default; refuses a wrong number of them."""
    for limit in limits:
        if limit.weights is not None and len(limit.weights) != len(weights):
            raise checks.InputError(
                f"weights of the limit {limit.words!r} must be one number per client, {len(weights)}, "
                f"got {len(limit.weights)}"
            )
    own = tuple(np.asarray(weights, float).tolist())
    return tuple(limit if limit.weights is not None else replace(limit, weights=own) for limit in limits)


def weight_table(limits: Sequence[OutcomeLimit]) -> np.ndarray:
    """The weights of all limits, (limits, clients)."""
    return np.array([limit.weights for limit in limits], float)


def outcome_values(limits: Sequence[OutcomeLimit], theta: Theta, z: Batch) -> Array:
    """The outcomes of one sample, (limits,)."""
    return jnp.stack([limit.outcome(theta, z) for limit in limits])


def refuse_outcome_limits(limits: Sequence[OutcomeLimit], who: str) -> None:
    """Refuse limits on what comes in, for somebody who cannot keep them."""
    if limits:
        raise checks.InputError(f"{who} cannot keep the limit {limits[0].words!r} on what comes in: use profl.prm()")


def estimate_names(count: int) -> list[str]:
    """What ``run.info`` calls the estimates of so many limited outcomes, and then their standard errors."""
    return [f"outcome {k}{words}" for words in ("", " error") for k in range(count)]
