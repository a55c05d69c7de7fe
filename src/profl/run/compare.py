"""``compare``: several methods on one problem, under the same budget of deployments and samples."""

from __future__ import annotations

import os
from collections.abc import Iterable

from profl import checks
from profl.interrupts import Interrupted
from profl.methods.method import Method, check_method
from profl.methods.stopping import StopWhenSettled
from profl.problem.problem import Problem, check_problem
from profl.results.callbacks import Callback
from profl.results.comparison import Comparison
from profl.run.compiled.simulate import Execution, simulate_config
from profl.run.config import RunConfig, check_execution
from profl.server.attacks import Attack
from profl.typing import Counts, Theta


@checks.explain_call
def compare(
    problem: Problem,
    methods: Iterable[Method] | Method,
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
) -> Comparison:
    """One run per method, all with the same settings and seeds; the arguments are those of ``profl.simulate``.

    Ctrl-C ends it with ``profl.Interrupted``, whose ``run`` is the comparison of what was done.

    >>> import profl
    >>> case = profl.cases.housing(clients=2)
    >>> runs = compare(case, [profl.pfl(), profl.pofl()], rounds=100, samples=50, seeds=[0], progress=False)
    >>> bool(runs[1].excess[0, -1] < runs[0].excess[0, -1])
    True
    """
    chosen = _as_list(methods)
    options = (participation, scheme, record_every, initial, attack, hostile, min_reports)
    config = RunConfig(rounds, local_steps, samples, seeds, *options, stop)
    check_problem(problem)
    execution = check_execution(Execution(progress, engine, client_chunk, checkpoint, resume, callbacks))
    runs = Comparison()
    for method in chosen:
        try:
            runs.append(simulate_config(problem, method, config, execution))
        except Interrupted as error:
            raise Interrupted(f"{method.name}: {error}", Comparison([*runs, error.run])) from None
    return runs


def _as_list(methods: Iterable[Method] | Method) -> list[Method]:
    """The methods; one alone is a list of one."""
    if isinstance(methods, Method):
        return [methods]
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise checks.InputError(
            f"methods must be a list such as [profl.pfl(), profl.pofl()], got {checks.shown(methods)}"
        )
    chosen = list(methods)
    if not chosen:
        raise checks.InputError("compare needs at least one method, such as [profl.pfl(), profl.pofl()], got none")
    for method in chosen:
        check_method(method)
    return chosen
