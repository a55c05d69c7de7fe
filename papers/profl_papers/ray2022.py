"""Ray, Ratliff, Drusvyatskiy and Fazel, "Decision-dependent risk minimization in geometrically decaying dynamic
environments" (AAAI 2022): hold a model for an epoch, then take one step.

People answer to theta by x <- x - eps theta, in all eleven coordinates, and what comes in is a mixture that follows:
D <- delta D + (1 - delta) D(theta) with every deployment. A model is held for n deployments; the gradient of the loss
that then comes in, as a function of the model held, is

    g = delta^n grad DPR(D before; theta) + (1 - delta^n) grad PR(theta),    theta <- Proj(theta - eta g),  |theta| <= R

It rests where grad_2 DPR(theta; theta) + (1 - delta^n) grad_1 DPR(theta; theta) = 0: for n = 1 near the stable point,
for long epochs at the optimum PO.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array
from profl_papers.claims import at_most
from profl_papers.credit import rows
from profl_papers.item import Found, Item
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.trial import Trial

REMEMBERED = 64
"""Parts of the mixture; what is left of older ones (0.9^64, a thousandth) counts as the oldest."""
REACHED = 1e-3
"""A distance that counts as none, where epochs are so long that delta^n is 3e-5."""
RADIUS = 10.0
POINTS = 12


def decoupled(data: tuple[Array, Array], eps: Array, deployed: Array, theta: Array) -> Array:
    """DPR(deployed; theta) with the penalty, lam = 1 / rows."""
    x, y = data
    scores = x @ theta - eps * (deployed @ theta)
    return jnp.mean(jax.nn.softplus(scores) - y * scores) + jnp.sum(theta[:-1] ** 2) / (2 * len(y))


@jax.jit
def field(data: tuple[Array, Array], eps: Array, share: Array, theta: Array) -> Array:
    """grad_2 + share grad_1 of DPR(theta; theta): that of the risk where the share is 1."""
    first, second = jax.grad(decoupled, argnums=(2, 3))(data, eps, theta, theta)
    return second + share * first


@jax.jit
def resting_point(data: tuple[Array, Array], eps: Array, share: Array, theta: Array) -> Array:
    """Where ``field`` is zero: Newton's steps from ``theta``, none longer than a tenth."""

    def step(_: Any, theta: Array) -> Array:
        slope = jax.jacobian(field, argnums=3)(data, eps, share, theta)
        move = jnp.linalg.solve(slope, field(data, eps, share, theta))
        return theta - move * jnp.minimum(1.0, 0.1 / (jnp.linalg.norm(move) + 1e-300))

    return jax.lax.fori_loop(0, 100, step, theta)


def on_mixture(data: tuple[Array, Array], eps: Array, theta: Array, past: Array, weights: Array) -> Array:
    """The gradient in theta of the loss on people who answer to ``past`` models, (parts, 11), with ``weights``.

    A part counts by one number alone, c = past.theta, and smoothly: the mixture is taken at Chebyshev's points between
    the least and the largest c, with the weights of interpolation, instead of at every part.
    """
    x, y = data
    at = past @ theta
    low, high = jnp.min(at), jnp.max(at)
    middle, half = (low + high) / 2, (high - low) / 2 + 1e-12
    angles = (jnp.arange(POINTS) + 0.5) * jnp.pi / POINTS
    orders = jnp.arange(POINTS)
    series = jnp.cos(orders * jnp.arccos(jnp.clip((at - middle) / half, -1, 1))[:, None])  # T_k of every part
    basis = series @ (jnp.where(orders == 0, 1, 2)[:, None] * jnp.cos(orders[:, None] * angles)) / POINTS
    shares = weights[:, None] * basis  # (parts, points)
    off = jax.nn.sigmoid(x @ theta - eps * (middle + half * jnp.cos(angles))[:, None]) - y
    penalty = theta.at[-1].set(0.0) / len(y)
    return (shares.sum(0) @ off) @ x / len(y) - eps * (jnp.mean(off, 1) @ (shares.T @ past)) + penalty


@partial(jax.jit, static_argnums=4)
def epochs(data: tuple[Array, Array], eps: Array, eta: Array, left: Array, count: int) -> Array:
    """Models after every epoch, (count + 1, 11), from 0; ``left`` = delta^n. Newest parts of the mixture come last."""
    size = data[0].shape[1]

    def epoch(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], Array]:
        theta, past, weights = carry
        before = on_mixture(data, eps, theta, past, weights)
        new = theta - eta * (left * before + (1 - left) * field(data, eps, jnp.ones(()), theta))
        new = new * jnp.minimum(1.0, RADIUS / (jnp.linalg.norm(new) + 1e-300))
        merged = (left * weights).at[1].add(left * weights[0])  # the oldest part joins the next
        past = jnp.concatenate([past[1:], theta[None]])
        return (new, past, jnp.append(merged[1:], 1 - left)), new

    weights = jnp.zeros(REMEMBERED).at[-1].set(1.0)  # before the first deployment people answer to nothing
    first = (jnp.zeros(size), jnp.zeros((REMEMBERED, size)), weights)
    return jnp.concatenate([jnp.zeros((1, size)), jax.lax.scan(epoch, first, None, length=count)[1]])


def run(trial: Trial) -> Found:
    kept = rows()
    delta, budget = trial.take("delta"), trial.take("rounds")
    eta = 1 / (kept.smoothness + 1 / len(kept.y))
    table, claims, panels = [], [], []
    with jax.enable_x64(True):
        data = (jnp.asarray(kept.x), jnp.asarray(kept.y))
        for eps in trial.take("eps"):
            near = epochs(data, eps, eta, 0.0, 1000)[-1]  # descent on the risk, then Newton
            optimum = resting_point(data, eps, jnp.ones(()), near)
            far, lines, limits = float(jnp.linalg.norm(optimum)), [], []
            for n in trial.take("n"):
                left = delta**n
                path = np.asarray(epochs(data, eps, eta, left, max(budget // n, 1)))
                away = np.linalg.norm(path - optimum, axis=1)
                limit = resting_point(data, eps, 1 - left, optimum)
                limits.append(float(jnp.linalg.norm(limit - optimum)))
                table.append(
                    {
                        "eps": eps,
                        "n": n,
                        "T": len(path) - 1,
                        "from PO": away[-1],
                        "at first": far,
                        "limit from PO": limits[-1],
                    }
                )
                claims.append(at_most(f"eps {eps}, n {n}: distance from PO over the first one", away[-1] / far, 1.0))
                lines.append(line(f"n = {n}", "epochs", n * np.arange(len(path)), [away]))
            longer = [after - before for before, after in pairwise(limits)]
            name = f"eps {eps}: most that longer epochs take the limit away from PO"
            claims.append(at_most(name, max(longer), 1e-9))
            claims.append(at_most(f"eps {eps}: distance of the limit from PO with n = {n}", limits[-1], REACHED))
            panels.append(panel(f"eps = {eps}", lines, {}, "|theta - PO|", x="deployments", scale="log"))
    return Found(table, claims, panels)


ITEM = Item(
    name="ray2022",
    title="Credit scores, people who follow geometrically: epochs of deployments, then one step, lead to the optimum",
    paper={"delta": 0.9, "eps": "0.01, 0.1, 1, 10", "n": "1, 5, 20, 100", "T": "1000, 200, 50, 10", "R": 10},
    settings={"delta": 0.9, "eps": (0.01, 0.1, 1, 10), "n": (1, 5, 20, 100), "rounds": 1000},
    why="T is 1000 / n. The paper plots distances; the points that epochs of n deployments lead to are computed here "
    "as well, since 10 or 50 steps do not get there. Nothing is drawn: all seeds are the same run.",
    run=run,
    data=("credit",),
    work="ray2022",
    citation="Ray, Ratliff, Drusvyatskiy, Fazel: Decision-dependent risk in dynamic environments (AAAI 2022)",
    finding="The points that epochs lead to are the nearer to the optimum the longer the epochs; at eps 0.01 and 0.1 "
    "all of them are the optimum, since the intercept absorbs the shift, and short epochs win by taking more steps.",
)
