"""Callbacks of a run, ``callback(record) -> stop?``, called at every record.

An engine passes the part of its trace since the last record; it is measured like a whole run (``make_run``), and counts
are added to the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from profl import checks
from profl.interrupts import Interrupted
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.results.measure import Layout, Trace, make_run
from profl.results.record import SERIES, Run
from profl.typing import Theta

CALLBACK_STOP = "a callback asked for it"
TOTALS = ("deployments", "samples", "bytes_up", "bytes_down", "refused")


class Record(NamedTuple):
    """One record of a run under way."""

    case: str
    algorithm: str
    settings: dict[str, Any]
    seeds: tuple[int, ...]
    round: int
    theta: Theta  # seeds x ...
    figures: dict[str, np.ndarray]  # one number per seed: what a run has by these names, and what the method states

    @property
    def means(self) -> dict[str, float]:
        """Means over the seeds whose model is finite, of the figures that have a finite value."""
        good = np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in jax.tree.leaves(self.theta)], axis=0)
        finite = {name: values[good & np.isfinite(values)] for name, values in self.figures.items()}
        return {name: float(values.mean()) for name, values in finite.items() if values.size}


Callback: TypeAlias = Callable[[Record], Any]
"""Returns something true to end the run. Where it has ``close()``, that is called when the run is over."""


class Watch:
    """The callbacks of one run, and the totals so far."""

    def __init__(self, problem: Problem, method: Method, layout: Layout, callbacks: Iterable[Callback] | Callback):
        self.callbacks = checks.functions("every callback", "of a record", callbacks)
        self.problem, self.method, self.layout = problem, method, layout
        self.totals = {name: np.zeros(len(layout.seeds)) for name in TOTALS}
        self.regret, self.round = np.zeros(len(layout.seeds)), -1
        self.stop_requested = self.interrupted = False  # to end the run: by a callback, by Ctrl-C

    @property
    def active(self) -> bool:
        return bool(self.callbacks)

    def record(self, trace: Trace, first: int, call: bool = True) -> None:
        """``trace`` is that of the records after round ``first``; ``call`` is false for those of an earlier process."""
        if not self.active:
            return
        run = make_run(self.problem, self.method, trace, self.layout._replace(first=first), 0.0)
        for record in self._records(run):
            self.round = record.round
            for callback in self.callbacks if call else ():
                self.stop_requested = bool(callback(record)) or self.stop_requested

    @property
    def stopped(self) -> bool:
        return self.stop_requested or self.interrupted

    def interrupt(self) -> None:
        self.interrupted = True

    def finish(self, run: Run) -> Run:
        """The run with its reason to stop; where Ctrl-C ended it, ``Interrupted`` is raised, which holds the run."""
        if self.interrupted and run.rounds[-1] < self.layout.rounds:
            raise Interrupted(f"interrupted after round {run.rounds[-1]} of {self.layout.rounds}", run)
        if not self.stop_requested or run.rounds[-1] >= self.layout.rounds:
            return run
        reasons = tuple(reason or CALLBACK_STOP for reason in run.stop_reason)
        return replace(run, settled=tuple(end or int(run.rounds[-1]) for end in run.settled), stop_reason=reasons)

    def close(self) -> None:
        for callback in self.callbacks:
            if close := getattr(callback, "close", None):
                close()

    def _records(self, run: Run) -> Iterator[Record]:
        before, regret, first = dict(self.totals), self.regret, int(run.rounds[0])
        ends = np.array([self.layout.rounds if end is None else end for end in run.settled])
        for i, round_ in enumerate(run.rounds.tolist()):
            if round_ <= self.round:
                continue
            series = {name: values[:, i] for name in SERIES if (values := getattr(run, name)) is not None}
            figures = {**series, **{name: values[:, i] for name, values in run.info.items()}}
            figures |= {name: before[name] + figures[name] for name in TOTALS}
            if round_ > first:
                rounds = np.minimum(round_, ends)
                since = np.where(rounds > first, figures["deployed_regret"] * (rounds - first), 0.0)
                self.regret = regret + since
                figures["deployed_regret"] = self.regret / rounds
            self.totals = {name: figures[name] for name in TOTALS}
            theta: Any = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[:, i], run.theta)
            yield Record(run.case, run.algorithm, run.settings, run.seeds, int(round_), theta, figures)
