"""``profl bench speed``, ``scale`` and ``memory``: what a run costs beside its random numbers.

Pricing, d = 5, n = 500, R = 5. Machines are noisy: everything in a row is timed in one process, in turns, and a figure
is the median over turns of the ratio within a turn. One client-step is one client doing one local step. The ceiling is
drawing the same normals by the fastest way found (``profl.random.normal``) and averaging them, in the same chunks.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from profl import random
from profl.algorithms import pfl, pofl, profl
from profl.algorithms.base import Algorithm
from profl.cases import pricing
from profl.engines.simulate import simulate
from profl.engines.spread import block
from profl.experiments import peers
from profl.experiments.claims import Part, at_least, at_most, item
from profl.experiments.peers import D, N, R
from profl.problem.problem import Problem
from profl.problem.reaction import SampledReaction

SHAPES = ((10, 1), (10, 10), (100, 10), (1000, 1), (1000, 10))
"""Clients x seeds."""
WORK = 50_000  # client-steps in one timing

Advance = Callable[[int], None]


def nothing(steps: int) -> None:
    """No progress bar."""


def speed(seeds: int = 10, quick: bool = False, advance: Advance = nothing) -> dict[str, Any]:
    """PoFL and ProFL against the ceiling and against NumPy, for every shape; then Flower and pfl-research."""
    turns, work, shapes = (2, WORK // 20, SHAPES[:2]) if quick else (5, WORK, SHAPES)
    parts: list[Callable[[], Part]] = [partial(shape, *pair, turns, work) for pair in shapes]
    sizes = (10,) if quick else (10, 100, 1000)
    return item("speed", seeds, [*parts, partial(federations, sizes, work)], advance)


SPEED_PARTS = len(SHAPES) + 1


def shape(clients: int, seeds: int, turns: int, work: int) -> Part:
    """One number of clients and seeds."""
    rounds = max(1, work // (clients * seeds * R))
    case = pricing(clients=clients)

    def ours(method: Algorithm) -> Callable[[], Any]:
        return partial(simulate, case, method, rounds=rounds, seeds=range(seeds), record_every=rounds, progress=False)

    times = in_turns(
        {
            "ceiling": ceiling(clients * seeds, rounds),
            "pfl": ours(pfl()),
            "pofl": ours(pofl()),
            "pofl, paper's J": ours(pofl(jacobian="paper")),
            "profl": ours(profl()),
            "NumPy, one thread": partial(peers.numpy_batched, clients, seeds, rounds),
            "NumPy, two threads": partial(peers.numpy_batched, clients, seeds, rounds, 2),
        },
        turns,
    )
    steps, name = clients * seeds * rounds * R, f"{clients} x {seeds}"
    rows = [
        {
            "part": f"speed, {name} clients x seeds",
            "who": who,
            "client-steps / s": steps / statistics.median(own),
            "time / ceiling": ratio(own, times["ceiling"]),
        }
        for who, own in times.items()
    ]
    claims = [
        at_most(
            f"{name}: PoFL over the ceiling",
            ratio(times["pofl"], times["ceiling"]),
            2.5 if seeds * clients == 10 else 1.5,
        ),
        at_most(
            f"{name}: PoFL over PoFL with the paper's estimator", ratio(times["pofl"], times["pofl, paper's J"]), 1.3
        ),
        at_most(f"{name}: ProFL over PoFL", ratio(times["profl"], times["pofl"]), 2),
        at_least(f"{name}: NumPy on one thread over PoFL", ratio(times["NumPy, one thread"], times["pofl"]), 2.5),
        at_least(f"{name}: NumPy on two threads over PoFL", ratio(times["NumPy, two threads"], times["pofl"]), 1.5),
    ]
    return Part(rows, claims)


def in_turns(functions: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of every function in every turn, after one call that compiles."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(turns):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - started)
    return times


def ratio(times: list[float], others: list[float]) -> float:
    """The median over turns of one time over another.

    >>> ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    2.0
    """
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def ceiling(batches: int, rounds: int) -> Callable[[], Any]:
    """Draw (n, d) normals for every client of every seed in every step, and average them: compiled."""
    chunk = max(c for c in range(1, batches + 1) if batches % c == 0 and c * N * D <= max(block(), N * D))

    @jax.jit
    def draw(root: random.Key) -> jax.Array:
        def one(client: jax.Array, step: jax.Array) -> jax.Array:
            return jnp.mean(random.normal(random.data_key(root, client, step), N, D), axis=0)

        def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            rows = jnp.arange(batches).reshape(-1, chunk)
            means = jax.lax.map(lambda row: jax.vmap(one, (0, None))(row, step), rows)
            return total + means.reshape(batches, D), None

        return jax.lax.scan(body, jnp.zeros((batches, D)), jnp.arange(rounds * R))[0]

    return lambda: draw(random.seed_key(0)).block_until_ready()


def federations(sizes: tuple[int, ...], work: int) -> Part:
    """The same work by Flower's simulation (its start-up left out) and by pfl-research, where they are installed."""
    rows: list[dict[str, Any]] = []
    claims = []
    for clients in sizes:
        case, rounds = pricing(clients=clients), max(1, work // (clients * R))
        run = partial(simulate, case, pofl(), rounds=rounds, seeds=[0], record_every=rounds, progress=False)
        few = max(1, 2000 // (clients * R))
        loop = statistics.median(in_turns({"loop": partial(peers.numpy_loop, clients, few)}, 3)["loop"])
        ours = clients * R * rounds / statistics.median(in_turns({"pofl": run}, 5)["pofl"])
        rows += [
            _federation("profl", clients, ours),
            _federation("NumPy, one client at a time", clients, clients * R * few / loop),
        ]
        for name, here, other, bar in PEERS:
            if not here():
                rows.append(_federation(f"{name}: not installed, skipped", clients, None))
                continue
            theirs = clients * R * (few + 2) / other(clients, few + 2)
            rows.append(_federation(name, clients, theirs))
            claims.append(at_least(f"{clients} clients: profl over {name}", ours / theirs, bar))
    return Part(rows, claims)


PEERS = (
    ("Flower's simulation", peers.has_flower, peers.flower, 50),
    ("pfl-research", peers.has_pfl_research, peers.pfl_research, 8),
)


def _federation(who: str, clients: int, rate: float | None) -> dict[str, Any]:
    return {"part": "federations", "who": who, "clients": clients, "client-steps / s": rate}


def scale(seeds: int = 10, quick: bool = False, advance: Advance = nothing) -> dict[str, Any]:
    """Time against the number of clients and of samples."""
    sizes = (100, 1000) if quick else (10, 100, 1000, 10_000, 100_000)
    turns = 2 if quick else 5
    return item("scale", seeds, [partial(over_clients, sizes, turns), partial(over_samples, turns)], advance)


SCALE_PARTS = 2


def over_clients(sizes: tuple[int, ...], turns: int) -> Part:
    """One seed; past 1000 clients the time must be proportional to them."""
    rounds = {c: max(1, WORK // c) for c in sizes}
    times = in_turns({str(c): _timed(c, N, rounds[c]) for c in sizes}, turns)
    each = {c: [1e6 * t / (c * rounds[c]) for t in times[str(c)]] for c in sizes}
    rows = [
        {"part": "time against clients", "clients": c, "us / client-step": statistics.median(each[c])} for c in sizes
    ]
    grown = [(c, ratio(each[c], each[1000])) for c in sizes if c > 1000]
    name = "clients: time per client-step against 1000 clients, off by a factor of"
    return Part(rows, [at_most(f"{c:,} {name}", max(value, 1 / value), 1.2) for c, value in grown])


def over_samples(turns: int) -> Part:
    """Twenty clients, as many numbers for every n."""
    sizes = (500, 5000, 50_000)
    times = in_turns({str(n): _timed(20, n, 100_000 // n) for n in sizes}, turns)
    each = {n: [1e9 * t / (20 * 100_000 * D) for t in times[str(n)]] for n in sizes}
    rows = [{"part": "time against n", "n": n, "ns / number": statistics.median(each[n])} for n in sizes]
    value = ratio(each[50_000], each[5000])
    name = "n = 50,000: time per number against n = 5,000, off by a factor of"
    return Part(rows, [at_most(name, max(value, 1 / value), 1.2)])


def _timed(clients: int, n: int, rounds: int) -> Callable[[], Any]:
    return partial(
        simulate,
        unsolved(clients),
        pofl(),
        rounds=rounds,
        local_steps=1,
        samples=n,
        seeds=[0],
        record_every=rounds,
        progress=False,
    )


def unsolved(clients: int) -> Problem:
    """Pricing without its exact answers: finding the optimum of very many clients takes longer than the run."""
    case = pricing(clients=clients)
    return replace(case, reaction=SampledReaction(case.reaction.sample))


def memory(seeds: int = 10, quick: bool = False, advance: Advance = nothing) -> dict[str, Any]:
    """Peak memory of a process of its own: against rounds, and for a million clients."""
    million = 10_000 if quick else 1_000_000
    return item("memory", seeds, [partial(flat_in_rounds, quick), partial(many, million)], advance)


MEMORY_PARTS = 2


def flat_in_rounds(quick: bool) -> Part:
    few, more = (20, 40) if quick else (50, 2000)
    peaks = {rounds: peak(100, rounds, R, rounds // 10) for rounds in (few, more)}
    rows = [{"part": "memory against rounds", "rounds": r, "records": 11, "peak MB": mb} for r, mb in peaks.items()]
    name = f"100 clients: peak memory with {more} rounds over that with {few}"
    return Part(rows, [at_most(name, peaks[more] / peaks[few], 1.1)])


def many(clients: int) -> Part:
    used = peak(clients, 1, 1, 1)
    row = {"part": "many clients", "clients": clients, "n": N, "rounds": 1, "peak MB": used}
    return Part([row], [at_most(f"{clients:,} clients, n = {N}: peak memory", used / 1024, 6, " GiB")])


_PEAK = """
import resource, sys, profl
from profl.experiments.speed import unsolved
clients, rounds, steps, every = map(int, sys.argv[1:])
profl.simulate(
    unsolved(clients), profl.pofl(), rounds=rounds, local_steps=steps, seeds=[0], record_every=every, progress=False
)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak(clients: int, rounds: int, local_steps: int, record_every: int) -> float:
    """Peak resident megabytes of a fresh process that makes one run."""
    numbers = map(str, (clients, rounds, local_steps, record_every))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *numbers], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return float(done.stdout.splitlines()[-1])
