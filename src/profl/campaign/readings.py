"""What is told of a deployment, read and checked before anything is written: an array, a frame, a CSV file.

A frame's columns are taken by name where the names of a sample's numbers are known: stated by the problem, or those of
the first frame that was told. What is checked beside its shape: NaN and Inf, labels, the number of rows (as in
``train``), and whether the numbers seem to be in other units than all that came before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.campaign.events import Arrays, Draft
from profl.checks import InputError
from profl.problem.families import Family
from profl.run.live import batches
from profl.run.live.batches import Delayed, Failure
from profl.storage import archive
from profl.typing import Batch, Theta

UNIT_CHANGE = 10.0
"""Numbers so many times as large, or as small, as is usual are in other units: the smallest change of units is a factor
of a hundred, and this lies midway between it and none."""


class Reading(NamedTuple):
    """A batch that can be used."""

    batch: Batch
    missing: int  # rows with missing cells, which were left out
    columns: list[str] | None  # the columns of a frame, in the order of the sample's numbers
    scale: list[float]  # the mean size of each of the sample's numbers
    deployed: Theta = None  # of a ``Delayed`` batch

    @property
    def arrays(self) -> Arrays:
        """The data of the event that tells it."""
        arrays = archive.named_arrays("batch", self.batch)
        return arrays if self.deployed is None else arrays | archive.named_arrays("deployed", self.deployed)

    def draft(self, deployment: int, at: str) -> Draft:
        """The event that tells it."""
        rows = batches.rows(self.batch)
        body = {"rows": rows, "missing": self.missing, "columns": self.columns, "scale": self.scale}
        return Draft("told", at, body, deployment, self.arrays)


class Usual(NamedTuple):
    """The scales of what came in before."""

    own: list[list[float]]  # of the same client
    others: list[list[float]]


class Reader(NamedTuple):
    """How the data of one campaign are read."""

    like: Batch  # the structure, shapes and dtypes of a batch
    family: Family
    columns: list[str] | None  # the names of a sample's numbers; None where nobody has stated them yet

    def read(self, data: Any, requested: int, deployed: Theta, usual: Usual | None) -> Reading:
        """The batch in ``data``, of ``usual`` sizes unless that is None. Raises ``InputError``."""
        if isinstance(data, (str, os.PathLike)):
            data = read_csv(data)
        delayed, earlier = isinstance(data, Delayed), None
        if delayed:
            data, earlier = data
        columns = None
        if is_frame(data):
            data, columns = self._by_name(data)
        try:
            sent = Delayed(data, earlier) if delayed else data
            answer = batches.read_answer(sent, self.like, deployed, self.family, requested)
        except Failure as error:
            raise InputError(f"the data cannot be used: {error}") from None
        scale = mean_sizes(answer.batch)
        if usual is not None:
            check_units(scale, *usual)
        return Reading(answer.batch, answer.missing, columns, scale, answer.deployed if delayed else None)

    def _by_name(self, frame: Any) -> tuple[Any, list[str]]:
        """(the frame with the sample's columns alone, in their order; their names)."""
        have = [str(name) for name in frame.columns]
        if repeated := sorted({name for name in have if have.count(name) > 1}):
            raise InputError(f"every column needs a name of its own, {', '.join(repeated)} is there twice")
        wanted = self.columns
        if wanted is None:
            wanted = _usual_columns(self.like, have)
        if absent := [name for name in wanted if name not in have]:
            unused = [name for name in have if name not in wanted]
            hints = {name: checks.nearest(name, unused) for name in absent}
            meant = "; ".join(f"{name!r} may be {near!r}" for name, near in hints.items() if near)
            raise InputError(
                f"the data need the columns {', '.join(wanted)}; missing: {', '.join(absent)}"
                f"{f' ({meant})' if meant else ''}; there are: {', '.join(have)}"
            )
        frame = frame.set_axis(have, axis=1)[wanted]
        if isinstance(self.like, dict):
            return _as_entries(frame, self.like), wanted
        return frame, wanted


def read_csv(path: str | os.PathLike[str]) -> Any:
    """A CSV file as a frame."""
    import pandas

    if not Path(path).is_file():
        raise InputError(f"there is no file {path}")
    try:
        return pandas.read_csv(path)
    except (ValueError, OSError, UnicodeError) as error:
        raise InputError(f"{path} is no CSV file that can be read: {checks.words(error)}") from error


def is_frame(data: Any) -> bool:
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def mean_sizes(batch: Batch) -> list[float]:
    """The mean absolute value of each of a sample's numbers, over the rows."""
    leaves = [np.abs(np.asarray(leaf, float)).mean(axis=0).ravel() for leaf in jax.tree.leaves(batch)]
    return [float(size) for size in np.concatenate(leaves)]


def check_units(scale: Sequence[float], own: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> None:
    """Refuse numbers that are ``UNIT_CHANGE`` times as large, or as small, as what the same client told before.

    A client's first numbers are compared with the middle of the others', and all between their smallest and their
    largest is usual. A zero is one in all units.

    >>> check_units([100.0, 210.0], [[1.0, 2.0], [1.5, 2.0]], [])
    Traceback (most recent call last):
        ...
    profl.checks.InputError: the numbers are typically 93 times those that were told before: are they in other units?
    >>> check_units([30.0, 50.0], [], [[1.0, 2.0], [25.0, 40.0]])
    """
    own = [sizes for sizes in own if any(sizes)]
    before, sizes = np.array(own or others, float), np.asarray(scale, float)
    if before.size == 0:
        return
    known = (sizes > 0) & (before > 0).any(axis=0)
    if not known.any():
        return
    new, old = np.log(sizes[known]), np.log(np.where(before > 0, before, np.nan)[:, known])
    if own:
        usual = np.nanmedian(old, axis=0)
    else:
        least, most = np.nanmin(old, axis=0), np.nanmax(old, axis=0)
        usual = np.where((least <= new) & (new <= most), new, (least + most) / 2.0)
    ratio = float(np.exp(np.median(new - usual)))
    if not 1 / UNIT_CHANGE < ratio < UNIT_CHANGE:
        raise InputError(
            f"the numbers are typically {ratio:.2g} times those that were told before: are they in other units?"
        )


def _usual_columns(like: Batch, have: list[str]) -> list[str]:
    """The columns of a sample's numbers where nobody has named them: an entry's name, and for a vector what is left."""
    if not isinstance(like, dict):
        return have
    scalars = [name for name in sorted(like) if np.ndim(like[name]) == 1]
    left = [name for name in have if name not in scalars]
    return [column for name in sorted(like) for column in ([name] if name in scalars else left)]


def _as_entries(frame: Any, like: dict[str, Any]) -> dict[str, Any]:
    """The columns of a frame as the entries of a sample, which take them in the order of the sample's numbers."""
    entries, start = {}, 0
    for name in sorted(like):
        width = int(np.prod(np.shape(like[name])[1:], dtype=int))
        columns = frame.iloc[:, start : start + width]
        entries[name] = columns.iloc[:, 0] if np.ndim(like[name]) == 1 else columns
        start += width
    return entries
