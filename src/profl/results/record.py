"""The record of a run: what was reached, what it cost, and how far it is from the optimum and the stable point.

Arrays are seeds x records; record 0 is the start. Counts are cumulative totals over all clients.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from profl import checks
from profl.methods.intervals import Posterior
from profl.parts.privacy import PrivacyAccount
from profl.parts.sharing import Jacobians
from profl.typing import Theta

if TYPE_CHECKING:
    import pandas

    from profl.results.forecast import Intervals
    from profl.results.stable_errors import StableErrors
    from profl.results.warnings import Memory, Trend


class Live(NamedTuple):
    """What stands in for the exact figures where clients are no simulation (seeds x records; the start has none)."""

    risk: np.ndarray  # the mean loss that the clients of the last round reported
    jacobian_error: np.ndarray  # estimated mean squared error of an entry of their Jacobians
    absent: np.ndarray  # how often a client that was asked sent nothing, since the last record
    low: np.ndarray  # the lowest loss of a client
    high: np.ndarray  # the highest


class Distrusted(NamedTuple):
    """A client whose reports count less than half of its weight, or not at all, at the end of a run."""

    seed: int
    client: int
    since: int  # the round
    why: str


class StatedLimit(NamedTuple):
    """A limit on what comes in."""

    title: str
    bound: float
    sign: float  # 1 where the outcome stays below the bound, -1 where it stays above

    @property
    def words(self) -> str:
        """The limit in words."""
        return f"{self.title} {'at most' if self.sign > 0 else 'at least'} {self.bound:g}"


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
      dropped: mean over the run of the share that the filter dropped at each client (seeds x clients); NaN where a
        client never told it, None without a filter. Clients whose data are pooled have that of the pool.
      first_refused: per seed, (round, client) of the first report that was refused (NaN, Inf, absurdly far), or None.
      final: what the method keeps of every client at the end (seeds x clients x ...); None for nothing. With privacy
        ``train`` leaves it out, and over Flower it is made from noised reports.
      info: the numbers that the method states, by name: those of its steps as means over participants, steps and rounds
        since the last record, its figures as they are at the record; NaN at the start.
      jacobian_error, jacobian_off: root mean square error of an entry of the clients' Jacobians, as they state it and
        as it is at the global model; None where nobody estimates it, NaN at the start.
      seconds: wall time of the whole run, compilation included.
      expected_excess, expected_error: what the method expects of ``excess``, and the standard error of that; None where
        it states none, NaN at the start.
      settled, stop_reason: per seed, the round after which it was done (``profl.StopWhenSettled``), and why; None where
        it went on to the last round. The records after it repeat the last model, and nothing more is counted.
      live: estimates that stand in for the exact figures, where the clients are no simulation; else None.
      notes: what is odd about what was asked for, in sentences.
      privacy: with ``privacy=``, the reports that left each client and their epsilon; else None.
      incidents: what clients did wrong, and where the filter dropped much of what they sent, as (round, client, what),
        where they are no simulation; and what callbacks and ``report`` raised, as client -1.
      distrusted: the clients that the aggregation rule distrusts at the end, each with its seed, since which round and
        why; of rules that remember clients (``profl.server.rules``).
      limits: the limits on what comes in (``profl.OutcomeLimit``).
      outcomes: what comes in at theta (seeds x records x limits): exact in simulations; where clients are none, as the
        method estimated it one round before. None without such limits.
      posterior: what the method knows of the optimum at the end (per seed); None where it states nothing. ``forecast``
        makes intervals of it.
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
    final: Any = None
    jacobian_error: np.ndarray | None = None
    jacobian_off: np.ndarray | None = None
    live: Live | None = None
    incidents: tuple[tuple[int, int, str], ...] = ()
    info: dict[str, np.ndarray] = field(default_factory=dict)
    expected_excess: np.ndarray | None = None
    expected_error: np.ndarray | None = None
    settled: tuple[int | None, ...] = ()
    stop_reason: tuple[str | None, ...] = ()
    dropped: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    privacy: PrivacyAccount | None = None
    distrusted: tuple[Distrusted, ...] = ()
    limits: tuple[StatedLimit, ...] = ()
    outcomes: np.ndarray | None = None
    posterior: Posterior | None = None

    @property
    def jacobians(self) -> Jacobians | None:
        """Where Jacobians are shared, what each client had at the end; else None."""
        return self.final.get("jacobians") if isinstance(self.final, dict) else None

    @property
    def personal(self) -> Any:
        """The parts of the model that stayed at the clients, at the end (seeds x clients x ...); None where none did.

        NaN for a client that never took part, and for all over Flower, where no client tells its own.
        """
        return self.final.get("personal") if isinstance(self.final, dict) else None

    def own_models(self, seed: int = 0) -> Theta:
        """The model of every client at the end of the run number ``seed``, one row each: ``problem.own_risks``."""
        checks.positive_int("seed", seed, least=0, most=len(self.seeds) - 1)
        copies = self.settings["clients"]
        shared: Any = jax.tree.map(lambda leaf: np.repeat(leaf[seed, -1:], copies, axis=0), self.theta)
        own: Any = jax.tree.map(lambda leaf: leaf[seed], self.personal)
        if own is None:
            return shared
        return own if self.settings["personal"] is True else {**shared, **own}

    def forecast(self, seed: int = 0, *, level: float = 0.9) -> Intervals:
        """Intervals for the optimum, its gain over the first model, and what is left to gain; of run number ``seed``.

        Of ``profl.prm``, at the end of the run; each is to hold the truth with probability ``level``.
        """
        from profl.results.forecast import intervals_of

        checks.positive_int("seed", seed, least=0, most=len(self.seeds) - 1)
        if self.posterior is None:
            raise checks.InputError(
                f"{self.algorithm} states nothing of the optimum; profl.prm does, without personal parts and "
                "outcome limits; for repeated retraining try run.stable_errors()"
            )
        like = jax.tree.map(lambda leaf: leaf[seed, -1], self.theta)
        return intervals_of(self.posterior.of_seed(seed), like, level)

    def stable_errors(self, *, level: float = 0.9, burn_in: float = 0.5, batches: int = 10) -> StableErrors:
        """Standard errors of the mean of the later models around the stable point, from the trajectory alone.

        For repeated retraining (``pfl``, ``rgd``, ``rrm``) with a constant learning rate. The records after the first
        ``burn_in`` of them are cut into so many ``batches``; fewer ones are longer, and give wider intervals.
        """
        from profl.results.stable_errors import stable_errors

        return stable_errors(self, level=level, burn_in=burn_in, batches=batches)

    @property
    def memory(self) -> Memory | None:
        """How slowly people react, as the method estimates it; None where it does not."""
        from profl.results.warnings import memory

        return memory(self)

    @property
    def trend(self) -> Trend | None:
        """How the data move by themselves, as the method estimates it; None where it does not."""
        from profl.results.warnings import trend

        return trend(self)

    @property
    def exact(self) -> bool:
        """Whether the exact risk is known."""
        return bool(np.isfinite(self.optimum_risk))

    @property
    def estimated_risk(self) -> np.ndarray | None:
        """The clients' own mean loss at the records, on the data that came in (seeds x records); NaN at the start."""
        return self.info.get("loss") if self.live is None else self.live.risk

    def answers(self) -> str:
        """The risk at the optimum and at the stable point, in words; nothing where they are not known."""
        from profl.results.cells import number

        if not self.exact:
            return ""
        return f"risk at PO {number(self.optimum_risk)}, at PS {number(self.stable_risk)}"

    @property
    def diverged(self) -> np.ndarray:
        """Per seed, whether the global model stopped being finite. Such seeds are left out of every average."""
        ends = [np.asarray(leaf)[:, -1].reshape(len(self.seeds), -1) for leaf in jax.tree.leaves(self.theta)]
        last = [np.isfinite(end).all(1) for end in ends]
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
        values = getattr(self, checks.one_of("figure", name, SERIES))
        checks.fraction("share", share)
        if values is None:
            raise checks.InputError(f"this run must know {name!r} for its tail, and does not; try 'risk' or 'excess'")
        late = self.rounds > (1 - share) * self.rounds[-1]
        return values[:, late].mean(axis=1)

    def tail_excess(self) -> np.ndarray:
        """Mean excess risk over the last 10 % of the rounds, per seed."""
        return self.tail("excess")

    def summary(self) -> str:
        """The main figures as an aligned table: mean and deviation over seeds."""
        from profl.results.tables import summarise

        return summarise(self)

    def to_dict(self) -> dict[str, Any]:
        """The main figures as plain numbers, ready for JSON."""
        from profl.results.tables import figures

        return figures(self)

    def to_pandas(self, rows: str = "records") -> pandas.DataFrame:
        """One row per seed and record; or, with ``rows="clients"``, per seed and client: what the filter dropped,
        and what privacy was spent."""
        import pandas

        if checks.one_of("rows", rows, ["records", "clients"]) == "clients":
            return pandas.DataFrame({"case": self.case, "algorithm": self.algorithm, **self._of_clients()})
        seeds, records = self.excess.shape
        columns: dict[str, Any] = {
            "seed": np.repeat(self.seeds, records),
            "round": np.tile(self.rounds, seeds),
        }
        for name in SERIES:
            values = getattr(self, name)
            if values is not None and not np.all(np.isnan(values)):
                columns[name] = values.ravel()
        if self.estimated_risk is not None:
            columns["estimated_risk"] = self.estimated_risk.ravel()
        if self.live is not None:
            named = {"lowest_risk": self.live.low, "highest_risk": self.live.high, "absent": self.live.absent}
            columns |= {name: values.ravel() for name, values in named.items()}
        return pandas.DataFrame({"case": self.case, "algorithm": self.algorithm, **columns})

    def _of_clients(self) -> dict[str, np.ndarray]:
        seeds, clients = len(self.seeds), self.settings["clients"]
        dropped = np.full(seeds * clients, np.nan) if self.dropped is None else self.dropped.ravel()
        spent = {} if self.privacy is None else {"reports": self.privacy.reports, "epsilon": self.privacy.epsilon}
        return {
            "seed": np.repeat(self.seeds, clients),
            "client": np.tile(np.arange(clients), seeds),
            "dropped": dropped,
            **{name: np.tile(values, seeds) for name, values in spent.items()},
        }

    def plot(self, path: str | os.PathLike[str] | None = None, jacobian: bool = False) -> Any:
        """Risk against deployments, with lines at PO and PS and a band over seeds; PNG, SVG or PDF by suffix.

        Where the exact risk is not known, the clients' own, with a band from the lowest client to the highest.
        Returns the figure, which a notebook shows; without a path nothing is written. ``jacobian`` adds the error of
        the clients' Jacobians, as they state it and as it is.
        """
        from profl.results.plots import plot_runs

        return plot_runs({self.case: [self]}, path, jacobian)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, atomically; ``profl.load`` reads it back."""
        from profl.results.files import save

        save(self, path)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from profl.results.tables import as_html

        return as_html(self)


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
    "expected_excess",
    "expected_error",
)
"""The figures that have one number per seed and record."""


def mean_over_seeds(run: Run, values: np.ndarray) -> np.ndarray:
    """Mean over the seeds that did not diverge."""
    good = ~run.diverged
    return values[good].mean(axis=0) if good.any() else np.full(values.shape[1:], np.nan)
