"""What the robust filter would drop, and what it looks like."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from profl.parts.filters import RobustFilter
from profl.parts.trusted_samples import MUCH, begin, filter_weights
from profl.problem.problem import Functions, Problem
from profl.results.histogram import histogram
from profl.run.diagnostics.finding import Finding
from profl.run.live import batches
from profl.typing import Array, Batch, Theta

SOUND = 0.97  # kept by the filter: of clean data it keeps 99.5 % and more (tests/test_filters.py)
IF_JUNK = "; if that is junk, profl.profl and profl.prm(filter='robust') train without it"
IF_MUCH = (
    ": so much may be a second kind of customer and not junk. Look at who they are. If it is junk, give the filter a "
    "vetted sample, RobustFilter(reference=...); if not, train with filter='none', or set a limit, at_most=..."
)
NO_SPREAD = 1e-15  # standard deviations below this count as this one


def junk(world: Problem, theta: Theta, batch: Batch) -> Finding:
    n = batches.rows(batch)
    weights = jnp.full(n, 1 / n)
    after, kept = _filtered(world.functions, RobustFilter(), theta, batch, weights)
    share = max(0.0, 1.0 - float(kept))
    verdict, hint = ("ok", "") if share <= 1 - SOUND else ("warn", IF_JUNK if share < MUCH else IF_MUCH)
    picture = _picture(batch, np.asarray(after < weights / 2))
    return Finding("junk", verdict, f"the filter would drop {share:.1%} of the samples{hint}", picture)


def _picture(batch: Batch, dropped: np.ndarray) -> str:
    """A histogram of the coordinate in which the dropped samples are, in root mean square, the most standard deviations
    of the kept ones away from their mean; so are those that lie on both sides of it."""
    if not dropped.any() or dropped.all():
        return ""
    names, columns = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = leaf.shape[1:]
        names += [f"sample{jax.tree_util.keystr(path)}{list(place) if place else ''}" for place in np.ndindex(*shape)]
        columns.append(np.asarray(leaf, np.float64).reshape(len(leaf), -1))
    points = np.concatenate(columns, axis=1)
    centre, spread = points[~dropped].mean(0), points[~dropped].std(0)
    away = np.sqrt(np.mean((points[dropped] - centre) ** 2, axis=0)) / np.maximum(spread, NO_SPREAD)
    farthest = int(np.argmax(away))
    return histogram(names[farthest], points[:, farthest], dropped)


@partial(jax.jit, static_argnums=(0, 1))
def _filtered(
    problem: Functions, filter_: RobustFilter, theta: Theta, batch: Batch, weights: Array
) -> tuple[Array, Array]:
    memory = begin(problem, filter_, theta, batch)
    return filter_weights(problem, filter_, theta, batch, weights, memory)[:2]
