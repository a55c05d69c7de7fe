"""What a filter must show on batches alone: clean data of many shapes come through, junk goes, and it never does harm.

    clean    error of the filtered mean over that of the plain mean
    junk     error of the filtered mean over that of the mean of the clean samples, the oracle's
    harm     error of the filtered mean over that of the plain mean, on junk that surrounds the data

Errors are root mean squares over the trials, in coordinates in which the clean data have unit covariance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Array, Key

Sampler = Callable[[Key, tuple[int, int]], Array]

CLEAN_BAR, JUNK_BAR, MOST_BAR, HARM_BAR = 1.1, 1.3, 1.5, 1.05
N, D = 500, 5
SIZES, DIMENSIONS = (500, 50, 20), (1, 5, 50)


def unit(draw: Sampler, mean: float, deviation: float) -> Sampler:
    """Samples of mean zero and deviation one."""
    return lambda key, shape: (draw(key, shape) - mean) / deviation


def bernoulli(p: float) -> Sampler:
    return unit(lambda k, s: jax.random.bernoulli(k, p, s).astype(float), p, math.sqrt(p * (1 - p)))


def poisson(rate: float) -> Sampler:
    return unit(lambda k, s: jax.random.poisson(k, rate, s).astype(float), rate, math.sqrt(rate))


def often_zero(share: float, draw: Sampler, mean: float, square: float) -> Sampler:
    """Zero with the given share, else drawn: of mean ``mean`` and mean square ``square``."""

    def mixed(key: Key, shape: tuple[int, int]) -> Array:
        first, second = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(first, share, shape), 0.0, draw(second, shape))

    part = 1 - share
    return unit(mixed, part * mean, math.sqrt(part * square - (part * mean) ** 2))


def lognormal(key: Key, shape: tuple[int, int]) -> Array:
    return jnp.exp(jax.random.normal(key, shape))


E = math.e
EXPONENTIAL = unit(jax.random.exponential, 1.0, 1.0)
SHAPES: dict[str, Sampler] = {
    "gaussian": jax.random.normal,
    "uniform": lambda k, s: jax.random.uniform(k, s, minval=-math.sqrt(3), maxval=math.sqrt(3)),
    "t(3)": lambda k, s: jax.random.t(k, 3.0, s) / math.sqrt(3),
    "exponential": EXPONENTIAL,
    "lognormal(1)": unit(lognormal, math.sqrt(E), math.sqrt(E * E - E)),
    "poisson(0.05)": poisson(0.05),
    "poisson(1)": poisson(1.0),
    "poisson(20)": poisson(20.0),
    "bernoulli(0.02)": bernoulli(0.02),
    "bernoulli(0.1)": bernoulli(0.1),
    "bernoulli(0.5)": bernoulli(0.5),
    "95 % zeros": often_zero(0.95, jax.random.exponential, 1.0, 2.0),
    "claims, 70 % zeros": often_zero(0.7, lognormal, math.sqrt(E), E * E),
    "claims, 30 % zeros": often_zero(0.3, lognormal, math.sqrt(E), E * E),
    "rounded": lambda k, s: jnp.round(2 * jax.random.normal(k, s)) / 2.0414,
}


def rotated(d: int, deviations: np.ndarray) -> np.ndarray:
    """A map with the given deviations along the columns of a fixed rotation."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(d, d)))[0]
    return (turn * deviations) @ np.eye(d)


def condition(d: int) -> np.ndarray:
    return rotated(d, np.logspace(0, -2, d))


def correlated(d: int) -> np.ndarray:
    spread, turn = np.linalg.eigh(np.full((d, d), 0.95) + 0.05 * np.eye(d))
    return turn * np.sqrt(spread)


class Row(NamedTuple):
    """One row: its name, samplers of clean and junk in unit coordinates, the map from these to what a filter sees."""

    group: str
    name: str
    n: int
    d: int
    share: float
    clean: Sampler
    junk: Callable[[Key, tuple[int, int]], Array] | None
    view: np.ndarray
    bar: float


def cloud(towards: np.ndarray, noise: float = 1.0) -> Sampler:
    return lambda key, shape: jnp.asarray(towards, jnp.float32) + noise * jax.random.normal(key, shape)


def on_sphere(key: Key, shape: tuple[int, int]) -> Array:
    z = jax.random.normal(key, shape)
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def shell(distance: float) -> Sampler:
    return lambda key, shape: distance * on_sphere(key, shape)


def half_shell(distance: float) -> Sampler:
    def draw(key: Key, shape: tuple[int, int]) -> Array:
        z = distance * on_sphere(key, shape)
        return z.at[:, 0].set(jnp.abs(z[:, 0]))

    return draw


def ray(distance: float) -> Sampler:
    def draw(key: Key, shape: tuple[int, int]) -> Array:
        return jnp.full(shape[1], 1 / math.sqrt(shape[1])) * distance * jax.random.uniform(key, (shape[0], 1))

    return draw


def disc(distance: float) -> Sampler:
    """Thin and wide, across the first axis at ``distance`` along it."""

    def draw(key: Key, shape: tuple[int, int]) -> Array:
        z = distance * jax.random.normal(key, shape)
        return z.at[:, 0].set(distance)

    return draw


def flat_disc(distance: float) -> Sampler:
    """Thin and wide, through the middle of the data."""
    return lambda key, shape: (distance * jax.random.normal(key, shape)).at[:, 0].set(0.0)


FIXED: dict[str, Callable[[float, np.ndarray], Sampler]] = {
    "blob": lambda a, u: cloud(a * u),
    "point": lambda a, u: cloud(a * u, 0.0),
    "uniform": lambda a, u: lambda k, s: a * jax.random.uniform(k, s, minval=-1.0, maxval=1.0),
    "heavy_tail": lambda a, u: lambda k, s: a * jax.random.cauchy(k, s),
    "two_blobs": lambda a, u: (
        lambda k, s: (
            a * jnp.asarray(u, jnp.float32) * jnp.where(jnp.arange(s[0]) % 2 == 0, 1, -1)[:, None]
            + jax.random.normal(k, s)
        )
    ),
    "scaled": lambda a, u: lambda k, s: a * jax.random.normal(k, s),
}


def rows() -> Iterator[Row]:
    for d in DIMENSIONS:
        for n in SIZES:
            for name, draw in SHAPES.items():
                yield Row("clean", name, n, d, 0.0, draw, None, np.eye(d), CLEAN_BAR)
            if d > 1:
                yield Row("clean", "condition 1e4", n, d, 0.0, jax.random.normal, None, condition(d), CLEAN_BAR)
                yield Row("clean", "correlated 0.95", n, d, 0.0, jax.random.normal, None, correlated(d), CLEAN_BAR)
    gaussian, eye, diagonal = jax.random.normal, np.eye(D), np.full(D, 1 / math.sqrt(D))
    axis, random = eye[0], np.random.default_rng(5).normal(size=D)
    random /= np.linalg.norm(random)
    for source, make in FIXED.items():
        for share, far in ((0.1, 5), (0.2, 5), (0.1, 10), (0.4, 10), (0.45, 10), (0.3, 30), (0.1, 300), (0.45, 300)):
            bar = 1.25 if share <= 0.4 else MOST_BAR
            yield Row("bench", f"{source} {far}", N, D, share, gaussian, make(far, diagonal), eye, bar)
    for where, u in (("axis", axis), ("diagonal", diagonal), ("random", random), ("-axis", -axis)):
        for name in ("gaussian", "exponential", "lognormal(1)", "poisson(1)", "poisson(20)"):
            yield Row("shapes", f"{name}, {where}", N, D, 0.2, SHAPES[name], cloud(10 * u), eye, JUNK_BAR)
    for name, view in (("correlated", correlated(D)), ("condition 1e4", condition(D))):
        thin = eye[np.argmin(np.linalg.norm(view, axis=0))]
        for where, u in (("axis", axis), ("diagonal", diagonal), ("random", random)):
            back = np.linalg.inv(view)
            own = math.sqrt(u @ view @ view.T @ u)
            yield Row("shapes", f"{name}, {where}", N, D, 0.2, gaussian, cloud(10 * own * back @ u), view, JUNK_BAR)
        for far in (10, 50):
            yield Row("shapes", f"{name}, thin {far}", N, D, 0.2, gaussian, cloud(far * thin), view, JUNK_BAR)
    for where, u in (("axis", axis), ("random", random)):
        for far in (5, 7, 10, 30):
            for share in (0.1, 0.25, 0.3, 0.4, 0.45):
                if (far > 5 or share <= 0.3) and (share <= 0.4 or far > 10):
                    point = cloud(far * u, 0.0)
                    yield Row("points", f"{where} {far}", N, D, share, gaussian, point, eye, JUNK_BAR)
    surrounding = {"shell": shell, "half shell": half_shell, "ray": ray, "disc": disc, "flat disc": flat_disc}
    for name, around in surrounding.items():
        for distance in (2.0, 3.0, 4.0, 6.0, 10.0, 30.0):
            for share in (0.05, 0.2, 0.4, 0.45):
                yield Row("harm", f"{name} {distance:g}", N, D, share, gaussian, around(distance), eye, HARM_BAR)


_compiled: dict[Any, Any] = {}


def _program(filter_: Any, n: int, d: int) -> Any:
    key = (filter_, n, d)
    if key not in _compiled:

        def one(points: Array) -> Array:
            return filter_(points, jnp.full(n, 1 / n))

        _compiled[key] = jax.jit(jax.vmap(one))
    return _compiled[key]


def ratio(row: Row, filter_: Any, trials: int) -> tuple[float, float, float]:
    """(ratio to the bar's reference, plain mean's to the oracle's, share kept of the clean samples)."""
    n, d = row.n, row.d
    bad = np.arange(n) < round(row.share * n)
    keys = jax.random.split(jax.random.key(n + d), 2 * trials)
    own = jax.vmap(lambda k: row.clean(k, (n, d)))(keys[:trials])
    if row.junk is not None:
        junk = row.junk
        own = jnp.where(bad[:, None], jax.vmap(lambda k: junk(k, (n, d)))(keys[trials:]), own)
    own = own.astype(jnp.float32)
    kept = np.asarray(_program(filter_, n, d)(own @ jnp.asarray(row.view.T, jnp.float32)), float)
    z = np.asarray(own, float)
    kept = kept / kept.sum(1, keepdims=True)

    def error(weights: np.ndarray) -> float:
        return math.sqrt(np.mean(np.sum(np.einsum("tn,tnd->td", weights, z) ** 2, 1)))

    plain = error(np.full((trials, n), 1 / n))
    clean = error(np.broadcast_to(~bad / np.sum(~bad), (trials, n)))
    reference = clean if row.group in ("bench", "shapes", "points") else plain
    return error(kept) / reference, plain / clean, float((kept[:, ~bad] > 0).mean())


def table(filters: dict[str, Any], trials: int = 100, groups: tuple[str, ...] = (), every: bool = False) -> None:
    """Print the rows of the given groups (all: none given), every one or those that the last filter misses."""
    head = f"{'':7}{'':26}{'n':>5}{'d':>4}{'share':>7}{'bar':>6}{'plain':>8}"
    print(head, *(f"{name:>9} (clean kept)" for name in filters))
    missed = dict.fromkeys(filters, 0)
    total = 0
    for row in rows():
        if groups and row.group not in groups:
            continue
        found = [ratio(row, f, trials if row.d < 50 else max(20, trials // 4)) for f in filters.values()]
        total += 1
        for name, (value, _, _) in zip(filters, found, strict=True):
            missed[name] += value > row.bar
        if every or found[-1][0] > row.bar:
            cells = " ".join(f"{v:9.2f}{'*' if v > row.bar else ' '}({k:10.3f})" for v, _, k in found)
            where = f"{row.group:7}{row.name:26}{row.n:5}{row.d:4}{row.share:7.2f}{row.bar:6.2f}"
            print(f"{where}{found[0][1]:8.1f} {cells}", flush=True)
    print(f"missed, of {total}:", missed)
