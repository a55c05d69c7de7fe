"""Credit scores in Miller, Perdomo and Zrnic (2021): accuracy against samples, x <- x - eps B theta, lam = 0.002."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.methods.lazy import SCHEDULES
from profl.typing import Array
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.credit import STRATEGIC, minimise, rows
from profl_papers.item import Found
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.mendler2020 import POINTS, stream
from profl_papers.trial import Trial

LAM, RADIUS, BATCH = 0.002, 10.0, 100
NONTRIVIAL = 0.02
"""Accuracy above that of one answer for all, from which on it is not trivial."""
ERM = 0.7167
"""Accuracy of the fit on the rows as they are, lam = 0.002."""
CONVERGED, LOWER = 0.01, 0.05
"""Accuracy that the two stages still gain after a few thousand samples, and what 'slightly lower' is, at most."""


class Credit:
    """The rows, how they answer, and the loss."""

    def __init__(self, eps: float) -> None:
        data = rows()
        self.x, self.y = jnp.asarray(data.x), jnp.asarray(data.y)
        self.eps = eps
        self.chosen = jnp.zeros(11).at[jnp.array(STRATEGIC)].set(eps)

    def accuracy(self, theta: Array) -> Array:
        """On those who have answered to theta itself."""
        return jnp.mean((self.x @ theta - (self.chosen * theta) @ theta > 0) == (self.y > 0.5))

    def drawn(self, key: Array, deployed: Array) -> tuple[Array, Array]:
        """One person for every row of ``deployed``, having answered to it."""
        chosen = jax.random.randint(key, deployed.shape[:-1], 0, len(self.y))
        return self.x[chosen] - self.chosen * deployed, self.y[chosen]


def losses(theta: Array, x: Array, y: Array) -> Array:
    scores = x @ theta
    return jax.nn.softplus(scores) - y * scores


def penalty(theta: Array) -> Array:
    return LAM / 2 * jnp.sum(theta[:-1] ** 2)


def ball(theta: Array) -> Array:
    return theta * jnp.minimum(1.0, RADIUS / (jnp.linalg.norm(theta) + 1e-300))


def two_stages(key: Array, world: Credit, n: int) -> Array:
    """The accuracy that n samples lead to. The fitted risk is minimised by Newton's steps in a trust region."""
    tried, first, second = jax.random.split(key, 3)
    theta = jax.random.normal(tried, (n // 2, 11))
    x, _ = world.drawn(first, theta)
    move = jnp.linalg.lstsq(theta, x - jnp.mean(x, 0))[0].T  # x = x0 + move theta
    x, y = world.drawn(second, jnp.zeros((n // 2, 11)))

    def fitted(theta: Array) -> Array:
        return jnp.mean(losses(theta, x + move @ theta, y)) + penalty(theta)

    def step(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, size = carry
        values, axes = jnp.linalg.eigh(jax.hessian(fitted)(theta))
        move = axes @ ((axes.T @ jax.grad(fitted)(theta)) / jnp.maximum(jnp.abs(values), 1e-8))
        new = ball(theta - move * jnp.minimum(1.0, size / (jnp.linalg.norm(move) + 1e-300)))
        better = fitted(new) < fitted(theta)
        return jnp.where(better, new, theta), jnp.where(better, 2 * size, size / 4)

    return world.accuracy(jax.lax.fori_loop(0, 60, step, (jnp.zeros(11), jnp.asarray(0.1)))[0])


def derivative_free(key: Array, world: Credit, n: int) -> Array:
    """DFO from 0 with batches of 100, delta = 1, rate 1 / t: the accuracy along the way, (POINTS,)."""

    def step(theta: Array, told: tuple[Array, Array]) -> tuple[Array, None]:
        t, key = told
        direction, draw = jax.random.split(key)
        u = jax.random.normal(direction, (11,))
        u = u / jnp.linalg.norm(u)
        x, y = world.drawn(draw, jnp.broadcast_to(theta + u, (BATCH, 11)))
        loss = jnp.mean(losses(theta + u, x, y)) + penalty(theta + u)
        return ball(theta - 11 * loss * u / t), None

    def part(theta: Array, told: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, _ = jax.lax.scan(step, theta, told)
        return theta, world.accuracy(theta)

    count = n // BATCH // POINTS * POINTS
    told = jnp.arange(1, count + 1).reshape(POINTS, -1), jax.random.split(key, (POINTS, count // POINTS))
    return jax.lax.scan(part, jnp.zeros(11), told)[1]


def sgd(key: Array, world: Credit, n: int, lazy: bool) -> Array:
    """Greedy or lazy (k^2) SGD from 0, with rates of 100 / gamma / (8 L^2 / gamma^2 + j): accuracy, (POINTS,)."""
    smooth = 2 * jnp.mean((jnp.sum(world.x**2, axis=1) / 4 + LAM) ** 2)

    def gradient(draw: Array, deployed: Array, theta: Array) -> Array:
        x, y = world.drawn(draw, deployed)
        return (jax.nn.sigmoid(x @ theta) - y) * x + LAM * theta.at[-1].set(0.0)

    def rate(j: Array) -> Array:
        return 100 / LAM / (8 * smooth / LAM**2 + j)

    draws = jax.random.split(key, (POINTS, n // POINTS))
    deployed, _ = stream(gradient, rate, SCHEDULES["k^2" if lazy else "1"], jnp.zeros(11), draws, ball)
    return jax.vmap(world.accuracy)(deployed)


def compare(trial: Trial) -> Found:
    table, claims, panels = [], [], []
    sizes = trial.take("samples in credit")
    budgets = {"DFO": trial.take("DFO's samples in credit"), "SGD": trial.take("SGD's samples in credit")}
    keys = jnp.stack([jax.random.key(seed) for seed in trial.seeds])
    last = {}
    for eps in trial.take("eps in credit"):
        world = Credit(eps)
        two = np.stack([over(lambda key, w=world, n=n: two_stages(key, w, n), keys) for n in sizes], 1)
        found = {"DFO": over(lambda key, w=world: derivative_free(key, w, budgets["DFO"]), keys)}
        for name in ("greedy", "lazy"):
            found[name] = over(lambda key, w=world, name=name: sgd(key, w, budgets["SGD"], name == "lazy"), keys)
        last[eps] = two[:, -1].mean()
        ends = {f"two-stage, n = {n}": two[:, i] for i, n in enumerate(sizes)}
        ends |= {name: accuracy[:, -1] for name, accuracy in found.items()}
        table += [
            {"problem": "credit", "eps": eps, "method": name, "accuracy": end.mean(), "sd": end.std()}
            for name, end in ends.items()
        ]
        claims += as_said(eps, two, found, float(max(jnp.mean(world.y), 1 - jnp.mean(world.y))))
        lines = [line("two-stage", "two_stage", list(sizes), two)] if len(sizes) > 1 else []
        lines += [
            line(
                name, name, np.arange(1, POINTS + 1) * (budgets["DFO" if name == "DFO" else "SGD"] // POINTS), accuracy
            )
            for name, accuracy in found.items()
        ]
        panels.append(panel(f"credit, eps = {eps}", lines, {}, "accuracy", x="samples"))
    kept = rows()
    first = minimise(kept, np.zeros(11), LAM, np.zeros(11))
    right = np.mean((kept.x @ first > 0) == (kept.y > 0.5))
    claims.append(close("credit: accuracy of the fit on the rows as they are", right, ERM, 5e-5))
    drop = last[0.0001] - last[100]
    claims.append(at_most("credit, two-stage: accuracy lost from eps = 0.0001 to 100", drop, LOWER, paper="slightly"))
    return Found(table, claims, panels)


def over(function: Any, keys: Array) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(function))(keys))


def as_said(eps: float, two: np.ndarray, found: dict[str, np.ndarray], trivial: float) -> list[Claim]:
    """What the text says of either eps."""
    best = two[:, -1].mean()
    claims = []
    if two.shape[1] > 1:
        gained = best - two[:, -2].mean()
        name = f"credit, eps = {eps}, two-stage: accuracy gained after 4000 samples"
        claims.append(at_most(name, gained, CONVERGED, paper="converges within a few thousand"))
    for name in ("greedy", "lazy"):
        later = found[name][:, -1].mean() - found[name][:, POINTS // 10 - 1].mean()
        claims.append(
            at_most(
                f"credit, eps = {eps}: accuracy that {name} SGD gains after a tenth of its samples",
                later,
                CONVERGED,
                paper="stops improving",
            )
        )
        behind = best - found[name][:, -1].mean()
        claims.append(
            at_least(f"credit, eps = {eps}: two-stage's accuracy over {name} SGD's", behind, 0.0, paper="above")
        )
    free = found["DFO"][:, -1].mean()
    if eps == 100:
        claims.append(
            at_most("credit, eps = 100: DFO's accuracy over the trivial", free - trivial, NONTRIVIAL, paper="none")
        )
    else:
        claims.append(
            at_least(f"credit, eps = {eps}: two-stage's accuracy over DFO's", best - free, 0.0, paper="above")
        )
    return claims
