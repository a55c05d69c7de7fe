"""What a run found besides its result: slow people, data that drift, and warnings for its summary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from profl.results.cells import number

if TYPE_CHECKING:
    from profl.results.record import Run

EVIDENCE, EVIDENCE_OF_ONE = 4.0, 8.0
"""Nats of evidence per client, on average, that a finding needs: 4 + 8 / sqrt(clients). The best of a grid always
predicts somewhat better than no memory, and the mean over clients varies with one over the root of their number.
Without memory it was at most 4 in 350 runs of nine problems (ten clients, 100 deployments), with a rate of 0.05 to 0.5
at least 99."""

TREND_ERRORS, TREND_DEPLOYMENTS = 6.5, 100
"""Standard errors that a trend needs, and after how many deployments at the soonest: before, the way to the optimum may
look like one. Without drift it was at most 5.1 in 250 runs after 75 and more, with a trend of 0.003 deviations at least
8.4 after 100."""

MISS_ERRORS, MISS_ERRORS_OF_ONE = 1.5, 2.5
"""Standard errors per client by which the misses of one Kalman filter must resemble each other: 1.5 + 2.5 /
sqrt(clients). A curved reaction alone gives up to 1.1 on average (pricing, exponential demand). Without memory and
drift it was at most 1.8 in 80 runs of eight problems with ten clients (100 and 500 deployments; 2.3 is needed); with a
rate of 0.05 to 0.5 or groups in turn at least 2.3 after 100, with a trend of 0.001 deviations or a walk of 0.01 at
least 13 after 500."""

VARIANCE_ERRORS2, VARIANCE_ERRORS2_OF_ONE = 2.0, 11.0
"""Squared errors by which the variance of the data must change, a mean over clients: 2 + 11 / sqrt(clients). A squared
error is 1 on average and, of one client with one entry, above 13 once in three thousand times."""

MOST_NAMED = 4  # clients that one sentence names
RETRAINING = ("pfl", "rgd", "rrm")  # go to the stable point, where the risk may be any
ABOVE = 1.02  # of the gap between PO and PS: an end within noise of the stable point is at it
RISES = 0.05  # of the gap, or of the risk's size: less may be noise

DISCREPANCY_ERRORS = 2.0
"""Standard errors of a discrepancy, in the mean over clients, from which on the family is called wrong."""


class Memory(NamedTuple):
    """How slowly people react, per seed at the end of a run."""

    rate: np.ndarray  # share of the way to their long-run behaviour per deployment; 1 is at once
    settling: np.ndarray  # deployments until most of it is done, 1 / rate
    error: np.ndarray  # standard error of that, in deployments
    evidence: np.ndarray  # mean over clients, in nats
    significant: np.ndarray  # whether that is enough


class Trend(NamedTuple):
    """How the level of f moves by itself, per seed at the end of a run."""

    rate: np.ndarray  # with every deployment, a mean over the entries of f and the clients, over the last fifty or so
    error: np.ndarray  # standard error of that
    evidence: np.ndarray  # of any drift, that of a walk or a season too, in nats
    significant: np.ndarray  # whether there is one


def memory(run: Run) -> Memory | None:
    """How slowly people react; None where the method does not estimate it."""
    if "log2_settling_time" not in run.info:
        return None
    names = ("log2_settling_time", "log2_settling_time_error", "memory")
    log2, width, evidence = (run.info[name][:, -1] for name in names)
    settling = 2.0**log2
    error = settling * math.log(2) * width / math.sqrt(run.settings["clients"])
    return Memory(1 / settling, settling, error, evidence, evidence > _threshold(run))


def trend(run: Run) -> Trend | None:
    """How the data move by themselves; None where the method does not estimate it."""
    if "trend_errors" not in run.info:
        return None
    rate, errors, evidence = (run.info[name][:, -1] for name in ("trend", "trend_errors", "drift"))
    errors = errors * math.sqrt(run.settings["clients"])
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(rate / errors)
    deployments = run.rounds[-1] * run.settings["local_steps"]
    clear = (np.abs(errors) > TREND_ERRORS) & (deployments >= TREND_DEPLOYMENTS)
    return Trend(rate, error, evidence, (evidence > _threshold(run)) | clear)


def _threshold(run: Run) -> float:
    return EVIDENCE + EVIDENCE_OF_ONE / math.sqrt(run.settings["clients"])


def warnings(run: Run) -> list[str]:
    """Sentences for the summary: what is unusual about the run, and what to do."""
    return [
        *_slow(run),
        *_drifting(run),
        *_more_than_one_filter(run),
        *_variance_moves(run),
        *run.notes,
        *_distrusted(run),
        *_above_stable(run),
        *_rises(run),
        *_unknown_jacobian(run),
        *_wrong_family(run),
    ]


def _slow(run: Run) -> list[str]:
    slow = memory(run)
    if slow is None or not slow.significant.any():
        return []
    rate, settling, error = (values[slow.significant].mean() for values in (slow.rate, slow.settling, slow.error))
    return [
        f"people react slowly{_seeds(slow.significant)}: {rate:.2g} of the way with a deployment, most of it after "
        f"{settling:.2g} ± {error:.1g}.",
        "The Jacobian is that of the long run. Judge a model only after that many deployments.",
    ]


def _drifting(run: Run) -> list[str]:
    drift = trend(run)
    if drift is None or not drift.significant.any():
        return []
    rate, error = drift.rate[drift.significant].mean(), drift.error[drift.significant].mean()
    return [
        f"the data move by themselves{_seeds(drift.significant)}, lately by {rate:.2g} ± {error:.1g} a deployment.",
        "The model follows them and is never done: go on deploying.",
    ]


def _more_than_one_filter(run: Run) -> list[str]:
    """What one Kalman filter leaves out, where its misses show it."""
    least = MISS_ERRORS + MISS_ERRORS_OF_ONE / math.sqrt(run.settings["clients"])
    correlation = run.info.get("miss_correlation")
    if correlation is None or not (found := correlation[:, -1] > least).any():
        return []
    return [
        f"WARNING: what comes in lags behind what is deployed, or moves by itself{_seeds(found)}: people react slowly, "
        "or the data drift.",
        "One Kalman filter takes that for noise: use jacobian='tracking', which learns both, or profl.prm.",
    ]


def _variance_moves(run: Run) -> list[str]:
    change = run.info.get("variance_change")
    least = VARIANCE_ERRORS2 + VARIANCE_ERRORS2_OF_ONE / math.sqrt(run.settings["clients"])
    if change is None or not (found := change[:, -1] > least).any():
        return []
    return [
        f"WARNING: the variance of the data moves{_seeds(found)}, and the family only has their mean: use "
        "family=profl.LocationScale(), or profl.prm, which learns that too."
    ]


def _seeds(which: np.ndarray) -> str:
    return "" if which.all() else f" ({which.sum()} of {which.size} seeds)"


def _distrusted(run: Run) -> list[str]:
    """Which clients count less, by reason; at most MOST_NAMED of them."""
    by_client: dict[tuple[int, str], list[int]] = {}
    for _, client, since, why in run.distrusted:
        by_client.setdefault((client, why), []).append(since)
    if not by_client:
        return []
    seeds = len(run.seeds)
    named = [
        f"client {client} since round {min(rounds)} ({why}{f'; {len(rounds)} of {seeds} seeds' if seeds > 1 else ''})"
        for (client, why), rounds in sorted(by_client.items(), key=lambda item: -len(item[1]))
    ]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return [
        f"WARNING: these count less, because what they send differs: {', '.join(named[:MOST_NAMED])}{more}.",
        "If you know them as honest, let them count: aggregate='mean'.",
    ]


def _above_stable(run: Run) -> list[str]:
    gap = run.stable_risk - run.optimum_risk
    ends = run.tail_excess()[~run.diverged]
    if not np.isfinite(gap) or gap <= 0 or not ends.size or not ends.mean() > ABOVE * gap:
        return []
    where = (
        f"the run ended {number(float(ends.mean()))} above the optimum, the stable point lies {number(gap)} above it"
    )
    if run.algorithm in RETRAINING:
        return [f"WARNING: {where}: retraining has not settled; give it more rounds or a smaller learning_rate."]
    return [f"WARNING: {where}: retraining would do better. Try a smaller learning_rate, more samples or more rounds."]


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
    rise, deviation = float((late - early).mean()), float((late - early).std()) if len(late) > 1 else 0.0
    if not rise > max(RISES * scale, 2 * deviation / np.sqrt(len(late))):
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


def _wrong_family(run: Run) -> list[str]:
    """Where the losses of batches depend on the deployed model in a way that f does not explain."""
    errors = run.info.get("discrepancy")
    if errors is None:
        return []
    found = errors[:, -1] > DISCREPANCY_ERRORS
    if not found.any():
        return []
    return [
        f"WARNING: the family does not say all that reacts{_seeds(found)}: losses change with the deployed model in a "
        "way that its f does not explain. The run allows for that, roughly; a family that knows more does better: "
        "LocationScale where the spread moves, GroupShares for shares of groups, ClassMeans for means of classes."
    ]
