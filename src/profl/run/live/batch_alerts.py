"""What is odd about a live client's batches, as one sentence each: the same rows again, noise that is not as stated.

A batch that equals the one before it in every bit is no new data. Of rows that were drawn anew, the chance of that is
exp(-n H), with H the entropy of the batch's own rows: nothing is said where that is likely, as of rows that are all
alike, or of five yes-or-no answers.

A family that states a standard deviation of its data (``sd``) is believed by the estimators. Its variance of f_hat is
compared with the one that the middle half of the batch shows, by the sandwich formula, which needs no sd: junk lies
farther out, and is the filter's matter.
"""

from __future__ import annotations

import math
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.problem.families import Family
from profl.typing import Array, Batch

CHANCE = 1e-9
"""Two batches are the same one if they would be equal by chance less often than that."""
FAR_OFF = 10.0
"""A stated standard deviation is wrong if that in the data is so many times as large. Of one that is stated too large
nothing is said: data may have no noise, and it costs some deployments."""
MIDDLE_DEVIATION = 0.378
"""Standard deviation of the middle half of a normal distribution, over that of the whole."""
FEWEST = 10
"""Fewer rows may not show their standard deviation to within a factor of ``FAR_OFF``."""

REPEATED = (
    "sends the same {rows} rows again and again, since round {since}: its data do not answer to what it deploys; does "
    "it read an old file?"
)
MISSTATED = (
    "has data whose noise is {ratio:.2g} times what the family states (its sd): state it as it is, or use "
    "profl.LocationScale(), which measures it; or is more than half of it junk?"
)


class LastBatch(NamedTuple):
    """The last batch of a client, by its digest."""

    digest: str
    since: int  # the round, from 1, in which it came first
    said: bool = False  # whether it has been told of

    def next(self, batch: Batch, round_: int) -> tuple[LastBatch, str]:
        """(the last batch after this one, what is to be said)."""
        found = digest(batch)
        if found != self.digest:
            return LastBatch(found, round_), ""
        if self.said or log_chance_of_equal(batch) > math.log(CHANCE):
            return self, ""
        words = REPEATED.format(rows=len(jax.tree.leaves(batch)[0]), since=self.since)
        return self._replace(said=True), words


NO_BATCH = LastBatch("", 0)


def digest(batch: Batch) -> str:
    """A short text that only equal batches share."""
    state = blake2b(digest_size=16)
    for leaf in jax.tree.leaves(batch):
        state.update(np.ascontiguousarray(leaf).tobytes())
    return state.hexdigest()


def log_chance_of_equal(batch: Batch) -> float:
    """The log of the chance that rows drawn anew from this batch are the same ones in the same order.

    >>> round(log_chance_of_equal(np.array([[0.0], [1.0], [0.0], [1.0]])), 3)
    -2.773
    >>> log_chance_of_equal(np.ones((9, 2)))
    0.0
    """
    rows = trees.flat_rows(batch).astype(float)
    counts = np.unique(rows, axis=0, return_counts=True)[1]
    return float(counts @ np.log(counts / len(rows)))


def middle_half(batch: Batch) -> Batch:
    """The half of the samples that lies nearest to the median, each column in units of its median distance.

    >>> middle_half(np.array([[9.0], [1.0], [2.0], [3.0]])).ravel().tolist()
    [2.0, 3.0]
    """
    rows = trees.flat_rows(batch).astype(float)
    offsets = np.abs(rows - np.median(rows, axis=0))
    usual = np.median(offsets, axis=0)
    farthest = np.max(offsets / np.where(usual > 0, usual, 1.0), axis=1)
    nearest = np.sort(np.argsort(farthest, kind="stable")[: -(-len(offsets) // 2)])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[nearest], batch)


def misstated_noise(family: Family, batch: Batch) -> str:
    """What is to be said of the standard deviation that a family states; "" where it is large enough, or none is."""
    rows = len(jax.tree.leaves(batch)[0])
    if not hasattr(family, "sd") or family.shift is None or rows < FEWEST:
        return ""
    stated, shown = (np.asarray(value, float).sum() for value in _variances(family, middle_half(batch)))
    if not stated > 0 or not np.isfinite(shown):
        return ""
    ratio = math.sqrt(shown / stated) / MIDDLE_DEVIATION
    return MISSTATED.format(ratio=ratio) if ratio > FAR_OFF else ""


@partial(jax.jit, static_argnums=0)
def _variances(family: Family, batch: Batch) -> tuple[Array, Array]:
    """The variance of f_hat as the family states it, and from the batch alone; shape (p,) each."""
    batch = trees.cast(batch)
    n = len(jax.tree.leaves(batch)[0])
    weights = jnp.full(n, 1 / n)
    f = family.estimate(batch, weights)
    return family.variance(batch, weights, f), Family.variance(family, batch, weights, f)
