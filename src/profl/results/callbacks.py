"""Callbacks of a run, ``callback(record) -> stop?``, called at every record.

An engine passes the part of its trace since the last record; it is measured like a whole run (``make_run``), and counts
are added to the earlier ones.

What a callback or ``report`` raises never costs a round. An engine calls them once the round is stored. A run that is
stored or that deploys for real goes on, and the failure is an incident; a simulation that is neither ends with the
callback's own error, whose ``run`` holds what was done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
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

log = logging.getLogger("profl")
CALLBACK_STOP = "a callback asked for it"
TOTALS = ("deployments", "samples", "bytes_up", "bytes_down", "refused")


Incident: TypeAlias = tuple[int, int, str]
"""(round, client, what happened)"""
NOBODY = -1
"""The client of an incident that concerns none."""


def sentence(incident: Incident) -> str:
    """An incident in words.

    >>> sentence((3, 0, "sent nothing")), sentence((3, NOBODY, "report raised KeyError: 1"))
    ('round 3, client 0: sent nothing', 'round 3: report raised KeyError: 1')
    """
    round_, client, what = incident
    return f"round {round_}: {what}" if client == NOBODY else f"round {round_}, client {client}: {what}"


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


class Failed(NamedTuple):
    """What a hook of the user's raised."""

    round: int  # the first time
    what: str
    times: int


class Watch:
    """The hooks of one run, its callbacks and ``report``, and the totals so far.

    ``goes_on``: a hook that raises is an incident; else the run ends with its error.
    """

    def __init__(
        self,
        problem: Problem,
        method: Method,
        layout: Layout,
        callbacks: Iterable[Callback] | Callback,
        report: Callable[[str], Any] | None = None,
        goes_on: bool = True,
    ) -> None:
        self.callbacks = checks.functions("every callback", "of a record", callbacks)
        self.problem, self.method, self.layout = problem, method, layout
        self.totals = {name: np.zeros(len(layout.seeds)) for name in TOTALS}
        self.regret, self.round = np.zeros(len(layout.seeds)), -1
        self.stop_requested = self.interrupted = False  # to end the run: by a callback, by Ctrl-C
        self.report, self.goes_on = report, goes_on
        self.error: Exception | None = None  # what ends a run that does not go on
        self._failed: dict[str, Failed] = {}  # by the hook's name

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
            for callback in self.callbacks if call and self.error is None else ():
                stop = self._call(_name(callback), partial(_asks_to_stop, callback, record))
                self.stop_requested = bool(stop) or self.stop_requested

    def tell(self, incidents: Iterable[Incident]) -> None:
        """Call ``report`` with one sentence per incident."""
        for incident in incidents if self.report is not None else ():
            self._say(incident)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What hooks raised: an incident of each, at the first time."""
        return tuple((failed.round, NOBODY, _words(name, failed)) for name, failed in self._failed.items())

    @property
    def stopped(self) -> bool:
        return self.stop_requested or self.interrupted

    def interrupt(self) -> None:
        self.interrupted = True

    def finish(self, run: Run) -> Run:
        """The run with its reason to stop; where Ctrl-C ended it, ``Interrupted`` is raised, which holds the run.

        So does the error of a callback that has ended it.
        """
        if self.error is not None:
            with suppress(Exception):  # an error of a stranger's may take no attributes
                self.error.run = run  # type: ignore[attr-defined]
            raise self.error
        if self.interrupted and run.rounds[-1] < self.layout.rounds:
            raise Interrupted(f"interrupted after round {run.rounds[-1]} of {self.layout.rounds}", run)
        if not self.stop_requested or run.rounds[-1] >= self.layout.rounds:
            return run
        reasons = tuple(reason or CALLBACK_STOP for reason in run.stop_reason)
        return replace(run, settled=tuple(end or int(run.rounds[-1]) for end in run.settled), stop_reason=reasons)

    def close(self) -> None:
        for callback in self.callbacks:
            if close := getattr(callback, "close", None):
                self._call(_name(callback), close)

    def _say(self, incident: Incident) -> None:
        if self.report is not None:
            report = self.report
            self._call("report", lambda: report(sentence(incident)), incident[0])

    def _call(self, name: str, hook: Callable[[], Any], round_: int | None = None) -> Any:
        """What a hook of the user's returns; None where it raises, which is noted."""
        try:
            return hook()
        except KeyboardInterrupt:
            self.interrupt()
        except Exception as error:
            before, round_ = self._failed.get(name), max(self.round, 0) if round_ is None else round_
            self._failed[name] = Failed(round_, checks.words(f"{type(error).__name__}: {checks.words(error)}"), 1)
            if not self.goes_on:
                self.error = self.error or error
                self.stop_requested = True
            elif before is not None:
                self._failed[name] = before._replace(times=before.times + 1)
            else:
                log.warning("round %d: %s raised an error; the run goes on", round_, name, exc_info=error)
                if name != "report":
                    self._say((round_, NOBODY, _words(name, self._failed[name])))
        return None

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


def _asks_to_stop(callback: Callback, record: Record) -> bool:
    return bool(callback(record))


def _name(callback: Any) -> str:
    """What a callback is called in an incident."""
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    return f"the callback {checks.words(name)}"


def _words(name: str, failed: Failed) -> str:
    more = f", and {failed.times - 1} times more" if failed.times > 1 else ""
    return f"{name} raised {failed.what}{more}; the run went on"
