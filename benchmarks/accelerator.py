"""``python -m benchmarks accelerator``: client-steps per second and first calls where very many clients run at once.

Pricing, d = 5, n = 500, one seed. A rate counts whole calls of ``simulate`` that compile nothing, after one that does.
Bars are for one NVIDIA H200; on other machines the rows are worth reading and the claims are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from benchmarks.bench import Bench
from benchmarks.growth import unsolved
from profl.cases import pricing
from profl.methods import pfl, pofl, prm, profl
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most

CLIENTS, QUICK_CLIENTS, ROUNDS, STEPS = 100_000, 1000, 40, 5
PRM_CLIENTS, DEPLOYMENTS = 10_000, 30
JUNK, DISTANCE = 0.2, 10
TURNS = 3
FIRST_CALL, PRM_SECONDS = 15.0, 3.0
"""Seconds: compilation and a short run; a whole warm run of ``prm``."""


class Row(NamedTuple):
    """A method on clean data or with junk, and the million client-steps a second that it should reach."""

    method: Any
    junk: bool = False
    bar: float | None = None


ROWS = {
    "pfl": Row(pfl),
    "pofl": Row(pofl, bar=45.0),
    "pofl, paper's J": Row(partial(pofl, jacobian="paper")),
    "profl": Row(profl, bar=28.0),
    "profl, junk": Row(profl, junk=True, bar=15.0),
    "profl, history": Row(partial(profl, aggregate="history")),
}


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """All methods, then first calls with ten clients; ``quick`` takes a thousand clients."""
    parts: dict[str, Callable[[], Part]] = {name: partial(crowd, name, quick) for name in ROWS}
    return Bench(timed=parts | {"prm": partial(perturbed, quick), "first calls": first_calls})


def crowd(name: str, quick: bool) -> Part:
    """The rate of one method."""
    row: Row = ROWS[name]
    clients = QUICK_CLIENTS if quick else CLIENTS
    seconds = warm(with_junk(unsolved(clients), row.junk), row.method(), rounds=ROUNDS, local_steps=STEPS)
    rate = clients * ROUNDS * STEPS / seconds / 1e6
    claims = [] if row.bar is None else [at_least(f"{name}, {clients:,} clients: M client-steps / s", rate, row.bar)]
    return Part([{"part": device(), "method": name, "clients": clients, "M client-steps / s": rate}], claims)


def perturbed(quick: bool) -> Part:
    """A run of ``prm``."""
    clients = QUICK_CLIENTS if quick else PRM_CLIENTS
    seconds = warm(unsolved(clients), prm(), rounds=DEPLOYMENTS, local_steps=1)
    row = {"part": device(), "method": "prm", "clients": clients, "seconds": seconds}
    return Part([row], [at_most(f"prm, {clients:,} clients, {DEPLOYMENTS} deployments: seconds", seconds, PRM_SECONDS)])


def first_calls() -> Part:
    """Seconds of a first short run with ten clients, compilation included, of methods that have not run so far."""
    rows, claims = [], []
    methods: dict[str, Callable[[], Any]] = {"pfl": pfl, "pofl": pofl, "profl": profl, "prm": prm}
    jax.clear_caches()
    for name, method in methods.items():
        steps = 1 if name == "prm" else STEPS
        started = time.perf_counter()
        simulate(pricing(), method(), rounds=ROUNDS, local_steps=steps, seeds=[0], progress=False)
        seconds = time.perf_counter() - started
        rows.append({"part": "first calls", "method": name, "seconds": seconds})
        claims.append(at_most(f"{name}: first call, seconds", seconds, FIRST_CALL))
    return Part(rows, claims)


def warm(case: Problem, method: Any, **layout: Any) -> float:
    """The least seconds of a run over some turns, after one that compiles."""
    run = partial(simulate, case, method, seeds=[0], record_every=layout["rounds"], progress=False, **layout)
    run()
    times = []
    for _ in range(TURNS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def with_junk(case: Problem, wanted: bool) -> Problem:
    return contaminate(case, JUNK, "blob", distance=DISTANCE) if wanted else case


def device() -> str:
    """The kind of device that is measured."""
    return str(jax.devices()[0].device_kind)
