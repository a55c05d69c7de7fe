"""Mendler-Duenner, Perdomo, Zrnic and Hardt, "Stochastic optimization for performative prediction" (NeurIPS 2020).

One sample at a time, a gradient step on each; what differs is when the model is deployed.

    greedy       after every step                            eta_t = 1 / (g (8 L^2 / g^2 + t)),  g = gamma - eps beta
    lazy, n(k)   after n(k) steps on one deployment's data   eta_j = 1 / (gamma (8 L^2 / gamma^2 + j)),  j from 1 again

Mean estimation: z ~ N(10 + 0.9 theta, 0.1^2), loss (z - theta)^2 / 2, stable point 100. Credit: the data of
``profl_papers.credit`` with lam = 1000 / n, whose stable point is the first model with another intercept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.methods.lazy import SCHEDULES
from profl.typing import Array
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.credit import STRATEGIC, minimise, response, rows
from profl_papers.item import Found, Item
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.trial import Trial

MU, SD, EPS, STABLE = 10.0, 0.1, 0.9, 100.0
AFTER = (1000, 10_000, 50_000)
RECORDED = {
    "1": (40.0, 6.67, 1.416),
    "sqrt k": (0.181, 0.0227, 0.029),
    "k": (4.23, 0.0150, 0.0110),
    "k^2": (32.9, 5.69, 0.565),
}
"""Schedule -> mean |deployed - 100| after so many samples, 20 repetitions of an earlier run."""
NEAR, NOISE = 0.2, 0.75
"""How far from these, relative: where what is left is a bias, and where it is the noise of 20 repetitions in that run
(mean |deployed - 100| has a relative standard error of a sixth there, at one time of one run)."""
NOISY = (("sqrt k", 10_000), ("sqrt k", 50_000), ("k", 10_000))
DEPLOYMENTS = {"1": 50_001, "sqrt k": 1758, "k": 316, "k^2": 53}
CREDIT = {"1": (0.155, 0.2), "k": (0.170, 0.2), "k^3": (0.12, 0.5)}
"""Distance from the stable point after 50 epochs, read off the figure, and how exactly that can be done, relative."""
CREDIT_DEPLOYMENTS = {"1": 9e5, "k": 1.4e3, "k^3": 40}
SMOOTH, FIRST = 60.665, 0.2416
"""L in credit, and how far the first model is from the stable point at eps = 100."""
POINTS = 100


class State(NamedTuple):
    theta: Array
    deployed: Array
    k: Array  # the number of the deployment
    left: Array  # steps until the next
    j: Array  # steps on this deployment


Step = Callable[[Any, Array, Array], Array]


def stream(
    gradient: Step,
    rate: Callable,
    schedule: Callable,
    first: Array,
    draws: Any,
    project: Callable = lambda theta: theta,
) -> tuple[Array, Array]:
    """Deployed models after each of ``POINTS`` equal parts of the stream, and how many had been deployed by then.

    ``gradient(draw, deployed, theta)`` is that of one sample; ``draws`` has leaves (POINTS, steps of a part, ...).
    """
    greedy = schedule is SCHEDULES["1"]

    def step(state: State, draw: Any) -> tuple[State, None]:
        theta = project(state.theta - rate(state.j) * gradient(draw, state.deployed, state.theta))
        due = state.left <= 1
        k = state.k + due
        deployed = jnp.where(due, theta, state.deployed)
        j = jnp.where(due & (not greedy), 1, state.j + 1)
        return State(theta, deployed, k, jnp.where(due, schedule(k), state.left - 1), j), None

    def part(state: State, draws: Any) -> tuple[State, tuple[Array, Array]]:
        state, _ = jax.lax.scan(step, state, draws)
        return state, (state.deployed, state.k)

    one = jnp.asarray(1)
    return jax.lax.scan(part, State(first, first, one, schedule(one), one), draws)[1]


def mean_estimation(name: str, seeds: Array, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """|deployed - 100|, (repetitions, POINTS), and deployments so far, (POINTS,)."""
    strength = 1 - EPS if name == "1" else 1.0

    def gradient(noise: Array, deployed: Array, theta: Array) -> Array:
        return theta - (MU + EPS * deployed + SD * noise)

    def one(seed: Array) -> tuple[Array, Array]:
        noise = jax.random.normal(jax.random.key(seed), (POINTS, steps // POINTS))
        rate = lambda t: 1 / (strength * (8 / strength**2 + t))  # noqa: E731
        return stream(gradient, rate, SCHEDULES[name], jnp.asarray(MU), noise)

    deployed, made = jax.jit(jax.vmap(one))(seeds)
    return np.abs(np.asarray(deployed) - STABLE), np.asarray(made)[0]


def constants(eps: float) -> tuple[float, float, np.ndarray, np.ndarray]:
    """gamma and L^2 in credit, the first model and the stable one."""
    data = rows()
    gamma = 1000 / len(data.y)
    smooth = 2 * np.mean((np.sum(data.x**2, axis=1) / 4 + gamma) ** 2)
    first = minimise(data, np.zeros(11), gamma, np.zeros(11))
    return gamma, float(smooth), first, minimise(data, first, gamma, response(first, eps))


def credit(name: str, seeds: Array, steps: int, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """|deployed - PS|, (seeds, POINTS), and deployments so far."""
    data = rows()
    gamma, smooth, first, stable = constants(eps)
    beta = data.smoothness + gamma
    strength = gamma - eps * beta if name == "1" and eps <= gamma / beta else gamma
    x, y, chosen = jnp.asarray(data.x), jnp.asarray(data.y), jnp.zeros(11).at[jnp.array(STRATEGIC)].set(eps)
    penalty = gamma * jnp.ones(11).at[-1].set(0.0)

    def gradient(row: Array, deployed: Array, theta: Array) -> Array:
        seen = x[row] - chosen * deployed
        return (jax.nn.sigmoid(seen @ theta) - y[row]) * seen + penalty * theta

    def one(seed: Array) -> tuple[Array, Array]:
        order = jax.random.randint(jax.random.key(seed), (POINTS, steps // POINTS), 0, len(y))
        rate = lambda t: 100 / strength / (8 * smooth / strength**2 + t)  # noqa: E731
        return stream(gradient, rate, SCHEDULES[name], jnp.asarray(first), order)

    deployed, made = jax.jit(jax.vmap(one))(seeds)
    return np.linalg.norm(np.asarray(deployed) - stable, axis=2), np.asarray(made)[0]


def run(trial: Trial) -> Found:
    with jax.enable_x64(True):
        repetitions = jnp.arange(len(trial.seeds) * trial.take("repetitions per seed")) + 1000 * trial.seeds[0]
        steps = trial.take("rounds") // POINTS * POINTS
        at = np.arange(1, POINTS + 1) * (steps // POINTS)
        means = {name: mean_estimation(name, repetitions, steps) for name in trial.take("n(k)")}
        epochs = trial.take("epochs")
        samples = int(epochs * len(rows().y)) // POINTS * POINTS
        eps, seeds = trial.take("eps in credit"), jnp.asarray(trial.seeds)
        credits = {name: credit(name, seeds, samples, eps) for name in trial.take("n(k) in credit")}
    table = summary("mean estimation", means) + summary("credit", credits)
    claims = [*recorded(means, at), *lazy_wins(means), *stated(eps), *read_off(credits)]
    panels = [
        picture("mean estimation", means, at, "samples"),
        picture("mean estimation", means, None, "log10 of deployments"),
        picture("credit", credits, np.arange(1, POINTS + 1) * (samples // POINTS), "samples"),
    ]
    return Found(table, claims, panels)


def summary(part: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"problem": part, "n(k)": name, "from PS": far[:, -1].mean(), "sd": far[:, -1].std(), "deployments": made[-1]}
        for name, (far, made) in found.items()
    ]


def recorded(means: dict[str, Any], at: np.ndarray) -> list[Claim]:
    claims = []
    for name, (far, made) in means.items():
        for samples, figure in zip(AFTER, RECORDED[name], strict=True):
            if samples <= at[-1]:
                off = NOISE if (name, samples) in NOISY else NEAR
                mean = far[:, np.searchsorted(at, samples)].mean()
                text = f"mean estimation, n(k) = {name}: |deployed - 100| after {samples} samples"
                claims.append(close(text, mean, figure, off * figure))
        if at[-1] == AFTER[-1]:
            claims.append(close(f"mean estimation, n(k) = {name}: deployments", made[-1], DEPLOYMENTS[name], 1))
    return claims


def lazy_wins(means: dict[str, Any]) -> list[Claim]:
    """Per sample at the end; per deployment at as many as the laziest has made in all; and who deploys least."""
    greedy, made = means["1"]
    fewest = min(name for name in means if means[name][1][-1] == min(m[-1] for _, m in means.values()))
    few = means["k^2"][1][-1]
    claims = []
    for name in ("sqrt k", "k", "k^2"):
        far, deployments = means[name]
        ratio = far[:, -1].mean() / greedy[:, -1].mean()
        claims.append(at_most(f"n(k) = {name}: distance over greedy's, same samples", ratio, 1.0, paper="lazy wins"))
        then = far[:, min(np.searchsorted(deployments, few), POINTS - 1)].mean()
        so_far = greedy[:, min(np.searchsorted(made, few), POINTS - 1)].mean()
        claims.append(
            at_most(f"n(k) = {name}: distance over greedy's, {few} deployments", then / so_far, 1.0, paper="lazy wins")
        )
    return [*claims, at_least("n(k) = k^2 makes the fewest deployments", float(fewest == "k^2"), 1.0)]


def stated(eps: float) -> list[Claim]:
    _, smooth, first, stable = constants(eps)
    away = np.linalg.norm(first - stable)
    return [
        close("credit: L", np.sqrt(smooth), SMOOTH, 5e-4),
        close("credit: distance of the first model from PS", away, FIRST, 5e-5, paper=f"{FIRST}"),
    ]


def read_off(found: dict[str, Any]) -> list[Claim]:
    claims = []
    for name, (far, made) in found.items():
        figure, within = CREDIT[name]
        text = f"credit, n(k) = {name}: distance from PS after 50 epochs"
        nearer = far[:, -1].mean() < 0.2416
        claims.append(close(text, far[:, -1].mean(), figure, within * figure, nearer, paper=f"about {figure}"))
        if name in CREDIT_DEPLOYMENTS:
            count = CREDIT_DEPLOYMENTS[name]
            claims.append(
                close(f"credit, n(k) = {name}: deployments", made[-1], count, 0.1 * count, paper=f"{count:g}")
            )
    return claims


def picture(title: str, found: dict[str, Any], x: np.ndarray | None, label: str) -> dict[str, Any]:
    axis = {name: np.log10(made) if x is None else x for name, (_, made) in found.items()}
    lines = [line(f"n(k) = {name}", "lazy", axis[name], far) for name, (far, _) in found.items()]
    return panel(title, lines, {}, "|deployed - PS|", x=label, scale="log")


ITEM = Item(
    name="mendler2020",
    title="One sample at a time: deploying after every step, or only now and then",
    paper={
        "rounds": 50_000,
        "repetitions": 20,
        "n(k)": "1, sqrt k, k, k^2",
        "epochs": 50,
        "eps in credit": "0.001, 100",
    },
    settings={
        "rounds": 50_000,
        "repetitions per seed": 2,
        "n(k)": ("1", "sqrt k", "k", "k^2"),
        "epochs": 50,
        "eps in credit": 100,
        "n(k) in credit": ("1", "k", "k^3"),
    },
    why="Distances in credit are read off a figure; at eps = 0.001 every run begins at the stable point, and no "
    "figure is on record. Credit draws rows with replacement, one stream per seed.",
    run=run,
    data=("credit",),
    work="mendler2020",
    citation="Mendler-Duenner, Perdomo, Zrnic, Hardt: Stochastic optimization, performative prediction (NeurIPS 2020)",
    finding="With eps = 0.9 a lazy schedule is ahead of greedy deployment per sample and per deployment, as the paper "
    "has it. In credit the stable point is the first model with another intercept, so that all distances are those of "
    "one number.",
    short={"rounds": 2000, "epochs": 0.5},
)
