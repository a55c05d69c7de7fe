"""What watches a run: ``profl.simulate(..., callbacks=profl.callbacks.Terminal())``.

A callback is any function of a ``Record``; one that returns something true ends the run.

>>> import profl
>>> case, rounds = profl.cases.housing(clients=2), []
>>> watch = lambda record: rounds.append(record.round)
>>> run = profl.simulate(case, profl.pfl(), rounds=2, samples=20, seeds=[0], progress=False, callbacks=watch)
>>> rounds
[0, 1, 2]
"""

from __future__ import annotations

from profl.results.callbacks import Record
from profl.results.trackers import Csv, EarlyStopping, JsonLines, MLflow, TensorBoard, Terminal

__all__ = ["Csv", "EarlyStopping", "JsonLines", "MLflow", "Record", "TensorBoard", "Terminal"]
