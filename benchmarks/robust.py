"""``python -m benchmarks robust``: what junk, small samples and hostile clients cost, and what the robust parts save.

Parts, each a table and the claims it must meet: the filter alone and its memory (here), on data of many shapes and on
drawn ones (``filter_bars``) and in a run with them (``crowds``), junk in a run (``junk``, Figure 2a), shared Jacobians
(``sharing``, Figure 2b), adaptive sample size (``adaptive``, Figure 2c) and hostile clients (``hostile``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import hostile, worst
from benchmarks.adaptive import adaptive
from benchmarks.bench import Bench, Row
from benchmarks.crowds import SHAPES, crowds
from benchmarks.filter_bars import drawn_bars, filter_bars
from benchmarks.junk import SAMPLES, flipped, junk
from benchmarks.sharing import no_harm, sharing
from profl.parts.filters import FILTERS, PaperFilter, RobustFilter
from profl.problem.sources import SOURCES
from profl.typing import Array, Key
from profl_papers.claims import Part, at_least, at_most

ROUNDS, QUICK_ROUNDS = 200, 20
TRIALS, QUICK_TRIALS, QUICK_ROWS = 200, 20, 40
"""Batches per row of the filter's table: with 200 of them the error of a mean is known to about 2 %."""
DRAWN, QUICK_DRAWN = 100, 2
"""Shapes that are drawn: the rule was chosen on seeds below 400."""
JUNK = ("blob", "heavy_tail", "adaptive")
"""Of all sources, for runs: a cloud beside the data, values without a mean, and one that follows the model."""
RULE = "history"
"""The rule to take: it knows clients that differ from hostile ones by their noise."""

DIMENSIONS = 5
"""Of the filter's table: as many as pricing has goods."""
FIXED_SOURCES = ("blob", "point", "uniform", "heavy_tail", "two_blobs", "scaled")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45)
KNOWN_MOST = 0.47
"""What the filter is told that junk may be at most: by default it drops a third and no more."""
DISTANCES = (5, 10, 30, 300)
FAR = 10
"""Standard deviations beyond which junk does not overlap with five-dimensional normal data."""
NEAR_SHARE, FAR_SHARE = 0.2, 0.4
"""How much junk the filter must withstand with room to spare, where it is near and where it is far; past FAR_SHARE only
few samples more are good than bad, and the bar is LOOSE."""
TIGHT, LOOSE = 1.25, 1.5
"""How many times the error of the clean mean the filtered mean's may be."""
CLEAN = 1.03
"""The same on clean data, where every sample thrown away is a loss: 3 % is what losing 6 % of the samples costs."""
NO_WORSE = 1.1
"""How many times the error of the plain mean it may be anywhere: where junk is too near to be seen, it does no harm."""
KEPT, ROUNDING = 0.5, 1e-6
"""At least half of the weight stays, less what adding 500 weights in single precision may lose."""
MEMORY_DIMENSIONS, MEGABYTES = 2000, 50
"""With 2000 numbers a batch has 4 MB of gradients; a square matrix per batch would be 16 MB, one per sample 8 GB."""


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All parts; ``quick`` makes short runs that show the form of the result but prove nothing."""
    settings = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "seeds": range(seeds), "progress": False}
    runs = {key: value for key, value in settings.items() if key != "progress"}
    trials = QUICK_TRIALS if quick else TRIALS
    parts: dict[str, Callable[[], Part]] = {
        "filter alone": partial(filter_alone, trials),
        "filter, shapes": partial(filter_bars, trials if quick else trials // 2, every=QUICK_ROWS if quick else 1),
        "filter, drawn shapes": partial(drawn_bars, range(QUICK_DRAWN if quick else DRAWN)),
        **{f"hostile, {rule}": partial(hostile.attacked, rule, runs) for rule in ("mean", RULE, hostile.STRONGER)},
        f"hostile, {hostile.MANY} clients": partial(hostile.many, RULE, runs),
        "hostile, with noise of their own": partial(hostile.jittered, RULE, settings),
        "hostile, shared Jacobians": partial(hostile.shared, runs),
        **{f"worst, {name}": partial(worst.attacked, name, settings, quick) for name in worst.METHODS},
        **{f"honest, {name}": partial(worst.honest, name, settings, quick) for name in worst.CASES},
        **{f"crowds, {shape}": partial(crowds, shape, settings) for shape in SHAPES},
        **{f"junk, {source}": partial(junk, source, settings) for source in JUNK},
        "junk, labels": partial(flipped, settings),
        "sharing": partial(sharing, settings),
        "sharing, no harm": partial(no_harm, settings),
        "memory": memory,
    }
    return Bench(parts, {"adaptive n": partial(adaptive, settings)}, of_all)


def of_all(rows: Sequence[Row]) -> Part:
    """The claims on hostile clients, from the rows of all parts."""
    return Part([], [*hostile.of_all(rows, RULE).claims, *worst.claims(rows)])


def filter_alone(trials: int) -> Part:
    """Error of the filtered mean over that of the mean of the truly clean samples: d = 5, n = 500."""
    rows, worst = [], {"far": 0.0, "far, most": 0.0, "near": 0.0, "plain": 0.0, "clean": 0.0, "kept": 1.0}
    keys = jax.random.split(jax.random.key(0), trials)
    for source in FIXED_SOURCES:
        table = _trial(source)
        for share in SHARES:
            for distance in DISTANCES:
                errors, kept, failed = table(keys, share, float(distance))
                robust, literal, clean, plain = np.sqrt(np.mean(errors, axis=0))
                ratio = robust / clean
                rows.append(
                    {
                        "part": "filter alone",
                        "source": source,
                        "share": share,
                        "distance": distance,
                        "robust / clean": ratio,
                        "paper / clean": literal / clean,
                        "plain / clean": plain / clean,
                        "paper failed": np.mean(failed),
                    }
                )
                where = _bar(share, distance)
                if where:
                    worst[where] = max(worst[where], ratio)
                worst["plain"] = max(worst["plain"], robust / plain)
                worst["kept"] = min(worst["kept"], float(np.min(kept)))
    name = "filter alone, worst error over that of the clean mean: "
    return Part(
        rows,
        [
            at_most(name + f"{FAR} sigma or more, eps <= {FAR_SHARE}", worst["far"], TIGHT),
            at_most(name + f"{FAR} sigma or more, eps = {SHARES[-1]}", worst["far, most"], LOOSE),
            at_most(name + f"{DISTANCES[0]} sigma, eps <= {NEAR_SHARE}", worst["near"], TIGHT),
            at_most(name + "clean data", worst["clean"], CLEAN),
            at_most("filter alone, worst error over that of the plain mean", worst["plain"], NO_WORSE),
            at_least("filter alone, least share kept", worst["kept"] + ROUNDING, KEPT),
        ],
    )


def _bar(share: float, distance: float) -> str:
    """Which claim a row of the table counts for."""
    if share == 0:
        return "clean"
    if distance >= FAR:
        return "far" if share <= FAR_SHARE else "far, most"
    return "near" if share <= NEAR_SHARE else ""


def _trial(source: str) -> Callable[..., Any]:
    """Squared errors of the four means, the weight kept, and whether the literal rule failed: compiled, over keys."""
    sampler, n, d = SOURCES[source], SAMPLES, DIMENSIONS

    def one(key: Key, share: Array, distance: Array) -> tuple[Array, Array, Array]:
        first, second = jax.random.split(key)
        clean = jax.random.normal(first, (n, d))
        bad = jnp.arange(n) < jnp.round(share * n)
        samples = jnp.where(bad[:, None], sampler(second, clean, jnp.zeros(d), distance), clean)
        weights = jnp.full(n, 1 / n)
        kept = RobustFilter(at_most=KNOWN_MOST)(samples, weights)
        literal, failed = PaperFilter().run(samples, weights)
        means = [w @ samples / jnp.sum(w) for w in (kept, literal, (~bad).astype(float), weights)]
        return jnp.stack([jnp.sum(mean**2) for mean in means]), jnp.sum(kept), failed

    return jax.jit(jax.vmap(one, (0, None, None)))


def memory() -> Part:
    """What the filter needs beside the gradients, d = 2000 and n = 500: the compiler's own account of it."""
    n, d = SAMPLES, MEMORY_DIMENSIONS
    shapes = jax.ShapeDtypeStruct((n, d), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    analysis = jax.jit(FILTERS["robust"]).lower(*shapes).compile().memory_analysis()
    assert analysis is not None
    megabytes = analysis.temp_size_in_bytes / 1e6
    name = f"filter, d = {d}, n = {n}: memory beside the gradients"
    return Part(
        [{"part": "memory", "d": d, "n": n, "megabytes": megabytes}], [at_most(name, megabytes, MEGABYTES, " MB")]
    )
