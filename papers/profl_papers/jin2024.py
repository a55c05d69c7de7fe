"""Jin et al., "Performative federated learning" (AAAI 2024): P-FedAvg, which is ``profl.pfl``.

25 clients with data z ~ N(mu_i + eps_i theta, 0.001^2) and loss (z - theta)^2 / 2 take E steps on one sample each
between averages with weights p, eta_t = 100 / (t + 10^4), from theta = 10. sum p mu = 10 and sum p eps = 0.9, so that
the federation's stable point is sum p mu / (1 - sum p eps) = 100, however much the clients differ. With E = 1

    |theta_t - 100| = 90 prod_{s < t} (1 - 10 / (s + 10^4)).

Credit: the rows of ``profl_papers.credit`` in ten parts that answer with different strengths.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.credit import STRATEGIC, minimise, rows
from profl_papers.item import Found, Item
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.trial import Trial

CLIENTS, STABLE, FIRST, NOISE = 25, 100.0, 10.0, 0.001
EVERY = 100  # steps between records; every E divides it
EXACT = 0.01
"""How near E = 1 comes to its formula, relative, up to step 10,000; later the gap is as small as the noise."""
LATE = 0.05
RECORDED: dict[Any, dict[int, float]] = {
    ((0.01, 0), 5): {6000: 0.677, 20_000: 0.078, 60_000: 0.034},
    ((0.01, 0), 10): {6000: 0.502, 20_000: 0.177, 60_000: 0.076},
    ((0.6, 6), 5): {6000: 8.3, 20_000: 5.0, 60_000: 2.1},
    ((0.6, 6), 10): {6000: 22.0, 20_000: 12.1, 60_000: 4.8},
}
"""((variance of eps, of mu), E) -> step -> gap, from an earlier run with one draw of the clients."""
DRAWN = 0.5
"""How near to those, relative: the clients here are other draws."""
STRENGTHS = 9 + 2 * np.array([0.548814, 0.715189, 0.602763, 0.544883, 0.423655])
STRENGTHS = np.append(STRENGTHS, 9 + 2 * np.array([0.645894, 0.437587, 0.891773, 0.963663, 0.383442]))
CREDIT = {"risk at ERM": (0.61242, 5e-5), "risk at PS": (0.61149, 5e-5), "risk at PO": (0.61149, 5e-5)}
"""And how far the risks of another shuffle may be from these."""


def clients(seed: int, variances: tuple[float, float], equal: bool) -> tuple[np.ndarray, ...]:
    """p, eps and mu of the clients: means 0.9 and 10 under p, and these variances over the clients."""
    draws = np.random.default_rng(seed)
    p = np.full(CLIENTS, 1.0) if equal else draws.uniform(size=CLIENTS)
    p = p / p.sum()
    eps, mu = (u * np.sqrt(v / u.var()) for u, v in zip(draws.uniform(size=(2, CLIENTS)), variances, strict=True))
    return p, eps - p @ eps + 0.9, mu - p @ mu + 10.0


@partial(jax.jit, static_argnums=(4, 5, 6))
def average(key: Array, p: Array, eps: Array, mu: Array, local: int, steps: int, chosen: str) -> Array:
    """|sum p theta - 100| after every ``EVERY`` steps; ``chosen``: who takes part, "all" or 10 "with"/"without"."""

    def step(theta: Array, told: tuple[Array, Array]) -> tuple[Array, None]:
        t, key = told
        noise, who = jax.random.split(key)
        z = mu + eps * theta + NOISE * jax.random.normal(noise, theta.shape)
        theta = theta - 100 / (t + 1e4) * (theta - z)
        if chosen == "all":
            mean = p @ theta
        else:
            mean = jnp.mean(jax.random.choice(who, theta, (10,), replace=chosen == "with", p=p))
        return jnp.where((t + 1) % local == 0, jnp.full_like(theta, mean), theta), None

    def part(theta: Array, told: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, _ = jax.lax.scan(step, theta, told)
        return theta, jnp.abs(p @ theta - STABLE)

    told = jnp.arange(steps).reshape(-1, EVERY), jax.random.split(key, steps).reshape(-1, EVERY)
    return jax.lax.scan(part, jnp.full(CLIENTS, FIRST), told)[1]


def gaps(trial: Trial, variances: tuple[float, float], local: int, steps: int, chosen: str = "all") -> np.ndarray:
    """(seeds, records); each seed draws its clients."""
    drawn = [clients(seed, variances, equal=chosen == "without") for seed in trial.seeds]
    keys = jnp.stack([jax.random.key(seed) for seed in trial.seeds])
    many = jax.vmap(lambda key, p, eps, mu: average(key, p, eps, mu, local, steps, chosen))
    return np.asarray(many(keys, *(jnp.asarray(values) for values in zip(*drawn, strict=True))))


def formula(steps: int) -> np.ndarray:
    """The gap with E = 1, after every ``EVERY`` steps."""
    return 90 * np.exp(np.cumsum(np.log1p(-10 / (np.arange(steps) + 1e4))))[EVERY - 1 :: EVERY]


def run(trial: Trial) -> Found:
    table, claims, panels = [], [], []
    steps = max(trial.take("rounds") // EVERY, 2) * EVERY
    at = np.arange(1, steps // EVERY + 1) * EVERY
    with jax.enable_x64(True):
        for variances in trial.take("variances of eps and mu"):
            found = {local: gaps(trial, variances, local, steps) for local in trial.take("E")}
            claims += as_the_formula(variances, found[1], at) + recorded(variances, found, at)
            for local, gap in found.items():
                table.append({"variances": list(variances), "E": local, **after(gap, at)})
            lines = [line(f"E = {local}", "pfl", at, gap) for local, gap in found.items()]
            panels.append(panel(f"variances {variances}", lines, {}, "|theta - PS|", x="step", scale="log"))
        short = min(steps, trial.take("steps with some"))
        some = {how: gaps(trial, (0.01, 0), 5, short, how)[:, -1].mean() for how in trial.take("taking part")}
        table += [{"variances": [0.01, 0], "E": 5, "taking part": how, "last": gap} for how, gap in some.items()]
        claims.append(close("ten of 25 with replacement over without: gap", some["with"] / some["without"], 1.0, 0.5))
        row, of_credit = credit(trial.seeds[0])
    return Found([*table, row], claims + of_credit, panels)


def after(gap: np.ndarray, at: np.ndarray) -> dict[str, float]:
    return {f"after {t}": gap[:, np.searchsorted(at, t)].mean() for t in (6000, 20_000, 60_000) if t <= at[-1]}


def as_the_formula(variances: tuple[float, float], gap: np.ndarray, at: np.ndarray) -> list[Claim]:
    stated, mean = formula(at[-1]), gap.mean(0)
    early = at <= 10_000
    off = np.max(np.abs(mean / stated - 1)[early])
    claims = [at_most(f"variances {variances}, E = 1: farthest from the formula, relative", off, EXACT)]
    if at[-1] >= 20_000:
        for t, figure, within in ((6000, 0.817, EXACT), (20_000, 0.00146, LATE)):
            mean = gap[:, np.searchsorted(at, t)].mean()
            claims.append(close(f"variances {variances}, E = 1: gap after {t}", mean, figure, within * figure))
    return claims


def recorded(variances: tuple[float, float], found: dict[int, np.ndarray], at: np.ndarray) -> list[Claim]:
    """Gaps on record, that they fall as eta does, and what more local steps do: faster in rounds, later less near."""
    claims = []
    for local, gap in found.items():
        for t, figure in RECORDED.get((variances, local), {}).items():
            if t <= at[-1]:
                mean = gap[:, np.searchsorted(at, t)].mean()
                name = f"variances {variances}, E = {local}: gap after {t}"
                claims.append(close(name, mean, figure, DRAWN * figure, direction=bool(mean < 90)))
    if at[-1] < 60_000:
        return claims
    first, later = np.searchsorted(at, 20_000), np.searchsorted(at, 60_000)
    for local in (5, 10) if variances[0] else ():
        ratio = found[local][:, later].mean() / found[local][:, first].mean()
        claims.append(
            close(
                f"variances {variances}, E = {local}: gap after 60,000 over 20,000", ratio, 3 / 7, 0.1, paper="O(1/T)"
            )
        )
    if variances[0]:
        last = [found[local][:, later].mean() for local in (1, 5, 10)]
        name = f"variances {variances}: least ratio of the last gaps, E = 10 over 5 and 5 over 1"
        claims.append(at_least(name, min(last[2] / last[1], last[1] / last[0]), 1.0, paper="slower at the end"))
    rounds = {local: at[np.argmax(gap.mean(0) < 30)] / local for local, gap in found.items()}
    for more, less in ((5, 1), (10, 5)):
        name = f"variances {variances}: rounds to a gap of 30, E = {more} over {less}"
        claims.append(at_most(name, rounds[more] / rounds[less], 1.0, paper="faster in rounds"))
    return claims


def credit(seed: int) -> tuple[dict[str, Any], list[Claim]]:
    """Ten parts of the shuffled rows, strengths 9 to 11, lam = 10 / n: risks at ERM, PS and PO, which hardly differ."""
    data = rows()
    size = len(data.y) // 10
    order = np.random.default_rng(seed).permutation(len(data.y))[: 10 * size]
    x, y = jnp.asarray(data.x[order]).reshape(10, size, 11), jnp.asarray(data.y[order]).reshape(10, size)
    lam, shifted = 10 / len(data.y), jnp.asarray(STRENGTHS)[:, None] * jnp.zeros(11).at[jnp.array(STRATEGIC)].set(1.0)

    @jax.jit
    def risk(deployed: Array, theta: Array) -> Array:
        scores = x @ theta - (shifted * deployed @ theta)[:, None]
        return jnp.mean(jax.nn.softplus(scores) - y * scores) + lam / 2 * jnp.sum(theta[:-1] ** 2)

    def rest(field: Any, theta: Array) -> Array:
        step = jax.jit(lambda theta: theta - jnp.linalg.solve(jax.jacobian(field)(theta), field(theta)))
        for _ in range(20):
            theta = step(theta)
        return theta

    first = jnp.asarray(minimise(data, np.zeros(11), lam, np.zeros(11)))
    stable = rest(lambda theta: jax.grad(risk, 1)(theta, theta), first)
    optimum = rest(jax.grad(lambda theta: risk(theta, theta)), stable)
    seen = {f"risk at {name}": float(risk(t, t)) for name, t in (("ERM", first), ("PS", stable), ("PO", optimum))}
    claims = [close(f"credit: {name}", seen[name], *known) for name, known in CREDIT.items()]
    apart = float(jnp.linalg.norm(stable - optimum))
    claims.append(close("credit: |PS - PO|", apart, 0.0016, 0.0008, direction=apart < 0.01))
    return {"problem": "credit", **seen, "|PS - PO|": apart}, claims


ITEM = Item(
    name="jin2024",
    title="Federated averaging where data react: it ends at the stable point of the mean reaction",
    paper={
        "rounds": 60_000,
        "E": "1, 5, 10, 20, 50",
        "repetitions": 5,
        "variances of eps and mu": "0, 0; 0.01, 0; 0.6, 6",
    },
    settings={
        "rounds": 60_000,
        "E": (1, 5, 10),
        "variances of eps and mu": ((0, 0), (0.01, 0), (0.6, 6)),
        "taking part": ("with", "without"),
        "steps with some": 6000,
    },
    why="A round here is a step; averages come after every E of them. The authors' training on credit data calls the "
    "reaction with strength 0, so that nothing moves: here the points are computed instead. Ten of 25 take part where "
    "some do. Each seed draws its clients; figures on record are of one draw.",
    run=run,
    data=("credit",),
    work="jin2024",
    citation="Jin et al.: Performative federated learning (AAAI 2024)",
    finding="With one step between averages the gap is its formula however much clients differ; with more, local "
    "drift is left, which vanishes with the rate. On credit stable point and optimum hardly differ: every person's "
    "shift is nearly the same.",
    short={"rounds": 1000},
)
