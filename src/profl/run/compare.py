"""``compare``: several methods on one problem, under the same budget of deployments and samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from profl import checks
from profl.interrupts import Interrupted
from profl.methods.method import Method
from profl.problem.problem import Problem
from profl.results.comparison import Comparison
from profl.run.compiled.simulate import simulate


def compare(problem: Problem, methods: Iterable[Method], **settings: Any) -> Comparison:
    """One run per method, all with the same ``profl.simulate`` settings and seeds.

    Ctrl-C ends it with ``profl.Interrupted``, whose ``run`` is the comparison of what was done.

    >>> import profl
    >>> case = profl.cases.housing(clients=2)
    >>> runs = compare(case, [profl.pfl(), profl.pofl()], rounds=100, samples=50, seeds=[0], progress=False)
    >>> bool(runs[1].excess[0, -1] < runs[0].excess[0, -1])
    True
    """
    asked = list(methods)
    if not asked:
        raise checks.InputError("compare needs at least one method, such as [profl.pfl(), profl.pofl()], got none")
    runs = Comparison()
    for method in asked:
        try:
            runs.append(simulate(problem, method, **settings))
        except Interrupted as error:
            raise Interrupted(f"{method.name}: {error}", Comparison([*runs, error.run])) from None
    return runs
