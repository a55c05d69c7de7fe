"""``run.forecast``: intervals for the optimum, for what it gains over the first model, and for what is left to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from profl import checks
from profl.methods.intervals import Posterior, draws_of, normal_draws
from profl.results.cells import number
from profl.typing import Theta

SHOWN = 20
"""Numbers of a model in a forecast that is shown as text."""


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate and its interval; models or numbers."""

    lower: Any
    estimate: Any
    upper: Any

    def plain(self) -> dict[str, Any]:
        """As lists and numbers, for JSON."""
        return {
            name: jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), getattr(self, name))
            for name in ("lower", "estimate", "upper")
        }


@dataclass(frozen=True, eq=False)
class Intervals:
    """What is known of the optimum, each with an interval that holds the truth with probability ``level``.

    Attributes:
      level: the probability, of each interval by itself.
      optimum: theta at the optimum; models, whose every number has an interval. What the model space holds ends at its
        edge.
      gain: L(first model) - L(PO): what the optimum gains over the model that the run began with.
      excess: L(theta) - L(PO): what is left to gain. Never below zero.
      names: what the model's numbers are called, if that is known.
    """

    level: float
    optimum: Interval
    gain: Interval
    excess: Interval
    names: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As lists and numbers, for JSON."""
        parts = {name: getattr(self, name).plain() for name in ("optimum", "gain", "excess")}
        return {"level": self.level, **parts}

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Name, lower end, estimate and upper end: of every number of the model, of the gain, of what is left."""
        ends = [_flat(getattr(self.optimum, name)).tolist() for name in ("lower", "estimate", "upper")]
        names = self.names or tuple(f"theta[{i}]" for i in range(len(ends[0])))
        figures = (("gain over the first model", self.gain), ("left to gain", self.excess))
        return [*zip(names, *ends, strict=True), *((name, one.lower, one.estimate, one.upper) for name, one in figures)]

    def __str__(self) -> str:
        head = (f"{100 * self.level:g} % intervals", "lower", "estimate", "upper")
        rows = [(name, *map(number, ends)) for name, *ends in self.rows()]
        hidden = max(len(rows) - 2 - SHOWN, 0)
        shown = [head, *rows[: len(rows) - 2 - hidden], *rows[-2:]]
        widths = [max(len(row[column]) for row in shown) for column in range(4)]
        lines = ["  ".join(_cells(row, widths)) for row in shown]
        return "\n".join([*lines[:-2], *([f"  and {hidden} more numbers"] if hidden else []), *lines[-2:]])


def intervals_of(known: Posterior, like: Theta, level: float, names: Sequence[str] = ()) -> Intervals:
    """The intervals of a posterior without an axis of seeds, with models shaped like ``like``."""
    check_level(level)
    if not all(np.isfinite(part).all() for part in known[:9]):  # bounds may be infinite
        raise checks.InputError("the run has diverged: there is no optimum to state an interval for")
    draws, tails = draws_of(known, normal_draws(np.size(known.incumbent) + 1)), ((1 - level) / 2, (1 + level) / 2)
    centre = draws_of(known, np.zeros((1, np.size(known.incumbent) + 1))).optimum[0]

    def figure(values: np.ndarray) -> Interval:
        low, high = np.quantile(values, tails)
        return Interval(float(low), float(np.mean(values)), float(high))

    low, high = np.quantile(draws.optimum, tails, axis=0)
    models = (_model(row, like) for row in (np.minimum(low, centre), centre, np.maximum(high, centre)))
    return Intervals(float(level), Interval(*models), figure(draws.gain), figure(draws.excess), tuple(names))


def check_level(level: Any) -> None:
    """Refuse what is no probability of an interval."""
    if not 0 < checks.real("level", level) < 1:
        raise checks.InputError(f"level must lie between 0 and 1, such as 0.9, got {level!r}")


def _flat(theta: Theta) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])


def _model(vector: np.ndarray, like: Theta) -> Theta:
    """A model with the leaves of ``like`` from a vector, in double precision."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(vector, ends), leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
