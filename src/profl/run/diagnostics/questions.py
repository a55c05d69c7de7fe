"""All questions in turn; a failure decides which of the later ones make sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from profl import checks
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.run.diagnostics import data_kind, drift_diagnostics, family, functions, junk, reaction
from profl.run.diagnostics.subject import CheckStopped, Finding, deployments, make_subject
from profl.run.live import batches


def check(
    problem: Problem | LiveProblem,
    client: Any = None,
    *,
    samples: int = 500,
    timeout: float = 60.0,
    hold: int = drift_diagnostics.HOLD,
    seed: int = 0,
) -> list[Finding]:
    """The findings on a problem, and on a client where there is one.

    Without a client the problem's own reaction is asked: client 0, and for how the data react the one in the middle and
    the last as well. "fail" will not run or will mislead; "warn" may be meant.

    Args:
      samples: per deployment.
      timeout: seconds that one deployment may take.
      hold: how many deployments each of two models is held for, to look for memory, drift and a spread that moves; the
        first is held twice. 0 does not look.
      seed: of the initial model and of simulated data.

    >>> import profl
    >>> [finding.question for finding in check(profl.cases.housing(clients=2)) if finding.verdict == "fail"]
    []
    """
    checks.positive_int("samples", samples)
    if hold and checks.positive_int("hold", hold) < drift_diagnostics.MIN_HOLD:
        raise checks.InputError(f"hold must be at least {drift_diagnostics.MIN_HOLD}, or 0 for not looking, got {hold}")
    findings: list[Finding] = []

    def ready() -> bool:
        return not any(finding.verdict == "fail" for finding in findings)

    try:
        for finding in _all_findings(problem, client, samples, timeout, hold, seed, ready):
            findings.append(finding)
    except CheckStopped as stop:
        findings.append(stop.args[0])
    return findings


def _all_findings(
    problem: Problem | LiveProblem,
    client: Any,
    samples: int,
    timeout: float,
    hold: int,
    seed: int,
    ready: Callable[[], bool],
) -> Iterator[Finding]:
    """All findings in order. ``ready()`` says whether nothing has failed yet; later questions need that."""
    subject = make_subject(problem, client, seed)
    yield subject.finding()
    deploy = deployments(subject, client, samples, timeout, seed)
    first = deploy[0]
    started = time.monotonic()
    batch = first(subject.theta, 0)
    rows = batches.rows(batch)
    detail = f"{rows} of {samples} samples in {time.monotonic() - started:.2f} s"
    yield Finding("batch", "ok" if rows >= samples else "warn", detail)
    yield reaction.draws(subject, batch, first)
    subject = subject.with_scales(batch)
    yield functions.losses(subject, batch)
    yield functions.gradient(subject, batch)
    yield functions.projection(subject)
    yield from data_kind.kind_findings(subject.world.family, batch)
    yield from family.family_findings(subject.world, batch)
    yield from reaction.reaction_findings(subject, deploy)
    if hold and ready():
        yield from drift_diagnostics.drift_findings(subject, first, hold, reaction.LAST)
    if ready():
        yield junk.junk(subject.world, subject.theta, batch)
