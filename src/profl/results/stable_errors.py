"""``run.stable_errors``: how well the mean of a run's models knows the stable point, from the run alone.

The models of a run with a constant learning rate go on moving around the point where they end. The mean over the later
ones is normal around it (Cutler, Diaz and Drusvyatskiy 2022), with a variance that the means of batches of consecutive
records show (Zhu, Chen and Wu 2023): nothing has to be known of the data's reaction or of the gradient's noise.

    error^2 = var(means of m batches) / m             interval: mean +- t_{m-1} error

Batches must be longer than the run remembers. Where they are not, one batch's mean tells of the next one's, and the
errors would be too small: that is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from profl import checks
from profl.results.forecast import check_level
from profl.results.record import Run
from profl.typing import Theta

LEAST_LENGTH = 5
"""Records of a batch, at least: of fewer its mean is no mean."""

SURE = 2.0
"""Standard errors of a correlation between batches from which on it is no accident."""

HARMLESS = 0.1
"""A correlation of batches that is no larger makes an error too small by a tenth at most."""


@dataclass(frozen=True, eq=False)
class StableErrors:
    """The mean of the later models of every seed, and its error; models with an axis of seeds in front.

    Attributes:
      theta: the mean over the records after the burn-in.
      error: its standard error.
      lower, upper: the ends of the interval that holds the stable point with probability ``level``.
      correlation: of one batch's mean with the next one's, over all seeds and numbers; about zero where batches are
        long enough.
      level, batches, length: the probability, the number of batches, and the records of each.
    """

    theta: Theta
    error: Theta
    lower: Theta
    upper: Theta
    correlation: float
    level: float
    batches: int
    length: int


def stable_errors(run: Run, *, level: float = 0.9, burn_in: float = 0.5, batches: int = 10) -> StableErrors:
    """The errors of a run's mean model; see ``Run.stable_errors``."""
    from scipy import special

    check_level(level)
    if not 0 <= checks.real("burn_in", burn_in) < 1:
        raise checks.InputError(f"burn_in must be a share of the run, at least 0 and below 1, got {burn_in!r}")
    checks.positive_int("batches", batches, least=4)
    kept = int((1 - burn_in) * (run.rounds.size - 1))
    length = kept // batches
    if length < LEAST_LENGTH:
        raise checks.InputError(
            f"the run has {kept} records after the burn-in: {batches} batches of at least {LEAST_LENGTH} are needed; "
            "run more rounds, record every round, or take fewer batches"
        )
    if any(end is not None for end in run.settled):
        raise checks.InputError("the run was stopped early, and its last model is repeated: run it without stop=")
    if run.diverged.any():
        raise checks.InputError("a seed has diverged: try a smaller learning rate")
    leaves, structure = jax.tree.flatten(run.theta)
    flat = np.concatenate([np.reshape(leaf, (*np.shape(leaf)[:2], -1)) for leaf in leaves], axis=2).astype(float)
    seeds, _, d = flat.shape
    means = flat[:, -batches * length :].reshape(seeds, batches, length, d).mean(2)
    centre, spread = means.mean(1), means.std(1, ddof=1)
    correlation = _correlation(means - centre[:, None])
    if correlation > HARMLESS + SURE / np.sqrt(seeds * d * batches):
        raise checks.InputError(
            f"batches of {length} records are correlated ({correlation:.2f}), and errors from them would be too small: "
            "run more rounds, or take fewer batches"
        )
    error = spread / np.sqrt(batches)
    reach = error * special.stdtrit(batches - 1, (1 + level) / 2)

    def model(rows: np.ndarray) -> Theta:
        ends = np.cumsum([np.prod(np.shape(leaf)[2:], dtype=int) for leaf in leaves])[:-1]
        parts = zip(np.split(rows, ends, axis=1), leaves, strict=True)
        return jax.tree.unflatten(structure, [part.reshape(seeds, *np.shape(leaf)[2:]) for part, leaf in parts])

    ends = model(centre - reach), model(centre + reach)
    return StableErrors(model(centre), model(error), *ends, correlation, float(level), batches, length)


def _correlation(deviations: np.ndarray) -> float:
    """The correlation of consecutive rows (seeds, batches, d) around their means, zero where they are independent."""
    squares, batches = np.sum(deviations**2), deviations.shape[1]
    if squares == 0:
        return 0.0
    return float(np.sum(deviations[:, 1:] * deviations[:, :-1]) / squares + 1 / batches)  # of m independent: -1 / m
