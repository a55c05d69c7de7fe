"""Deployments of the past that nobody planned, as ``prm`` takes them: slopes, how well they are known, and how far they
are believed.

    h_i = slopes of client i from a regression with fixed effects for clients and periods (``fixed_effects``)
    h_i = b_i + bias + noise_i,      bias ~ N(0, factor (belief size)^2),  the same at all clients

History is observational: whatever moved prices and sales together biases its slopes, and at all clients alike, so that
no number of clients makes the bias smaller. ``belief`` is its standard deviation as a share of a slope's size. In the
fit of ``response`` a client's history is an observation of its slopes, with the variance

    noise variance + clients x factor (belief size)^2

so that what all clients together make of their histories is as uncertain as the bias is: a mean over so many clients
divides a variance by as many. ``factor`` is 1 until planned deployments show a larger bias, and follows by EM. Planned
deployments add up and history does not, so that a history that is wrong is soon a history that says nothing. Only
slopes are taken from it: levels move on, and small variations show no curvature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.checks import InputError
from profl.methods.prm.fixed_effects import fit_panel
from profl.methods.prm.response import Moments, features
from profl.parts.units import Unit
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.storage.hashes import digest
from profl.typing import Array, Batch

BELIEF = 0.3
"""The usual belief: elasticities of ordinary regressions are off by some 30 %."""


@dataclass(frozen=True, eq=False)
class PastDeployments:
    """What past deployments say of the reaction; made by ``profl.methods.past_deployments``.

    Attributes:
      belief: standard deviation of the bias of a slope, as a share of its size.
      centre: (s,), the mean signal of the past.
      slope: (clients, p, s), each client's own slopes of f.
      variance: (clients, p, s), of these, without the bias.
      pooled: (p, s), the slopes of all clients together.
      pooled_error: (p, s), their standard errors, robust to correlation within a client.
      clusters: how many clients (or periods) these rest on.
      noise: (p,), the variance of f in one past deployment around the fit.
      rows: how many past deployments there are.
    """

    belief: float
    centre: np.ndarray
    slope: np.ndarray
    variance: np.ndarray
    pooled: np.ndarray
    pooled_error: np.ndarray
    noise: np.ndarray
    clusters: int
    rows: int

    @property
    def numbers(self) -> dict[str, Any]:
        """What a compiled program takes as an argument, so that another history needs no other program."""
        names = ("belief", "centre", "slope", "variance", "pooled")
        return {name: getattr(self, name) for name in names}

    def with_numbers(self, numbers: dict[str, Any]) -> PastDeployments:
        """History of these ``numbers``, which may be traced; the rest, which is for people, is left out."""
        return PastDeployments(**numbers, pooled_error=np.zeros(()), noise=np.zeros(()), clusters=0, rows=0)

    @cached_property
    def _digest(self) -> str:
        return digest({name: value for name, value in vars(self).items() if not name.startswith("_")})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PastDeployments) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"<{self.rows} past deployments of {len(self.slope)} clients, belief {self.belief:g}, {self._digest}>"

    def check(self, **sizes: int) -> None:
        """Refuse history of another problem, which has other ``sizes``: of clients, f or the signal."""
        own = dict(zip(("clients", "f", "signal"), self.slope.shape, strict=True))
        for name, size in sizes.items():
            if own[name] != size:
                raise InputError(
                    f"history is of another problem ({name}: {own[name]}, the problem has {size}): build it with "
                    "profl.methods.past_deployments(problem, ...)"
                )


class ClientHistory(NamedTuple):
    """What a client's history says of slopes, (p, s) each; in natural units from the first batch on."""

    slope: Array
    variance: Array  # without the bias
    pooled: Array  # the slope of all clients
    bias_variance: Array  # as believed before there are planned deployments
    centre: Array  # (s,): the signal around which it was observed
    belief: Array  # (): standard deviation of a slope's bias, as a share of its size
    clients: Array  # (): how many there are
    factor: Array  # (): the variance of the bias that planned deployments show, in those that were believed


@checks.explain_call
def past_deployments(
    problem: Problem | LiveProblem,
    client: Sequence[int] | np.ndarray,
    period: Sequence[Any] | np.ndarray,
    theta: Any,
    data: Sequence[Batch] | None = None,
    f: Any = None,
    covariates: Any = None,
    *,
    belief: float = BELIEF,
    period_effects: bool = True,
    clients: int | None = None,
    names: Sequence[str] | None = None,
) -> PastDeployments:
    """Past deployments for ``profl.prm(history=...)``, from one row for each.

    Args:
      problem: whose clients deployed them.
      client: (N,), which client, 0, 1, ...
      period: (N,), in which week, or what else moves all clients alike.
      theta: the models, a pytree whose leaves have N rows.
      data: N batches that came in, of any sizes; or
      f: (N, p), what the family estimates from them.
      covariates: (N, c), what else moved prices and sales together, such as promotions; regressed out.
      belief: the standard deviation of the bias of a slope, as a share of its size. What planned deployments show of
        the bias counts against it.
      period_effects: whether to remove what moves all clients in a period alike. Needs prices that differ between
        clients in a period.
      clients: how many there are, for a ``LiveProblem``; by default those that are named.
      names: of the model's numbers, for messages.

    >>> import profl
    >>> case = profl.cases.pricing(clients=3, goods=1)
    >>> rng = np.random.default_rng(0)
    >>> who, week = np.divmod(np.arange(60), 20)
    >>> price = 2 + 0.2 * rng.normal(size=(60, 1))
    >>> past = past_deployments(case, who, week, price, f=6 - 1.5 * price + 0.01 * rng.normal(size=(60, 1)))
    >>> past.pooled.round(1).tolist(), past.rows
    ([[-1.5]], 60)
    """
    if checks.real("belief", belief) < 0:
        raise InputError(f"belief must be 0 or more, got {belief!r}")
    who = np.asarray(client)
    if who.ndim != 1 or who.size < 2 or who.dtype.kind not in "iu":
        raise InputError("client must be whole numbers, one for each past deployment, and there must be at least two")
    count = problem.count if isinstance(problem, Problem) else clients or int(who.max()) + 1
    if who.min() < 0 or who.max() >= count:
        raise InputError(f"client must be numbers from 0 to {count - 1}, got {int(who.min())} to {int(who.max())}")
    when = np.unique(np.asarray(period).astype(str), return_inverse=True)[1]
    x = signals(problem, theta)
    if (data is None) == (f is None):
        raise InputError("give either data, the batches that came in, or f, what the family estimates from them")
    values = estimates(problem, data) if data is not None else np.asarray(f, float)
    extra = np.zeros((who.size, 0)) if covariates is None else np.asarray(covariates, float).reshape(who.size, -1)
    for name, rows in {"period": when, "theta": x, "data or f": values, "covariates": extra}.items():
        if len(rows) != who.size:
            raise InputError(f"{name} must have a row for each of {who.size} past deployments, got {len(rows)}")
        if not np.all(np.isfinite(rows)):
            raise InputError(f"{name} of past deployments must be finite numbers, got NaN or Inf")
    called = (
        list(names) if names is not None and len(names) == x.shape[1] else [f"theta[{k}]" for k in range(x.shape[1])]
    )
    needed = x.shape[1] + extra.shape[1] + len(np.unique(who)) + (len(np.unique(when)) if period_effects else 0)
    if who.size <= needed:
        raise InputError(
            f"history has {who.size} rows for {needed} unknowns (slopes, levels, periods): it takes more of them, or "
            "period_effects=False"
        )
    fit = fit_panel(who, when, x, values, extra, count, bool(period_effects), called)
    return PastDeployments(
        belief=float(belief),
        centre=x.mean(0),
        slope=fit.own,
        variance=fit.own_variance,
        pooled=fit.pooled,
        pooled_error=fit.error,
        noise=fit.noise,
        clusters=fit.clusters,
        rows=who.size,
    )


def signals(problem: Problem | LiveProblem, theta: Any) -> np.ndarray:
    """What people responded to, (N, s)."""
    if problem.signal is trees.ravel:
        return trees.flat_rows(theta).astype(float)
    return np.asarray(jax.jit(jax.vmap(problem.signal))(trees.to_device(theta)), float)


def estimates(problem: Problem | LiveProblem, data: Sequence[Batch]) -> np.ndarray:
    """f of every batch, (N, p); batches of one size are estimated at once."""
    sizes = np.array([trees.rows(batch) for batch in data])
    found: dict[int, np.ndarray] = {}
    estimate = jax.jit(lambda batch: problem.family.estimate(batch, jnp.full(trees.rows(batch), 1 / trees.rows(batch))))
    for size in np.unique(sizes):
        where = np.flatnonzero(sizes == size)
        stacked = trees.to_device(trees.stack([data[int(i)] for i in where]))
        found |= dict(zip(where.tolist(), np.asarray(jax.vmap(estimate)(stacked), float), strict=True))
    return np.stack([found[i] for i in range(len(sizes))])


# -- at a client -------------------------------------------------------------------------------------------------------


def client_history(past: PastDeployments, client: Array) -> ClientHistory:
    """The history of a client, in the problem's own units."""
    slope, variance, pooled, centre, belief = (
        jnp.asarray(value, float) for value in (past.slope, past.variance, past.pooled, past.centre, past.belief)
    )
    bias = jnp.zeros_like(pooled)
    count = jnp.full((), slope.shape[0], slope.dtype)
    return ClientHistory(slope[client], variance[client], pooled, bias, centre, belief, count, jnp.ones(()))


def empty_history(f: int, signal: int) -> ClientHistory:
    """The shapes of a client's history."""
    table, one = jnp.zeros((f, signal)), jnp.ones(())
    return ClientHistory(table, table, table, table, jnp.zeros(signal), one, one, one)


def in_natural_units(history: ClientHistory, unit: Unit) -> ClientHistory:
    """``history`` in natural units of the signal, and what is believed of its bias.

    The size of a slope is at least the root mean square of those of the same number: that a slope seems to be zero is
    not known without error either.
    """
    slope, pooled = history.slope * unit.scale, history.pooled * unit.scale
    squares = pooled**2
    size = jnp.maximum(squares, jnp.mean(squares, 1, keepdims=True))
    return history._replace(
        slope=slope,
        variance=history.variance * unit.scale**2,
        pooled=pooled,
        bias_variance=history.belief**2 * size,
        centre=unit.standardise(history.centre),
    )


def add_history(moments: Moments, history: ClientHistory, anchor: Array, unfitted: Array, noise: Array) -> Moments:
    """``moments`` with the history's slopes as observations of f's derivative at the centre of the history.

    ``unfitted`` (p,) is the variance of second-order coefficients where these are not fitted, else zero; ``noise`` (p,)
    is the variance of one sample's f, in which moments are counted.
    """
    step = history.centre - anchor
    jacobian = jax.jacfwd(features)(step)  # (m, s)
    variance = history.variance + history.clients * history.factor * history.bias_variance
    weight = noise[:, None] / (variance + (unfitted * jnp.sum(step**2))[:, None] + jnp.finfo(noise.dtype).tiny)
    gram = (jacobian * weight[:, None, :]) @ jacobian.T  # (p, m, m)
    return moments._replace(gram=moments.gram + gram, linear=moments.linear + (weight * history.slope) @ jacobian.T)


def update_factor(history: ClientHistory, slope: Array, error: Array) -> ClientHistory:
    """``history`` with the factor after a step of EM; ``slope`` and its variance ``error`` (p, s) are those that all
    clients share, given history and planned deployments."""
    ratio = ((slope - history.pooled) ** 2 + error) / (history.bias_variance + jnp.finfo(error.dtype).tiny)
    return history._replace(factor=jnp.maximum(jnp.mean(ratio), 1.0))
