"""``python -m benchmarks network``: what PoFL costs over PFL, a million parameters and a signal of ten numbers.

A regression by tanh(tanh(x A) B) c of width 1000, four clients, n = 100, R = 5. Data move by the mean of the network's
outputs for ten people. Every run is a fresh process without a cache of compiled code; PFL and PoFL take turns. Times
are CPU seconds of the process, of all its threads, after its imports: they depend less on what else a machine does. A
figure is the median over turns of the ratio within a turn. A steady round is the difference of a long run and a
short one over the rounds between them, both compiled before.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.bench import Bench
from benchmarks.timing import ratio
from profl import random
from profl.methods import pfl, pofl
from profl.problem.families import GaussianMean
from profl.problem.problem import Problem
from profl.run.compiled.placement import place
from profl.run.compiled.scan import Span, initial_carries, segment
from profl.run.compiled.simulate import simulate
from profl.run.config import RunConfig
from profl.run.plan import make_plan
from profl.typing import Array, Batch, Client, Key, Theta
from profl_papers.claims import Part, at_most

WIDTH, QUICK_WIDTH, PEOPLE = 1000, 150, 10
SCHEDULE: dict[str, Any] = {"local_steps": 5, "samples": 100, "seeds": (0,)}
ROUNDS, QUICK_ROUNDS, STEADY = 50, 2, 10
TURNS = 3
BAR = 1.5
"""Times PFL's, in time and in memory."""
METHODS: dict[str, Callable[[], Any]] = {"pfl": partial(pfl, 0.01), "pofl": partial(pofl, 0.01)}
FIGURES = {
    "round": "a steady round",
    "run": "a whole run, compiled anew",
    "xla": "memory by XLA's account",
    "peak": "peak memory of the process",
}
UNITS = {"round": "CPU s", "run": "CPU s", "xla": "MB", "peak": "MB"}


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """``seeds`` play no part: nothing here depends on what is drawn."""
    sizes = (QUICK_WIDTH, QUICK_ROUNDS, 1) if quick else (WIDTH, ROUNDS, TURNS)
    return Bench(timed={"compared": partial(compared, *sizes)})


def compared(width: int, rounds: int, turns: int) -> Part:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for _ in range(turns):
        for name in METHODS:
            found[name].append(_alone(name, width, rounds))
    rows, claims = [], []
    for key, what in FIGURES.items():
        ours, plain = ([turn[key] for turn in found[name]] for name in ("pofl", "pfl"))
        times = ratio(ours, plain)
        middle = {name: statistics.median(turn[key] for turn in found[name]) for name in METHODS}
        rows.append({"part": what, "unit": UNITS[key], **middle, "PoFL / PFL": times})
        claims.append(at_most(f"{width**2 + 3 * width:,} parameters, {rounds} rounds: {what}, over PFL's", times, BAR))
    return Part(rows, claims)


ROOT = Path(__file__).parent.parent  # where the fresh process finds this package


def _alone(name: str, width: int, rounds: int) -> dict[str, float]:
    """``costs`` in a fresh process."""
    command = f"from benchmarks import network; network.main({name!r}, {width}, {rounds})"
    own = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=own, cwd=ROOT
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(name: str, width: int, rounds: int) -> None:
    print(json.dumps(costs(network(width), METHODS[name](), rounds)))


def costs(problem: Problem, method: Any, rounds: int) -> dict[str, float]:
    """The figures of this process; the peak is that of the whole run, before anything else is compiled."""

    def run(count: int) -> float:
        began = time.process_time()
        simulate(problem, method, rounds=count, record_every=count, progress=False, **SCHEDULE)
        return time.process_time() - began

    whole = run(rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    short, long = run(1), run(1 + STEADY)
    return {"run": whole, "peak": peak, "round": (long - short) / STEADY, "xla": account(problem, method)}


def account(problem: Problem, method: Any) -> float:
    """Megabytes that the compiled rounds take by XLA's own account: what goes in, and what is needed on the way."""
    plan = make_plan(problem, method, RunConfig(rounds=1, record_every=1, **SCHEDULE))
    placed = place(plan.settings, plan.population, plan.models, None)
    carry = initial_carries(plan.settings, plan.population, plan.models)
    code = jax.jit(lambda *given: segment(plan.settings, placed, 1, *given))
    used: Any = code.lower(carry, plan.population, plan.roots, Span(0, 1, 1, 1)).compile().memory_analysis()
    return (used.argument_size_in_bytes + used.temp_size_in_bytes) / 2**20


def network(width: int) -> Problem:
    """The problem of the module's first lines, of ``width``^2 + 3 ``width`` parameters."""
    people = np.random.default_rng(0).normal(size=(PEOPLE, 2)).astype(np.float32)

    def initial(key: Key) -> Theta:
        shapes = {"a": (2, width), "b": (width, width), "c": (width,)}
        keys = jax.random.split(key, 3)
        return {name: jax.random.normal(k, shape) / 2 for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def out(theta: Theta, x: Array) -> Array:
        return jnp.tanh(jnp.tanh(x @ theta["a"]) @ theta["b"] / width**0.5) @ theta["c"] / width**0.5

    def signal(theta: Theta) -> Array:
        return out(theta, jnp.asarray(people))

    def sample(key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return client["gamma"] * jnp.mean(signal(theta)) + random.normal(key, n, 2)

    def loss(theta: Theta, z: Batch) -> Array:
        return (out(theta, z) - z[0] * z[1]) ** 2

    clients = {"gamma": np.ones(4)}
    return Problem("wide", loss, GaussianMean(), sample, clients=clients, initial=initial, signal=signal)  # type: ignore[arg-type]
