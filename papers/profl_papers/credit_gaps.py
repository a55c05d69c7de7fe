"""Variants of the credit benchmark of Perdomo et al. (2020) whose stable point is not the optimum.

(a) The intercept is penalised as well: it can no longer absorb the shift for nothing. (b) All ten features move, and
ten clients answer with different strengths eps_k; each has a tenth of the rows, which are put defaults first and then
shuffled. The intercept is free.

    DPR(d; theta) = mean_k mean_i [log(1 + e^s) - y s] + (lam / 2) |penalised part of theta|^2,
    s = x_i.theta - eps_k d_S.theta_S

Retraining (RRM) is exact. Figures on record are from an earlier run of the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.credit import STRATEGIC, Rows

PENALISED: dict[str, dict[float, tuple[float, float | None, float | None]]] = {
    "1000 / n": {
        1: (0.091, None, None),
        10: (0.60, 0.651616, 0.651368),
        25: (0.72, 0.650783, 0.650747),
        80: (0.80, None, None),
        100: (0.85, 0.650444, 0.650443),
        200: (0.94, None, None),
    },
    "0.002": {80: (0.40, None, None), 100: (0.52, 0.615184, 0.615177)},
}
"""lam -> eps -> by how much a step of RRM is shorter than the one before in the end, PR(PS) and PR(PO)."""
NEVER = {"1000 / n": (500, 1000), "0.002": (200,)}
"""lam -> eps at which RRM does not converge."""
RATE, RISK = 0.01, 1e-6
"""How near to those: rates are on record to two digits, risks to six."""
TINY = 1e-8
"""A step that counts as none."""


class Ten(NamedTuple):
    """A row of (b): gaps 1, 10 and 24; risks and accuracies at ERM, the last model and PO; |last - PO|."""

    lam: int  # times n
    strengths: tuple[float, ...]
    gaps: tuple[float, ...]
    risks: tuple[float, ...]
    accuracies: tuple[float, ...]
    away: float


def even(most: float) -> tuple[float, ...]:
    return tuple(np.linspace(0, most, 10).tolist())


TEN = {
    "1000 / n, eps 0 to 1": Ten(
        1000, even(1), (2e-2, 8e-9, 0.0), (0.66038, 0.65248, 0.65236), (0.634, 0.655, 0.653), 0.046
    ),
    "1000 / n, eps 0 or 1": Ten(
        1000, (0.0,) * 5 + (1.0,) * 5, (7e-2, 8e-6, 6e-12), (0.66458, 0.65455, 0.65423), (0.625, 0.643, 0.643), 0.063
    ),
    "1000 / n, eps 0 to 5": Ten(
        1000, even(5), (0.51, 0.61, 0.65), (0.86783, 0.70596, 0.66172), (0.574, 0.585, 0.612), 0.341
    ),
    "10 / n, eps 0 to 1": Ten(10, even(1), (2.8, 3.5, 3.5), (1.36300, 1.36198, 0.63747), (0.590, 0.584, 0.655), 1.95),
}
GAP, ROUGH, FEW = 0.02, 0.25, 1e-4
"""How near to the gaps, relative: those of two digits, of one; one below ``FEW`` need only be as small as that."""
RISK_OF_TEN, ACCURACY, AWAY = 1e-5, 1e-3, 0.01
"""How near to the risks, the accuracies and, relative, |last - PO|."""


class Benchmark(NamedTuple):
    """Rows of the clients, (clients, n, 11), strengths by feature, (clients, 11), and the penalty by coordinate."""

    x: Array
    y: Array
    moves: Array
    penalty: Array

    def risk(self, deployed: Array, theta: Array) -> Array:
        scores = self.x @ theta - (self.moves * deployed @ theta)[:, None]
        return jnp.mean(jax.nn.softplus(scores) - self.y * scores) + self.penalty @ theta**2 / 2

    def accuracy(self, theta: Array) -> Array:
        scores = self.x @ theta - (self.moves * theta @ theta)[:, None]
        return jnp.mean((scores > 0) == (self.y > 0.5))


def newton(function: Callable[[Array], Array], theta: Array) -> Array:
    """A minimum of ``function``, by Newton's steps in a trust region."""

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, size, count = carry
        values, axes = jnp.linalg.eigh(jax.hessian(function)(theta))
        move = axes @ ((axes.T @ jax.grad(function)(theta)) / jnp.maximum(jnp.abs(values), 1e-10))
        new = theta - move * jnp.minimum(1.0, size / (jnp.linalg.norm(move) + 1e-300))
        better = function(new) <= function(theta) + 1e-15
        return jnp.where(better, new, theta), jnp.where(better, 4 * size, size / 4), count + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        theta, size, count = carry
        return (jnp.max(jnp.abs(jax.grad(function)(theta))) > 1e-12) & (size > 1e-12) & (count < 60)

    return jax.lax.while_loop(goes_on, step, (theta, jnp.asarray(1.0), jnp.asarray(0)))[0]


@jax.jit
def fitted(here: Benchmark, deployed: Array, start: Array) -> Array:
    return newton(lambda theta: here.risk(deployed, theta), start)


@jax.jit
def optimum(here: Benchmark, start: Array) -> Array:
    return newton(lambda theta: here.risk(theta, theta), start)


@jax.jit
def stable_point(here: Benchmark, theta: Array) -> Array:
    """Where the gradient with data held is 0: plain Newton, from a model near it."""

    def field(theta: Array) -> Array:
        return jax.grad(here.risk, 1)(theta, theta)

    return jax.lax.fori_loop(0, 20, lambda _, t: t - jnp.linalg.solve(jax.jacobian(field)(t), field(t)), theta)


def retrain(here: Benchmark, count: int) -> tuple[list[Array], np.ndarray]:
    """ERM and the models of ``count`` steps of RRM from it, and the steps' lengths; it ends once they are tiny."""
    models, gaps = [fitted(here, jnp.zeros(11), jnp.zeros(11))], [np.inf]
    while len(gaps) <= count and gaps[-1] > 1e-13:
        models.append(fitted(here, models[-1], models[-1]))
        gaps.append(float(jnp.linalg.norm(models[-1] - models[-2])))
    return models, np.array(gaps[1:] + [0.0] * (count + 1 - len(gaps)))


def variants(data: Rows, count: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Both; RRM has ``count`` steps in (b), and six times as many in (a): it has converged then, or never will."""
    table, claims = penalised(data, 6 * count)
    of_clients = ten(data, count)
    return table + of_clients[0], claims + of_clients[1]


def penalised(data: Rows, count: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """(a)."""
    table, claims = [], []
    x, y, chosen = jnp.asarray(data.x)[None], jnp.asarray(data.y)[None], jnp.zeros(11).at[jnp.array(STRATEGIC)].set(1.0)
    for name, lam in (("1000 / n", 1000 / len(data.y)), ("0.002", 0.002)):
        for eps in (*PENALISED[name], *NEVER[name]):
            here = Benchmark(x, y, eps * chosen[None], jnp.full(11, lam))
            models, gaps = retrain(here, count)
            text = f"intercept penalised, lam = {name}, eps = {eps}"
            row: dict[str, Any] = {"minimiser": "exact, intercept penalised", "lam": name, "eps": eps}
            if eps in NEVER[name]:
                claims.append(at_least(f"{text}: last step of RRM", gaps[-1], TINY))
                table.append(row | {"last gap": gaps[-1]})
                continue
            seen = np.flatnonzero(gaps > TINY)[-1]
            rate, at, best = PENALISED[name][eps]
            ends = stable_point(here, models[-1]), optimum(here, models[-1])
            risks = [float(here.risk(end, end)) for end in ends]
            table.append(row | {"rate": gaps[seen] / gaps[seen - 1], "risk at PS": risks[0], "risk at PO": risks[1]})
            claims.append(
                close(f"{text}: last step of RRM over the one before", gaps[seen] / gaps[seen - 1], rate, RATE)
            )
            claims += [
                close(f"{text}: risk at {point}", risk, known, RISK)
                for point, risk, known in zip(("PS", "PO"), risks, (at, best), strict=True)
                if known is not None
            ]
            if (name, eps) == ("1000 / n", 1):
                first = np.asarray(models[0])
                length = float(np.linalg.norm(first[list(STRATEGIC)]))
                claims.append(
                    close("intercept penalised: loss of ERM", here.risk(jnp.zeros(11), models[0]), 0.652369, RISK)
                )
                claims.append(close("intercept penalised: |theta_S| of ERM", length, 0.047544, RISK))
    return table, claims


def ten(data: Rows, count: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """(b)."""
    table, claims, size = [], [], len(data.y) // 10
    order = np.argsort(1 - data.y, kind="stable")[np.random.default_rng(0).permutation(len(data.y))[: 10 * size]]
    x, y = jnp.asarray(data.x[order]).reshape(10, size, 11), jnp.asarray(data.y[order]).reshape(10, size)
    for name, known in TEN.items():
        lam = known.lam / y.size  # n is the rows used: seven are nobody's
        moves = jnp.asarray(known.strengths)[:, None] * jnp.ones(11).at[-1].set(0.0)
        here = Benchmark(x, y, moves, jnp.full(11, lam).at[-1].set(0.0))
        models, gaps = retrain(here, count)
        points = [models[0], models[-1]]
        found = [optimum(here, point) for point in points]
        points.append(min(found, key=lambda point: float(here.risk(point, point))))
        risks = [float(here.risk(point, point)) for point in points]
        accuracies = [float(here.accuracy(point)) for point in points]
        away = float(jnp.linalg.norm(points[1] - points[2]))
        seen = dict(zip(("risk at ERM", "risk at the last", "risk at PO"), risks, strict=True))
        table.append({"minimiser": "exact, ten clients", "lam": name, "last gap": gaps[-1], **seen})
        claims += of_ten(f"ten clients, lam = {name}", known, gaps, risks, accuracies, away)
    return table, claims


def of_ten(text: str, known: Ten, gaps: np.ndarray, risks: Any, accuracies: Any, away: float) -> list[Claim]:
    claims = []
    for t, gap in zip((1, 10, 24), known.gaps, strict=True):
        if t < len(gaps):
            near = close(f"{text}: gap {t} of RRM", gaps[t], gap, gap * (ROUGH if gap < 0.1 else GAP))
            claims.append(near if gap > FEW else at_most(f"{text}: gap {t} of RRM", gaps[t], FEW))
    points = ("ERM", "RRM's last model", "PO")
    for point, risk, at, accuracy, share in zip(points, risks, known.risks, accuracies, known.accuracies, strict=True):
        claims.append(close(f"{text}: risk at {point}", risk, at, RISK_OF_TEN))
        claims.append(close(f"{text}: accuracy at {point}", accuracy, share, ACCURACY))
    return [*claims, close(f"{text}: |RRM's last model - PO|", away, known.away, AWAY * known.away + 5e-4)]
