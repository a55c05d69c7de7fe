"""Samples that someone has vetted, as a setting: they compare by their values, so that compiled code is found again."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.typing import Array, Batch

FEWEST = 30
"""Samples that a kind of three in ten can be told from: the share is then known to 8 %."""


class Known(NamedTuple):
    """Vetted samples as a filter sees them: (d, m) points, and (m,) weights; zero for those of other groups."""

    points: Array
    weights: Array


class Vetted:
    """A batch of one row per sample.

    >>> Vetted(np.zeros((40, 2)))
    40 vetted samples
    >>> Vetted(np.zeros((4, 2)))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: a reference needs 30 samples or more, got 4
    """

    def __init__(self, batch: Any) -> None:
        self.batch = jax.tree.map(np.asarray, batch)
        leaves = jax.tree.leaves(self.batch)
        rows = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
        if len(rows) != 1:
            raise checks.InputError(f"a reference is a batch with as many rows in every part, got {sorted(rows)}")
        (self.rows,) = rows
        if self.rows < FEWEST:
            raise checks.InputError(f"a reference needs {FEWEST} samples or more, got {self.rows}")
        for leaf in leaves:
            if not np.all(np.isfinite(leaf)):
                raise checks.InputError("a reference must be finite: some of its numbers are NaN or infinite")
        values = b"".join(leaf.tobytes() + str((leaf.shape, leaf.dtype)).encode() for leaf in leaves)
        self._identity = hashlib.sha256(values).hexdigest(), jax.tree.structure(self.batch)

    def like(self, batch: Batch) -> Batch:
        """The samples in the form of a batch; refused where they have another."""
        ours, theirs = (
            (jax.tree.structure(each), [leaf.shape[1:] for leaf in jax.tree.leaves(each)])
            for each in (self.batch, batch)
        )
        if ours != theirs:
            raise checks.InputError(
                f"the filter's reference must look like a batch, {theirs[0]} with rows of {theirs[1]}; "
                f"got {ours[0]} with rows of {ours[1]}"
            )
        return jax.tree.map(lambda leaf, own: own.astype(leaf.dtype), batch, self.batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vetted) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"{self.rows} vetted samples"
