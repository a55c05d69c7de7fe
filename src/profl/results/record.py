"""The record of a run: what was reached, what it cost, and how far it is from the optimum and the stable point.

Arrays are seeds x records; record 0 is the start. Counts are cumulative totals over all clients.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from profl.algorithms.base import Algorithm
from profl.problem.problem import Problem
from profl.typing import Theta

if TYPE_CHECKING:
    import pandas

REPORT_EXTRA_BYTES = 8  # beside theta a report carries its sample count and its loss


class Jacobians(NamedTuple):
    """Where Jacobians are shared: what each client had at the end (seeds x clients x p x s)."""

    own: np.ndarray  # its own estimate
    shared: np.ndarray  # what the server sent it
    groups: np.ndarray  # seeds x clients: the cluster it was in, -1 for none


class Live(NamedTuple):
    """What stands in for the exact figures where clients are no simulation (seeds x records; the start has none)."""

    risk: np.ndarray  # the mean loss that the clients of the last round reported
    jacobian_error: np.ndarray  # estimated mean squared error of an entry of their Jacobians
    absent: np.ndarray  # how often a client that was asked sent nothing, since the last record


class Trace(NamedTuple):
    """What an engine hands over: models per record, and what was counted between two records (seeds x records)."""

    theta: Theta
    regret: np.ndarray
    deployments: np.ndarray
    samples: np.ndarray
    refused: np.ndarray
    bad_round: np.ndarray
    bad_client: np.ndarray
    kept: np.ndarray
    final: Jacobians | None = None
    jacobian_error: np.ndarray | None = None  # at the record, see ``Run``
    jacobian_off: np.ndarray | None = None


class Layout(NamedTuple):
    """How a run was laid out."""

    seeds: tuple[int, ...]
    rounds: int
    local_steps: int
    record_every: int
    members: int  # clients behind each row of the engine; more than one when pooled
    clients: int
    sample_bytes: int
    jacobian_numbers: int = 0  # of a shared Jacobian


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. Where the exact risk is not known, what depends on it is NaN.

    Attributes:
      rounds: the round of each record.
      theta: the global model (seeds x records x ...).
      risk, excess: L(theta) and L(theta) - L(PO).
      deployed_regret: mean so far of the risk of what was deployed, minus L(PO).
      to_optimum, to_stable: Euclidean distances of theta to PO and PS.
      accuracy: on the data theta itself brings in; None unless the problem is a classification.
      deployments, samples, bytes_up, bytes_down, refused: totals so far over all clients.
      kept: share of the samples' weight that passed the filter since the last record.
      first_refused: per seed, (round, client) of the first report that was refused (NaN, Inf, absurdly far), or None.
      jacobians: where they are shared, what each client had at the end; else None.
      jacobian_error, jacobian_off: root mean square error of an entry of the clients' Jacobians, as they state it and
        as it is at the global model; None unless the fast engine measured it, NaN at the start.
      seconds: wall time of the whole run, compilation included.
      live: estimates that stand in for the exact figures, where the clients are no simulation; else None.
      incidents: what clients did wrong, as (round, client, what), where they are no simulation.
    """

    case: str
    algorithm: str
    settings: dict[str, Any]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    theta: Theta
    risk: np.ndarray
    excess: np.ndarray
    deployed_regret: np.ndarray
    to_optimum: np.ndarray
    to_stable: np.ndarray
    accuracy: np.ndarray | None
    deployments: np.ndarray
    samples: np.ndarray
    bytes_up: np.ndarray
    bytes_down: np.ndarray
    refused: np.ndarray
    kept: np.ndarray
    first_refused: tuple[tuple[int, int] | None, ...]
    optimum: Theta | None
    stable: Theta | None
    optimum_risk: float
    stable_risk: float
    seconds: float
    jacobians: Jacobians | None = None
    jacobian_error: np.ndarray | None = None
    jacobian_off: np.ndarray | None = None
    live: Live | None = None
    incidents: tuple[tuple[int, int, str], ...] = ()

    @property
    def diverged(self) -> np.ndarray:
        """Per seed, whether the global model stopped being finite. Such seeds are left out of every average."""
        last = [
            np.isfinite(np.asarray(leaf)[:, -1]).reshape(len(self.seeds), -1).all(1) for leaf in _leaves(self.theta)
        ]
        return ~np.all(last, axis=0)

    def failures(self) -> list[str]:
        """One sentence per seed in which a report was refused."""
        lines = []
        for seed, gone, where in zip(self.seeds, self.diverged, self.first_refused, strict=True):
            if where is not None:
                what = "diverged and is left out of the averages" if gone else "refused reports and went on"
                lines.append(f"seed {seed} {what}: first one at round {where[0]}, client {where[1]}")
        return lines

    def tail(self, name: str = "excess", share: float = 0.1) -> np.ndarray:
        """Mean of a figure over the last ``share`` of the rounds, per seed."""
        values = getattr(self, name)
        late = self.rounds > (1 - share) * self.rounds[-1]
        return values[:, late].mean(axis=1)

    def tail_excess(self) -> np.ndarray:
        """Mean excess risk over the last 10 % of the rounds, per seed."""
        return self.tail("excess")

    def summary(self) -> str:
        """The main figures as an aligned table: mean over seeds, and spread."""
        from profl.results.tables import summarise

        return summarise(self)

    def to_dict(self) -> dict[str, Any]:
        """The main figures as plain numbers, ready for JSON."""
        from profl.results.tables import figures

        return figures(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per seed and record."""
        import pandas

        seeds, records = self.excess.shape
        columns: dict[str, Any] = {
            "seed": np.repeat(self.seeds, records),
            "round": np.tile(self.rounds, seeds),
        }
        for name in SERIES:
            values = getattr(self, name)
            if values is not None:
                columns[name] = values.ravel()
        return pandas.DataFrame({"case": self.case, "algorithm": self.algorithm, **columns})

    def plot(self, path: str | os.PathLike[str], jacobian: bool = False) -> None:
        """Risk against deployments, with lines at PO and PS and the spread over seeds; PNG, SVG or PDF by suffix.

        ``jacobian`` adds the error of the clients' Jacobians, as they state it and as it is.
        """
        from profl.results.plots import plot_runs

        plot_runs({self.case: [self]}, path, jacobian)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, atomically; ``profl.load`` reads it back."""
        from profl.results.files import save

        save(self, path)

    def __repr__(self) -> str:
        return self.summary()


SERIES = (
    "risk",
    "excess",
    "deployed_regret",
    "to_optimum",
    "to_stable",
    "accuracy",
    "deployments",
    "samples",
    "bytes_up",
    "bytes_down",
    "refused",
    "kept",
    "jacobian_error",
    "jacobian_off",
)
"""The figures that have one number per seed and record."""


def make_run(problem: Problem, algorithm: Algorithm, trace: Trace, layout: Layout, seconds: float) -> Run:
    """Measure what an engine handed over."""
    records = np.minimum(np.arange(trace.deployments.shape[1] + 1) * layout.record_every, layout.rounds)
    shape = (len(layout.seeds), records.size)
    exact = problem.exact
    risk = _measure(problem.risks, trace.theta, shape) if exact else np.full(shape, np.nan)
    low, high = (problem.risk(problem.optimum), problem.risk(problem.stable)) if exact else (math.nan, math.nan)
    visits = _total(trace.deployments) // layout.local_steps
    model_bytes = 4 * sum(math.prod(leaf.shape[2:]) for leaf in _leaves(trace.theta))
    samples = _total(trace.samples)
    # A centralised learner gets the raw data; a client of a federation sends its model and a few numbers.
    extra = 4 * layout.jacobian_numbers
    up = samples * layout.sample_bytes if algorithm.pooled else visits * (model_bytes + REPORT_EXTRA_BYTES + extra)
    with np.errstate(invalid="ignore", divide="ignore"):
        regret = _total(trace.regret) / (records * layout.local_steps)
    classifies = exact and problem.reaction.accuracy is not None
    return Run(
        case=problem.name,
        algorithm=algorithm.name,
        settings=_settings(algorithm, layout),
        seeds=layout.seeds,
        rounds=records,
        theta=trace.theta,
        risk=risk,
        excess=risk - low,
        deployed_regret=regret if exact else np.full(shape, np.nan),
        to_optimum=_distance(trace.theta, problem.optimum) if exact else np.full(shape, np.nan),
        to_stable=_distance(trace.theta, problem.stable) if exact else np.full(shape, np.nan),
        accuracy=_measure(problem.accuracies, trace.theta, shape) if classifies else None,
        deployments=_total(trace.deployments) * layout.members,
        samples=samples,
        bytes_up=up,
        bytes_down=visits * layout.members * (model_bytes + extra),
        refused=_total(trace.refused),
        kept=_kept(trace.kept, np.diff(records)),
        first_refused=_first_refused(trace),
        optimum=problem.optimum if exact else None,
        stable=problem.stable if exact else None,
        optimum_risk=low,
        stable_risk=high,
        seconds=seconds,
        jacobians=trace.final,
        jacobian_error=_root(trace.jacobian_error),
        jacobian_off=_root(trace.jacobian_off),
    )


def _root(squares: np.ndarray | None) -> np.ndarray | None:
    """Root of what was measured at the records; before the first there is nothing."""
    if squares is None or np.all(np.isnan(squares)):
        return None
    return np.concatenate([np.full_like(squares[:, :1], np.nan), np.sqrt(squares)], axis=1)


def _kept(total: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Mean share kept per record; nothing has been filtered before the first."""
    return np.concatenate([np.ones_like(total[:, :1]), total / rounds], axis=1)


def _settings(algorithm: Algorithm, layout: Layout) -> dict[str, Any]:
    return {
        "rounds": layout.rounds,
        "local_steps": layout.local_steps,
        "clients": layout.clients,
        "learning_rate": algorithm.learning_rate,
        "window": algorithm.window,
        "jacobian": algorithm.jacobian if algorithm.second_term != "none" else "none",
        "second_term": algorithm.second_term,
        "explore": None if algorithm.explore is None else asdict(algorithm.explore),
        "filter": str(algorithm.filter),
        "aggregate": str(algorithm.aggregate),
        "share": "none" if algorithm.share is None else str(algorithm.share),
        "samples": "fixed" if algorithm.samples is None else str(algorithm.samples),
    }


def _total(increments: np.ndarray) -> np.ndarray:
    """Running totals from zero; 64 bit, because a large run passes 2^31 samples."""
    wide = increments.astype(np.float64 if increments.dtype.kind == "f" else np.int64)
    return np.concatenate([np.zeros_like(wide[:, :1]), np.cumsum(wide, axis=1)], axis=1)


def _measure(function: Any, theta: Theta, shape: tuple[int, int]) -> np.ndarray:
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), theta)
    return function(flat).reshape(shape)


def _distance(theta: Theta, point: Theta) -> np.ndarray:
    squares = [
        ((np.asarray(a, np.float64) - b) ** 2).reshape(*a.shape[:2], -1).sum(-1)
        for a, b in zip(_leaves(theta), _leaves(point), strict=True)
    ]
    return np.sqrt(np.sum(squares, axis=0))


def _first_refused(trace: Trace) -> tuple[tuple[int, int] | None, ...]:
    found: list[tuple[int, int] | None] = []
    for rounds, clients in zip(trace.bad_round, trace.bad_client, strict=True):
        hits = np.flatnonzero(rounds >= 0)
        found.append((int(rounds[hits[0]]) + 1, int(clients[hits[0]])) if hits.size else None)
    return tuple(found)


def _leaves(tree: Theta) -> Iterable[Any]:
    return jax.tree.leaves(tree)


def mean_over_seeds(run: Run, values: np.ndarray) -> np.ndarray:
    """Mean over the seeds that did not diverge."""
    good = ~run.diverged
    return values[good].mean(axis=0) if good.any() else np.full(values.shape[1:], np.nan)
