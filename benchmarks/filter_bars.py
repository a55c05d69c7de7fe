"""What a filter must show on batches alone: clean data of many shapes come through, junk goes, and it does no harm.

    clean        error of the filtered mean over that of the plain mean
    junk         error of the filtered mean over that of the mean of the clean samples, the oracle's
    surrounding  error of the filtered mean over that of the plain mean, on junk that surrounds the data

Errors are root mean squares over the trials, in coordinates in which the clean data have unit covariance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import shapes
from benchmarks.shapes import SHAPES, Sampler, cloud
from profl.parts.filters import RobustFilter
from profl.parts.filters.reference_sample import Known
from profl.typing import Array, Key
from profl_papers.claims import Part, at_least, at_most

N, D = 500, 5
SIZES, DIMENSIONS = (500, 50, 20), (1, 5, 50)
WIDE = 50
"""Numbers in a sample from which on a quarter of the trials must do."""
CLEAN, JUNK, NO_WORSE = 1.1, 1.3, 1.05
FAR, SHARE = 10, 0.2
"""Junk beside data that are not Gaussian: sigmas away, and its share."""
POINTS = {5: (0.1, 0.2, 0.3), 7: (0.1, 0.2, 0.3, 0.4), 10: (0.1, 0.2, 0.3, 0.4), 30: (0.1, 0.25, 0.4, 0.45)}
AROUND, SHARES_AROUND = (2.0, 3.0, 4.0, 6.0, 10.0, 30.0), (0.05, 0.2, 0.4, 0.45)
DRAWN_TRIALS, MOST, NO_WORSE_JUNK = 40, 0.3, 1.1
"""Batches of a drawn row; the most junk in one; the error over the plain mean's that it may have."""
KINDS, APART, KNOWN = 0.3, 6.0, 1.05
"""A second kind of customer: its share, sigmas away, and the bar with a reference."""


class Row(NamedTuple):
    """Samplers of clean and junk in unit coordinates, the map from these to what a filter sees, and the bar."""

    part: str
    name: str
    n: int
    d: int
    share: float
    clean: Sampler
    junk: Sampler | None
    view: np.ndarray
    bar: float


def clean_rows() -> Iterator[Row]:
    for d in DIMENSIONS:
        for n in SIZES:
            for name, draw in SHAPES.items():
                yield Row("clean", name, n, d, 0.0, draw, None, np.eye(d), CLEAN)
            for name, view in {"condition 1e4": shapes.condition, "correlated 0.95": shapes.correlated}.items():
                if d > 1:
                    yield Row("clean", name, n, d, 0.0, jax.random.normal, None, view(d), CLEAN)


def junk_rows() -> Iterator[Row]:
    eye = np.eye(D)
    random = np.random.default_rng(5).normal(size=D)
    places = {"axis": eye[0], "-axis": -eye[0], "diagonal": np.full(D, D**-0.5), "random": random}
    places = {name: u / np.linalg.norm(u) for name, u in places.items()}
    for where, u in places.items():
        for name in ("Gaussian", "exponential", "Poisson(1)", "Poisson(3)", "Poisson(20)"):
            yield Row("junk", f"{name}, {where}", N, D, SHARE, SHAPES[name], cloud(FAR * u), eye, JUNK)
    for name, view in {"correlated": shapes.correlated(D), "condition 1e4": shapes.condition(D)}.items():
        thin = eye[np.argmin(np.linalg.norm(view, axis=0))]
        away = {where: np.linalg.solve(view, u) * np.linalg.norm(u @ view) for where, u in places.items()}
        for where, u in {**away, "thin": thin, "thin, 50": 5 * thin}.items():
            yield Row("junk", f"{name}, {where}", N, D, SHARE, jax.random.normal, cloud(FAR * u), view, JUNK)
    for where in ("axis", "random"):
        for far, shares in POINTS.items():
            for share in shares:
                point = cloud(far * places[where], 0.0)
                yield Row("points", f"{where}, {far}", N, D, share, jax.random.normal, point, eye, JUNK)


def surrounding_rows() -> Iterator[Row]:
    for name, make in shapes.SURROUNDING.items():
        for far in AROUND:
            for share in SHARES_AROUND:
                yield Row(
                    "surrounding", f"{name}, {far:g}", N, D, share, jax.random.normal, make(far), np.eye(D), NO_WORSE
                )


class Measured(NamedTuple):
    error: float  # over that of the bar's reference
    plain: float  # the plain mean's error over the oracle's
    kept: float  # share of the clean samples


def measured(row: Row, filter_: Any, trials: int, seed: int) -> Measured:
    n, bad = row.n, np.arange(row.n) < round(row.share * row.n)

    @jax.jit
    def draw(key: Key) -> tuple[Array, Array]:
        """The samples, and what the filter sees of them."""
        first, second = jax.random.split(key)
        own = jax.vmap(lambda key: row.clean(key, (n, row.d)))(jax.random.split(first, trials))
        if (junk := row.junk) is not None:
            drawn = jax.vmap(lambda key: junk(key, (n, row.d)))(jax.random.split(second, trials))
            own = jnp.where(bad[:, None], drawn, own)
        own = own.astype(jnp.float32)
        return own, own @ jnp.asarray(row.view.T, jnp.float32)

    own, seen = draw(jax.random.key(seed))
    kept = np.asarray(_program(filter_)(seen), float)
    samples = np.asarray(own, float)

    def error(weights: np.ndarray) -> float:
        means = np.einsum("tn,tnd->td", weights / weights.sum(1, keepdims=True), samples)
        return math.sqrt(np.mean(np.sum(means**2, 1)))

    plain, clean = (error(np.broadcast_to(weights, (trials, n))) for weights in (np.ones(n), 1.0 * ~bad))
    reference = clean if row.part in ("junk", "points") else plain
    return Measured(error(kept) / reference, plain / clean, float((kept[:, ~bad] > 0).mean()))


@lru_cache
def _program(filter_: Any) -> Any:
    def one(points: Array) -> Array:
        return filter_(points, jnp.full(len(points), 1 / len(points)))

    return jax.jit(jax.vmap(one))


def filter_bars(trials: int, seed: int = 0, every: int = 1) -> Part:
    """Every row (or one in so many), the worst of each part by name, and two kinds of customers nobody declared."""
    rows, claims = [], []
    for each in (clean_rows, junk_rows, surrounding_rows):
        found: dict[str, list[tuple[float, str]]] = {}
        for row in islice(each(), 0, None, every):
            got = measured(row, RobustFilter(), trials if row.d < WIDE else max(2, trials // 4), seed)
            place = {"n": row.n, "d": row.d, "share": row.share, "bar": row.bar}
            rows.append({"part": f"filter, {row.part}", "data": row.name, **place, **got._asdict()})
            found.setdefault(row.part, []).append((got.error / row.bar, f"{row.name}, n = {row.n}, d = {row.d}"))
        for part, errors in found.items():
            worst, name = max(errors)
            claims.append(
                at_most(f"filter, {part}: worst error over its bar, of {len(errors)} rows ({name})", worst, 1)
            )
    known, without = two_kinds(trials, seed)
    rows.append({"part": "filter, two kinds", "with a reference": known, "without": without})
    name = f"filter, two kinds {KINDS:.0%} : {1 - KINDS:.0%}, {APART:g} sigma apart: error over the plain mean's"
    return Part(rows, [*claims, at_most(f"{name}, with a reference", known, KNOWN)])


class Drawn(NamedTuple):
    """One drawn row: errors over the bar's reference and of the plain mean over it, and what is kept of clean data."""

    error: float
    plain: float
    kept: float


def drawn(seed: int, filter_: Any, trials: int = DRAWN_TRIALS) -> tuple[Drawn, Drawn]:
    """(clean: errors over the plain mean's; with junk: over the oracle's) of the shape and the junk of a seed."""
    shape = shapes.drawn_shape(seed)
    junk = shapes.drawn_junk(seed, shape.d, nearest=FAR, most=MOST)
    clean = shape.sample(np.random.default_rng([seed, 2]), trials)
    bad = np.arange(shape.n) < round(junk.share * shape.n)
    beside = shape.mean + shape.sd * junk.sample(np.random.default_rng([seed, 3]), clean.shape)
    dirty = np.where(bad[:, None], beside, clean)

    def error(samples: np.ndarray, weights: np.ndarray) -> float:
        means = np.einsum("tn,tnd->td", weights / weights.sum(1, keepdims=True), samples)
        return math.sqrt(np.mean(np.sum(((means - shape.mean) / shape.sd) ** 2, 1)))

    equal = np.ones((trials, shape.n))
    after, after_junk = (np.asarray(_program(filter_)(each.astype(np.float32)), float) for each in (clean, dirty))
    plain, oracle = error(clean, equal), error(dirty, equal * ~bad)
    return (
        Drawn(error(clean, after) / plain, 1.0, float((after > 0).mean())),
        Drawn(error(dirty, after_junk) / oracle, error(dirty, equal) / oracle, float((after_junk > 0)[:, ~bad].mean())),
    )


def drawn_bars(seeds: range, trials: int = DRAWN_TRIALS) -> Part:
    """Rows of drawn shapes, clean and with junk."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        shape = shapes.drawn_shape(seed)
        junk = shapes.drawn_junk(seed, shape.d, nearest=FAR, most=MOST)
        name, place = shape.name, {"n": shape.n, "d": shape.d}
        clean, dirty = drawn(seed, RobustFilter(), trials)
        rows.append({"part": "filter, drawn, clean", "seed": seed, "data": name, **place, **clean._asdict()})
        kind = {"junk": junk.kind, "share": junk.share, "distance": junk.distance}
        rows.append({"part": "filter, drawn, junk", "seed": seed, "data": name, **place, **kind, **dirty._asdict()})
    clean_errors, junk_errors = (np.array([row["error"] for row in rows[part::2]]) for part in (0, 1))
    plain = np.array([row["plain"] for row in rows[1::2]])
    name = f"filter, drawn shapes of seeds {seeds.start} to {seeds.stop - 1}"
    return Part(
        rows,
        [
            at_least(f"{name}, clean: share of rows within {CLEAN}", float(np.mean(clean_errors <= CLEAN)), 0.98),
            at_most(f"{name}, clean: worst error over the plain mean's", float(clean_errors.max()), 1.5),
            at_least(f"{name}, junk: share of rows within 1.4", float(np.mean(junk_errors <= 1.4)), 0.95),
            at_most(
                f"{name}, junk: worst error over the plain mean's", float(np.max(junk_errors / plain)), NO_WORSE_JUNK
            ),
        ],
    )


def two_kinds(trials: int, seed: int = 0) -> tuple[float, float]:
    """Errors over the plain mean's, with a reference of as many vetted samples and without."""
    towards = np.full(D, D**-0.5, np.float32) * APART

    def draw(key: Any) -> Array:
        first, second = jax.random.split(key)
        return jax.random.normal(first, (N, D)) + towards * jax.random.bernoulli(second, KINDS, (N, 1))

    drawn = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), trials + 1)))
    known, plain = Known(*jax.device_put((drawn[0].T, np.ones(N, np.float32)))), RobustFilter()
    samples, weights = drawn[1:], jax.device_put(np.full(N, 1 / N, np.float32))

    @jax.jit
    @jax.vmap
    def kept(points: Array) -> tuple[Array, Array]:
        return plain.step(points, weights, plain.start(D), known)[0], plain(points, weights)

    def error(weights: Any) -> float:
        weights = np.asarray(weights, float)
        means = np.einsum("tn,tnd->td", weights / weights.sum(1, keepdims=True), np.asarray(samples))
        return math.sqrt(np.mean(np.sum((means - KINDS * towards) ** 2, 1)))

    informed, blind = kept(samples)
    whole = error(np.ones((trials, N)))
    return error(informed) / whole, error(blind) / whole
