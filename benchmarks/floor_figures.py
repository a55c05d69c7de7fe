"""What ``make floor`` measures: times over the ceiling, sizes of programs, how many there are, and peak memory.

Pricing, 10 clients x 10 seeds, d = 5, n = 500. Everything but memory in one process, times in turns. The ceiling is
drawing the same normals and averaging them (``benchmarks.speed.ceiling``); a time is that of one client-step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from benchmarks.growth import peak
from benchmarks.peers import R
from benchmarks.speed import ceiling
from benchmarks.timing import in_turns, ratio
from profl.cases import pricing
from profl.methods import pfl, pofl, prm, profl
from profl.run.compiled.simulate import simulate

CLIENTS, SEEDS, TURNS = 10, 10, 5
METHODS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "pfl": (pfl, 40, R),
    "pofl": (pofl, 40, R),
    "profl": (profl, 40, R),
    "prm": (prm, 3, 1),
}
"""By name: the method, and the rounds and local steps of a run that is timed."""
MANY = 100_000
"""Clients of the run whose peak memory is measured, one step each."""

Figures = dict[str, dict[str, float]]
COMPILED = "/jax/core/compile/backend_compile_duration"


def dump_programs(folder: Path) -> None:
    """Have XLA write every program it compiles to ``folder``; call it before anything is computed."""
    dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dump}".strip()
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_platforms", "cpu")


def exact(folder: Path) -> Figures:
    """Sizes and numbers of programs, of the first run of every method in this process, in their order."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    sizes: dict[str, float] = {}
    programs: dict[str, float] = {}

    def count(name: str, task: Callable[[], Any]) -> None:
        compiled.clear()
        task()
        programs[name] = len(compiled)

    for name in METHODS:
        shutil.rmtree(folder, ignore_errors=True)
        count(f"{name}, first run", run(name))
        sizes[name] = largest_program(folder)
    for name in METHODS:
        count(f"{name}, more rounds", run(name, rounds=METHODS[name][1] + 3))
    count("pfl, another learning rate", run("pfl", learning_rate=0.02))
    return {"instructions": sizes, "programs": programs}


def largest_program(folder: Path) -> int:
    """HLO instructions of the largest program in a dump, before XLA's optimisations."""
    return max(path.read_text().count(" = ") for path in folder.glob("*before_optimizations.txt"))


def run(name: str, rounds: int | None = None, **changes: Any) -> Callable[[], Any]:
    """A run of the method, recorded at its end."""
    method, usual, local_steps = METHODS[name]
    rounds = rounds or usual
    layout: dict[str, Any] = {"rounds": rounds, "local_steps": local_steps, "record_every": rounds}
    case = pricing(clients=CLIENTS)
    return partial(simulate, case, method(**changes), seeds=range(SEEDS), progress=False, **layout)


def times() -> Figures:
    """The time of a client-step over that of drawing its normals, by method: medians over turns."""
    rounds = METHODS["pofl"][1]
    seconds = in_turns({"ceiling": ceiling(CLIENTS * SEEDS, rounds)} | {name: run(name) for name in METHODS}, TURNS)
    steps = {name: own * local_steps for name, (_, own, local_steps) in METHODS.items()}
    return {"time": {name: ratio(seconds[name], seconds["ceiling"]) * rounds * R / steps[name] for name in METHODS}}


def memory() -> Figures:
    """Peak MiB of a fresh process that makes one step of very many clients."""
    return {"memory": {f"pofl, {MANY} clients": peak(MANY, 1, 1, 1)}}
