"""``simulate``: a problem whose data a reaction draws, in the fast engine or, step by step, in the debug engine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import numpy as np

from profl import checks
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.results.callbacks import Callback, Watch
from profl.results.measure import make_run
from profl.results.record import Run
from profl.run.compiled.resume import run_saved
from profl.run.compiled.scan import run_compiled
from profl.run.config import Schedule, scheduled
from profl.run.fingerprint import fingerprint
from profl.run.plan import Plan, describe, make_plan
from profl.run.stepwise.debug import run_debug
from profl.storage.checkpoints import Checkpoints


@scheduled()
def simulate(
    problem: Problem,
    method: Method,
    *,
    schedule: Schedule,
    progress: bool = True,
    engine: str = "fast",
    client_chunk: int | None = None,
    prng: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callbacks: Iterable[Callback] | Callback = (),
) -> Run:
    """Run ``method`` on ``problem`` for ``rounds`` rounds and measure it against the exact answers.

    It computes in JAX's current precision: single unless ``jax.enable_x64`` is on. Exact answers are always double.

    Args:
      rounds, local_steps, samples, seeds, participation, scheme, record_every, initial, attack, hostile, min_reports,
        stop: see ``profl.Schedule``.
      progress: show a progress bar on a terminal.
      engine: "fast", or "debug": one step after the other, with errors that name client, round and stage.
      client_chunk: clients worked on at once, which bounds memory; by itself, what a cache or an accelerator holds.
      prng: how Threefry's rounds are written, "unrolled" or "stock": the same numbers; "auto" is what is fast here.
      checkpoint: a folder; after every round all that the next one needs is written there ("fast" only).
      resume: go on from the newest checkpoint in that folder.
      callbacks: called with every record (``profl.Record``); what returns something true ends the run. Ready ones are
        in ``profl.tracking`` ("fast" only).

    Ctrl-C ends the run after the round it is at with ``profl.Interrupted``, whose ``run`` holds what was done.

    >>> import profl
    >>> case = profl.cases.housing(clients=4, heterogeneity=0)
    >>> run = profl.simulate(case, profl.pofl(), rounds=100, samples=200, seeds=range(2), progress=False)
    >>> bool(run.tail_excess().mean() < 0.05)
    True
    """
    checks.one_of("engine", engine, ["fast", "debug"])
    for name, value in {"checkpoint": checkpoint, "callbacks": callbacks or None}.items():
        if value is not None and engine != "fast":
            raise checks.InputError(f"{name} needs engine='fast'")
    plan = make_plan(problem, method, schedule, prng)
    layout = describe(plan)
    watch = Watch(problem, method, layout, callbacks)
    started = time.perf_counter()
    title = f"{method.name} on {problem.name}"
    try:
        if checkpoint is not None:
            with Checkpoints(checkpoint, fingerprint("simulate", problem, plan), resume) as saved:
                trace = run_saved(plan, title, progress, saved, client_chunk, watch)
        elif engine == "debug":
            trace = run_debug(plan)
        else:
            trace = run_compiled(plan, title, progress, client_chunk, watch)
    finally:
        watch.close()
    run = make_run(problem, method, trace, layout, time.perf_counter() - started)
    if np.any(given_up := (trace.stopped >= 0) & (trace.why == 0)):
        raise checks.TooFewReports(_why_given_up(plan, trace.stopped, given_up), run)
    return watch.finish(run)


def _why_given_up(plan: Plan, stopped: np.ndarray, given_up: np.ndarray) -> str:
    seed = int(np.argmax(given_up))
    return (
        f"seed {plan.seeds[seed]}, round {int(stopped[seed]) + 1}: fewer than min_reports={plan.settings.min_reports} "
        f"of the {plan.settings.slots} reports could be used; what was done until then is in the error's .run"
    )
