"""``simulate``: a problem whose data a reaction draws, in the fast engine or, step by step, in the debug engine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from profl import checks, trees
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.problem.problem import Problem
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run import undecided
from profl.run.compiled import processes
from profl.run.compiled.resume import run_with_checkpoints
from profl.run.compiled.scan import run_compiled
from profl.run.config import RunConfig, check_execution
from profl.run.fingerprint import fingerprint
from profl.run.plan import CompiledPlan, describe, make_plan
from profl.run.stepwise.debug import run_debug
from profl.server.attacks import Attack
from profl.storage.checkpoints import Checkpoints
from profl.typing import Counts, Theta


@checks.explain_call
def simulate(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    local_steps: int = 5,
    samples: Counts = 500,
    seeds: Iterable[int] | int = range(10),
    participation: float = 1.0,
    scheme: str = "uniform",
    record_every: int = 1,
    initial: Theta | None = None,
    attack: str | Attack | None = None,
    hostile: float | Iterable[int] = 0.2,
    min_reports: int = 0,
    stop: StopWhenSettled | None = None,
    progress: bool = True,
    engine: str = "fast",
    client_chunk: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callbacks: Iterable[Callback] | Callback = (),
) -> Run:
    """Run ``method`` on ``problem`` for ``rounds`` rounds and measure it against the exact answers.

    It computes in JAX's current precision: single unless ``jax.enable_x64`` is on. Exact answers are always double.

    Args:
      rounds, local_steps, samples, seeds, participation, scheme, record_every, initial, attack, hostile, min_reports,
        stop: see ``profl.RunConfig``.
      progress: show a progress bar on a terminal.
      engine: "fast", or "debug": one step after the other, with errors that name client, round and stage.
      client_chunk: clients worked on at once, which bounds memory; by itself, what a cache or an accelerator holds.
      checkpoint: a folder; after every round all that the next one needs is written there ("fast" only).
      resume: go on from the newest checkpoint in that folder.
      callbacks: called with every record (``profl.callbacks.Record``); what returns something true ends the run. Ready
        ones are in ``profl.callbacks`` ("fast" only). Where one raises, a run with a checkpoint goes on, with that in
        its ``incidents``; one without ends with the error, whose ``run`` holds what was done.

    Where ``jax.distributed.initialize`` has connected several processes, all of them call this with the same arguments,
    share the work, and return the same run (docs/scale.md).

    Ctrl-C ends the run after the round it is at with ``profl.Interrupted``, whose ``run`` holds what was done.

    >>> import profl
    >>> case = profl.cases.housing(clients=4, heterogeneity=0)
    >>> run = profl.simulate(case, profl.pofl(), rounds=100, samples=200, seeds=range(2), progress=False)
    >>> bool(run.tail_excess().mean() < 0.05)
    True
    """
    options = (participation, scheme, record_every, initial, attack, hostile, min_reports)
    config = RunConfig(rounds, local_steps, samples, seeds, *options, stop)
    execution = Execution(progress, engine, client_chunk, checkpoint, resume, callbacks)
    return simulate_config(problem, method, config, execution)


class Execution(NamedTuple):
    """How a simulation is carried out: the arguments of ``simulate`` that do not change its results."""

    progress: bool = True
    engine: str = "fast"
    client_chunk: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = True
    callbacks: Iterable[Callback] | Callback = ()


def simulate_config(problem: Problem, method: Method, config: RunConfig, execution: Execution) -> Run:
    """The run that ``simulate`` returns, from a finished configuration."""
    execution = check_execution(execution)
    engine, checkpoint = checks.one_of("engine", execution.engine, ["fast", "debug"]), execution.checkpoint
    for name, value in {"checkpoint": checkpoint, "callbacks": execution.callbacks or None}.items():
        if value is not None and engine != "fast":
            raise checks.InputError(f"{name} needs engine='fast'")
    if execution.client_chunk is not None:
        checks.positive_int("client_chunk", execution.client_chunk)
    plan = make_plan(problem, method, config)
    layout = describe(plan)
    watch = Watch(problem, method, layout, execution.callbacks, goes_on=checkpoint is not None)
    started = time.perf_counter()
    odd: tuple[str, ...] = ()
    title = f"{method.name} on {problem.name}"
    try:
        if checkpoint is not None:
            stated, writes = fingerprint("simulate", problem, plan), processes.is_first()
            with Checkpoints(checkpoint, stated, execution.resume, lock=writes) as saved:
                trace = run_with_checkpoints(plan, title, execution.progress, saved, execution.client_chunk, watch)
                odd = saved.notes
        elif engine == "debug":
            trace = run_debug(plan)
        else:
            trace = run_compiled(plan, title, execution.progress, execution.client_chunk, watch)
    finally:
        watch.close()
    run = make_run(problem, method, trace, layout, time.perf_counter() - started)
    undecidable = undecided.notes(plan, trees.take(run.theta, (slice(None), -1)), int(run.rounds[-1]))
    run = replace(run, notes=(*run.notes, *odd, *undecidable), incidents=watch.incidents)
    if np.any(given_up := (trace.stopped >= 0) & (trace.why == 0)):
        raise checks.TooFewReports(_too_few_reports_message(plan, trace.stopped, given_up), run) from watch.error
    return watch.finish(run)


def _too_few_reports_message(plan: CompiledPlan, stopped: np.ndarray, given_up: np.ndarray) -> str:
    seed = int(np.argmax(given_up))
    return (
        f"seed {plan.seeds[seed]}, round {int(stopped[seed]) + 1}: fewer than min_reports={plan.settings.min_reports} "
        f"of the {plan.settings.slots} reports could be used; what was done until then is in the error's .run"
    )
