"""What a checkpoint costs, early and late in a run: ``python -m benchmarks.rounds``, milliseconds per round.

The history of a server over Flower with four clients is given so many rounds, and kept fifty times, each time with one
record more; medians, on the clock and of the processor.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import jax
import numpy as np

import profl
from profl import trees
from profl.run.config import RunConfig
from profl.run.live.state import LiveState
from profl.run.plan import make_plan
from profl.run.run_history import item_shapes, start_history
from profl.storage.checkpoints import Checkpoints

TIMES = 50


def measure(rounds: int) -> tuple[float, float]:
    """Milliseconds that keeping a round takes after so many."""
    schedule = RunConfig(rounds=rounds, local_steps=1, samples=30, seeds=[0], min_reports=1)
    plan = make_plan(profl.cases.pricing(clients=4), profl.pofl(), schedule)
    history = start_history(plan, trees.take(plan.models, 0))
    tally = jax.tree.map(np.asarray, item_shapes(history)["tallies"])
    records, tallies = history.records * rounds, [tally] * (rounds - 1)
    clock, processor = [], []
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, {"run": "bench"}) as saved:
        for number in range(rounds, rounds + TIMES + 1):
            records, tallies = [*records, records[0]], [*tallies, tally]
            live = LiveState(history._replace(round=number, records=records, totals=tallies))
            began = time.perf_counter(), time.process_time()
            live.save(saved)
            clock.append(1e3 * (time.perf_counter() - began[0]))
            processor.append(1e3 * (time.process_time() - began[1]))
    return statistics.median(clock[1:]), statistics.median(processor[1:])  # the first writes all that came before


if __name__ == "__main__":
    for rounds in (100, 3000):
        print(f"round {rounds}: {{:.1f}} ms, {{:.1f}} ms of the processor".format(*measure(rounds)))
