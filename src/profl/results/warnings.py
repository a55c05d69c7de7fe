"""What a run should say against itself: sentences for its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profl.results.cells import number

if TYPE_CHECKING:
    from profl.results.record import Run

RETRAINING = ("pfl", "rgd", "rrm", "lazy")  # go to the stable point, where the risk may be any
ABOVE = 1.02  # of the gap between PO and PS: an end within noise of the stable point is at it
RISES = 0.05  # of the gap, or of the risk's size: less may be noise


def warnings(run: Run) -> list[str]:
    """What is odd about the run, and what to do."""
    return [*run.notes, *_above_stable(run), *_rises(run), *_unknown_jacobian(run)]


def _above_stable(run: Run) -> list[str]:
    gap = run.stable_risk - run.optimum_risk
    ends = run.tail_excess()[~run.diverged]
    if not np.isfinite(gap) or gap <= 0 or not ends.size or not ends.mean() > ABOVE * gap:
        return []
    told = f"the run ended {number(float(ends.mean()))} above the optimum, the stable point lies {number(gap)} above it"
    if run.algorithm in RETRAINING:
        return [f"WARNING: {told}: retraining has not settled; give it more rounds or a smaller learning_rate."]
    return [f"WARNING: {told}: retraining would do better. Try a smaller learning_rate, more samples or more rounds."]


def _rises(run: Run) -> list[str]:
    """Methods that follow the performative gradient go down, if their steps are not too long."""
    risk = run.risk if run.exact else run.estimated_risk
    if run.algorithm in RETRAINING or "learning_rate" not in run.settings or risk is None or risk.shape[1] < 8:
        return []
    later = risk[~run.diverged, 1:]
    if not later.size or not np.isfinite(later).all():
        return []
    part = max(later.shape[1] // 4, 1)
    early, late = later[:, :part].mean(1), later[:, -part:].mean(1)
    scale = run.stable_risk - run.optimum_risk if run.exact else np.abs(early).mean()
    rise, spread = float((late - early).mean()), float((late - early).std()) if len(late) > 1 else 0.0
    if not rise > max(RISES * scale, 2 * spread / np.sqrt(len(late))):
        return []
    first, last = number(float(early.mean())), number(float(late.mean()))
    return [f"WARNING: the risk rose from {first} to {last} on the way: try a smaller learning_rate, or 'auto'."]


def _unknown_jacobian(run: Run) -> list[str]:
    size, error = run.info.get("jacobian_size"), run.jacobian_error
    if size is None or error is None:
        return []
    size, error = np.sqrt(size[~run.diverged, -1]), error[~run.diverged, -1]
    if not size.size or not np.isfinite(size.mean()) or not error.mean() > size.mean():
        return []
    known, off = number(float(size.mean())), number(float(error.mean()))
    return [
        f"WARNING: the Jacobian is hardly known: its entries are {known} in size, their stated error is {off}. "
        "Take more samples or deployments, or a larger profl.parts.Exploration(scale=...)."
    ]
