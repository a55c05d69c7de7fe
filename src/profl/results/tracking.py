"""Ready callbacks for ``simulate(..., callbacks=[...])``: each gets the finished run and writes its series somewhere.

A callback is any function of a ``Run``. What these write is the mean over seeds of every figure, one step per record.

>>> import profl
>>> case = profl.cases.housing(clients=2)
>>> settings = {"rounds": 2, "samples": 20, "seeds": [0], "progress": False}
>>> run = profl.simulate(case, profl.pfl(), **settings, callbacks=[terminal(every=2)])  # doctest: +ELLIPSIS
pfl on housing, round 0: risk 63.2..., excess 57.3...
pfl on housing, round 2: risk 72.3..., excess 66.5...
"""

from __future__ import annotations

import csv as csv_module
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from profl import checks
from profl.results.record import SERIES, Run, mean_over_seeds
from profl.storage.atomic import atomic

Callback: TypeAlias = Callable[[Run], None]


def history(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """(round, figures) of every record: means over the seeds that did not diverge."""
    series = {name: mean_over_seeds(run, values) for name in SERIES if (values := getattr(run, name)) is not None}
    for record, round_ in enumerate(run.rounds.tolist()):
        yield round_, {name: float(values[record]) for name, values in series.items()}


def csv(path: str | os.PathLike[str]) -> Callback:
    """Every record as a line of a csv file, written whole."""

    def write(run: Run) -> None:
        records = list(history(run))
        names = ["case", "algorithm", "round", *records[0][1]]
        with atomic(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            table = csv_module.writer(file)
            table.writerow(names)
            table.writerows([run.case, run.algorithm, round_, *values.values()] for round_, values in records)

    return write


def terminal(every: int = 10) -> Callback:
    """A line per ``every`` records."""
    checks.positive_int("every", every)

    def show(run: Run) -> None:
        for round_, values in list(history(run))[::every]:
            what = ", ".join(f"{name} {values[name]:.4g}" for name in ("risk", "excess", "accuracy") if name in values)
            print(f"{run.algorithm} on {run.case}, round {round_}: {what}")

    return show


def mlflow(experiment: str | None = None) -> Callback:
    """One MLflow run with the settings as parameters and the figures as metrics (needs ``profl[mlflow]``)."""

    def log(run: Run) -> None:
        client = _need("mlflow", "mlflow")
        if experiment is not None:
            client.set_experiment(experiment)
        with client.start_run(run_name=f"{run.algorithm} on {run.case}"):
            client.log_params({"case": run.case, "algorithm": run.algorithm, **run.settings})
            for round_, values in history(run):
                client.log_metrics(values, step=round_)

    return log


def tensorboard(directory: str | os.PathLike[str]) -> Callback:
    """Scalars for TensorBoard (needs ``profl[tensorboard]``)."""

    def log(run: Run) -> None:
        writer = _need("tensorboardX", "tensorboard").SummaryWriter(os.fspath(directory))
        try:
            for round_, values in history(run):
                for name, value in values.items():
                    writer.add_scalar(f"{run.case}/{run.algorithm}/{name}", value, round_)
        finally:
            writer.close()

    return log


def _need(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this callback needs {module}: pip install 'profl[{extra}]'") from error
