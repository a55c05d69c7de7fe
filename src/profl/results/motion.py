"""How a model moved in a run, in sentences for its summary: not at all, or from bound to bound of its space."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from profl import trees
from profl.parts.units import PROBE_DISTANCE
from profl.problem.problem import Problem
from profl.typing import Theta

MOST = 0.5  # of the coordinates, for this share of the run
FEWEST = 8  # records that show a run

PINNED = (
    "WARNING: most coordinates of the model {how} for most of the run{seeds}: the steps are too long, or the space "
    "ends before the optimum. Try a smaller learning_rate, or 'auto'; where the model stays there, a wider space."
)
STILL = (
    "WARNING: the model has not moved at all{seeds}: its steps are below what {dtype} resolves, {spacing:.2g} "
    "around {size:.3g}. Count the parameters from elsewhere (theta - {size:.3g}) or in other units, use 64 bit "
    "(jax.config.update('jax_enable_x64', True)), or take a larger learning_rate."
)


def motion_notes(problem: Problem, theta: Theta, known: Iterable[Theta | None], descends: bool) -> tuple[str, ...]:
    """Sentences about the models of a run, (seeds, records, ...).

    ``known`` are points at which it may well end, ``descends`` says whether the method has a learning rate.
    """
    models = trees.flat_rows(theta, 2)
    models = models[np.isfinite(models).all((1, 2))]
    if not descends or models.shape[1] < FEWEST or not models.size:
        return ()
    still = (models == models[:, :1]).all((1, 2))
    # Bounds are where a model comes back to the same number: only then is the space asked for them.
    extreme = (models == models.min(1, keepdims=True)) | (models == models.max(1, keepdims=True))
    pinned = np.zeros(len(models), bool)
    if np.any((extreme.mean(1) > MOST).mean(1) > MOST):
        low, high = (_end(problem, theta, side) for side in (-PROBE_DISTANCE, PROBE_DISTANCE))
        at = np.stack([models <= low, models >= high])  # (2, seeds, records, d)
        for point in known:
            if point is not None:
                flat = trees.flat_rows(point, 0)
                at &= ~np.stack([flat <= low, flat >= high])[:, None, None]
        pinned = (at.any(0).mean(1) > MOST).mean(1) > MOST
    still &= ~pinned
    notes = []
    if pinned.any():
        jumps = np.any((at[0, pinned, 1:] & at[1, pinned, :-1]) | (at[1, pinned, 1:] & at[0, pinned, :-1]))
        how = "jumped from bound to bound of the model space" if jumps else "lay at a bound of the model space"
        notes.append(PINNED.format(how=how, seeds=_of(pinned)))
    if still.any():
        size = np.abs(models[still]).max()
        notes.append(STILL.format(seeds=_of(still), dtype=models.dtype.name, spacing=np.spacing(size), size=size))
    return tuple(notes)


def _end(problem: Problem, theta: Theta, side: float) -> np.ndarray:
    """The bounds of the model space to one ``side``, (d,); infinite where it has none."""
    first = jax.tree.map(lambda leaf: np.asarray(leaf)[0, 0], theta)
    moved = jax.tree.map(lambda leaf: leaf + np.asarray(side, leaf.dtype), first)
    end = trees.flat_rows(problem.project(moved), 0)
    return np.where(np.abs(end) < PROBE_DISTANCE / 2, end, np.sign(side) * np.inf).astype(end.dtype)


def _of(which: np.ndarray) -> str:
    return "" if which.all() else f" ({which.sum()} of {which.size} seeds)"
