"""What a run found of the world besides the reaction: slow people, data that drift, and a spread that moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from profl.results.record import Run

NEEDED, OF_ONE = 4.0, 8.0
"""Nats of evidence per client, on average, that a finding needs: 4 + 8 / sqrt(clients). The best of a grid always
foretells somewhat better than the plain world, and the mean over clients varies with one over the root of their number.
Without memory it was at most 4 in 350 runs of nine problems (ten clients, 100 deployments), with a rate of 0.05 to 0.5
at least 99."""

ERRORS, SOONEST = 6.5, 100
"""Standard errors that a trend needs, and after how many deployments at the soonest: before, the way to the optimum may
look like one. Without drift it was at most 5.1 in 250 runs after 75 and more, with a trend of 0.003 deviations at least
8.4 after 100."""


SPREAD, OF_ONE_SPREAD = 1.0, 6.0
"""The same for a spread that moves, 1 + 6 / sqrt(clients): a Bayes factor of 1000 at one client."""


class Memory(NamedTuple):
    """How slowly people react, per seed at the end of a run."""

    rate: np.ndarray  # of the way that they go with a deployment; 1 is at once
    settling: np.ndarray  # deployments until they have gone most of it, 1 / rate
    error: np.ndarray  # standard error of that, in deployments
    evidence: np.ndarray  # mean over clients, in nats
    found: np.ndarray  # whether that is enough


class Trend(NamedTuple):
    """How the level of f moves by itself, per seed at the end of a run."""

    rate: np.ndarray  # with every deployment, a mean over the entries of f and the clients, over the last fifty or so
    error: np.ndarray  # standard error of that
    evidence: np.ndarray  # of any drift, that of a walk or a season too, in nats
    found: np.ndarray  # whether there is one


class Spread(NamedTuple):
    """How the spread of the data moves with the model, where the family takes it for fixed; per seed, at the end."""

    change: np.ndarray  # of log sd with a natural unit of the signal, where it is most; a mean over clients
    error: np.ndarray  # standard error of one client's
    evidence: np.ndarray  # mean over clients, in nats
    found: np.ndarray  # whether that is enough


def memory(run: Run) -> Memory | None:
    """As ``run.memory``."""
    if "log2_settling_time" not in run.info:
        return None
    names = ("log2_settling_time", "log2_settling_time_error", "memory")
    log2_settling_time, width, evidence = (run.info[name][:, -1] for name in names)
    settling = 2.0**log2_settling_time
    error = settling * math.log(2) * width / math.sqrt(run.settings["clients"])
    return Memory(1 / settling, settling, error, evidence, evidence > _needed(run))


def trend(run: Run) -> Trend | None:
    """As ``run.trend``."""
    if "trend_errors" not in run.info:
        return None
    rate, errors, evidence = (run.info[name][:, -1] for name in ("trend", "trend_errors", "drift"))
    errors = errors * math.sqrt(run.settings["clients"])
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(rate / errors)
    made = run.rounds[-1] * run.settings["local_steps"]
    return Trend(rate, error, evidence, (evidence > _needed(run)) | ((np.abs(errors) > ERRORS) & (made >= SOONEST)))


def spread(run: Run) -> Spread | None:
    """As ``run.spread``."""
    if "spread" not in run.info:
        return None
    evidence, change, error = (run.info[name][:, -1] for name in ("spread", "spread_change", "spread_error"))
    return Spread(change, error, evidence, evidence > SPREAD + OF_ONE_SPREAD / math.sqrt(run.settings["clients"]))


def warnings(run: Run) -> list[str]:
    """Sentences for the summary: what was found, and what to do."""
    slow, moving, wide, lines = memory(run), trend(run), spread(run), []
    if slow is not None and slow.found.any():
        rate, settling, error = (values[slow.found].mean() for values in (slow.rate, slow.settling, slow.error))
        lines += [
            f"people react slowly{_seeds(slow.found)}: {rate:.2g} of the way with a deployment, most of it after "
            f"{settling:.2g} ± {error:.1g}.",
            "The Jacobian is that of the long run. Judge a model only after that many deployments.",
        ]
    if moving is not None and moving.found.any():
        rate, error = moving.rate[moving.found].mean(), moving.error[moving.found].mean()
        lines += [
            f"the data move by themselves{_seeds(moving.found)}, lately by {rate:.2g} ± {error:.1g} a deployment.",
            "The model follows them and is never done: go on deploying.",
        ]
    if wide is not None and wide.found.any():
        change, error = wide.change[wide.found].mean(), wide.error[wide.found].mean()
        percent = f"{100 * math.expm1(change):.2g} ± {100 * math.exp(change) * error:.1g} %"
        lines += [
            f"the spread of the data moves with the model{_seeds(wide.found)}: "
            f"a standard deviation by {percent} with a natural unit.",
            "The family takes it for fixed, so the optimum is missed: use profl.LocationScale(), or Problem(push=...).",
        ]
    return lines


def _seeds(found: np.ndarray) -> str:
    return "" if found.all() else f" ({found.sum()} of {found.size} seeds)"


def _needed(run: Run) -> float:
    return NEEDED + OF_ONE / math.sqrt(run.settings["clients"])
