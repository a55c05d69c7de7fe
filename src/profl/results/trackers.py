"""Ready callbacks for ``simulate``, ``train`` and Flower's server, ``callbacks=[...]``.

A callback is any function of a ``profl.callbacks.Record``; one that returns something true ends the run. What these
write is the mean over seeds of every figure that is known.

>>> import profl
>>> case = profl.cases.housing(clients=2)
>>> settings = {"rounds": 2, "samples": 20, "seeds": [0], "progress": False}
>>> terminal = profl.callbacks.Terminal(every=2)
>>> run = profl.simulate(case, profl.pfl(), **settings, callbacks=terminal)  # doctest: +ELLIPSIS
pfl on housing, round 0: risk 63.2..., excess 57.3...
pfl on housing, round 2: risk 72.3..., excess 66.5..., loss ...
"""

from __future__ import annotations

import csv as csv_module
import json
import math
import os
from pathlib import Path
from typing import Any

from profl import checks
from profl.results.callbacks import Record
from profl.storage.paths import check_file

SHOWN = ("risk", "excess", "accuracy", "loss")


@checks.explain_call
class JsonLines:
    """Every record as a line of JSON at the end of a file, written at once: ``tail -f`` shows a run under way."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(checks.path("path", path))
        if not self.path.parent.is_dir():
            raise checks.InputError(f"no such folder for the log: {self.path.parent}")
        check_file("the log", self.path)

    def __call__(self, record: Record) -> None:
        line = {"case": record.case, "algorithm": record.algorithm, "round": record.round, **record.means}
        self.write(json.dumps(line, allow_nan=False))

    def write(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@checks.explain_call
class Csv(JsonLines):
    """The same as csv, with the columns of the first record that has them all: the one after the start."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.waiting: list[Record] = []
        self.names: list[str] = []

    def __call__(self, record: Record) -> None:
        self.waiting.append(record)
        if record.round > 0:
            self.close()

    def close(self) -> None:
        if not self.names and self.waiting:
            self.names = list(self.waiting[-1].means)
            self.write(",".join(["case", "algorithm", "round", *self.names]))
        for record in self.waiting:
            figures = record.means
            self._row([record.case, record.algorithm, record.round, *(figures.get(name, "") for name in self.names)])
        self.waiting = []

    def _row(self, cells: list[Any]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv_module.writer(file, lineterminator="\n").writerow(cells)


@checks.explain_call
class Terminal:
    """Prints a line per ``every`` records."""

    def __init__(self, every: int = 10) -> None:
        self.every, self.count = checks.positive_int("every", every), 0

    def __call__(self, record: Record) -> None:
        if self.count % self.every == 0:
            means = record.means
            what = ", ".join(f"{name} {means[name]:.4g}" for name in SHOWN if name in means)
            print(f"{record.algorithm} on {record.case}, round {record.round}: {what}")
        self.count += 1


@checks.explain_call
class EarlyStopping:
    """Ends a run once a figure has not fallen by more than ``least`` for ``patience`` records.

    It is the mean over seeds of ``figure``: "risk", "excess", "loss", ...; with ``falls=False`` it is to rise.

    >>> stop = EarlyStopping("risk", patience=2)
    >>> [stop.better(risk) for risk in (3.0, 2.0, 2.5, 2.1)], stop.since
    ([True, True, False, False], 2)
    """

    def __init__(self, figure: str = "risk", patience: int = 10, least: float = 0.0, falls: bool = True) -> None:
        self.figure, self.patience = checks.text("figure", figure), checks.positive_int("patience", patience)
        if checks.real("least", least) < 0:
            raise checks.InputError(f"least must be 0 or more, got {least!r}")
        self.least, self.sign = least, 1.0 if checks.flag("falls", falls) else -1.0
        self.best, self.since = math.inf, 0

    def __call__(self, record: Record) -> bool:
        means = record.means
        if self.figure not in means:
            if record.round == 0:
                return False
            raise checks.InputError(f"unknown figure {self.figure!r} to stop by; there are: {', '.join(means)}")
        return not self.better(means[self.figure]) and self.since >= self.patience

    def better(self, value: float) -> bool:
        """Whether the figure is the best so far; otherwise one more record counts towards ``patience``."""
        improved = self.sign * value < self.best - self.least
        self.best, self.since = (self.sign * value, 0) if improved else (self.best, self.since + 1)
        return improved


@checks.explain_call
class MLflow:
    """One MLflow run with the settings as parameters and the figures as metrics (needs ``profl[mlflow]``)."""

    def __init__(self, experiment: str | None = None) -> None:
        if experiment is not None:
            checks.text("experiment", experiment)
        self.client, self.experiment, self.open = _need("mlflow", "mlflow"), experiment, False

    def __call__(self, record: Record) -> None:
        if not self.open:
            if self.experiment is not None:
                self.client.set_experiment(self.experiment)
            self.client.start_run(run_name=f"{record.algorithm} on {record.case}")
            self.client.log_params({"case": record.case, "algorithm": record.algorithm, **record.settings})
            self.open = True
        self.client.log_metrics(record.means, step=record.round)

    def close(self) -> None:
        if self.open:
            self.client.end_run()
        self.open = False


@checks.explain_call
class TensorBoard:
    """Scalars for TensorBoard (needs ``profl[tensorboard]``)."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.writer = _need("tensorboardX", "tensorboard").SummaryWriter(checks.path("directory", directory))

    def __call__(self, record: Record) -> None:
        for name, value in record.means.items():
            self.writer.add_scalar(f"{record.case}/{record.algorithm}/{name}", value, record.round)

    def close(self) -> None:
        self.writer.close()


def _need(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this callback needs {module}: pip install 'profl[{extra}]'") from error
