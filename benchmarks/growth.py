"""``python -m benchmarks scale`` and ``memory``: how time and memory grow with clients, samples and rounds."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.peers import D, N, R
from benchmarks.timing import in_turns, ratio
from profl.cases import pricing
from profl.methods import pofl
from profl.problem.problem import Problem
from profl.problem.reaction import SampledReaction
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_most

TURNS, QUICK_TURNS = 5, 2
"""A median of five is not moved by two turns in which something else ran."""
CLIENTS, QUICK_CLIENTS = (10, 100, 1000, 10_000, 100_000), (100, 1000)
MANY = 1000
"""Clients from which on time must be proportional to their number: with fewer, what a round costs by itself shows."""
CLIENT_STEPS = 50_000
"""In one timing: 125 million normals, long beside what the clock and the start of a run cost."""
SAMPLES, FEW_CLIENTS, SAMPLES_PER_CLIENT = (500, 5000, 50_000), 20, 100_000
"""Every n draws as many numbers in all, in fewer steps."""
PROPORTIONAL = 1.2
"""The factor by which a time may be off from proportional: machines are that noisy from turn to turn."""
ROUNDS, QUICK_ROUNDS = (50, 2000), (20, 40)
RECORDS = 10
"""Of a run whose memory is measured: the records themselves do not grow with the rounds."""
FLAT = 1.1
"""How many times the memory of few rounds many may take: the same, up to what the allocator keeps."""
MILLION, QUICK_MILLION, GIBIBYTES = 1_000_000, 10_000, 6
"""A million clients on a laptop: 6 GiB is 6 kB per client, less than the 10 kB that a batch of each would take."""


def scale(seeds: int = 10, quick: bool = False) -> Bench:
    """Time against the number of clients and of samples."""
    sizes, turns = (QUICK_CLIENTS, QUICK_TURNS) if quick else (CLIENTS, TURNS)
    return Bench(timed={"clients": partial(over_clients, sizes, turns), "samples": partial(over_samples, turns)})


def over_clients(sizes: tuple[int, ...], turns: int) -> Part:
    """One seed; past 1000 clients the time must be proportional to them."""
    rounds = {c: max(1, CLIENT_STEPS // c) for c in sizes}
    times = in_turns({str(c): _one_run(c, N, rounds[c]) for c in sizes}, turns)
    each = {c: [1e6 * t / (c * rounds[c]) for t in times[str(c)]] for c in sizes}
    rows = [
        {"part": "time against clients", "clients": c, "us / client-step": statistics.median(each[c])} for c in sizes
    ]
    name = f"clients: time per client-step against {MANY} clients, off by a factor of"
    grown = [(c, ratio(each[c], each[MANY])) for c in sizes if c > MANY]
    return Part(rows, [at_most(f"{c:,} {name}", max(value, 1 / value), PROPORTIONAL) for c, value in grown])


def over_samples(turns: int) -> Part:
    """Twenty clients, as many numbers for every n."""
    times = in_turns({str(n): _one_run(FEW_CLIENTS, n, SAMPLES_PER_CLIENT // n) for n in SAMPLES}, turns)
    numbers = FEW_CLIENTS * SAMPLES_PER_CLIENT * D
    each = {n: [1e9 * t / numbers for t in times[str(n)]] for n in SAMPLES}
    rows = [{"part": "time against n", "n": n, "ns / number": statistics.median(each[n])} for n in SAMPLES]
    _, many, most = SAMPLES
    value = ratio(each[most], each[many])
    name = f"n = {most:,}: time per number against n = {many:,}, off by a factor of"
    return Part(rows, [at_most(name, max(value, 1 / value), PROPORTIONAL)])


def _one_run(clients: int, n: int, rounds: int) -> Callable[[], Any]:
    settings: dict[str, Any] = {"rounds": rounds, "local_steps": 1, "samples": n, "record_every": rounds}
    return partial(simulate, unsolved(clients), pofl(), seeds=[0], progress=False, **settings)


def unsolved(clients: int) -> Problem:
    """Pricing without its exact answers: finding the optimum of very many clients takes longer than the run."""
    case = pricing(clients=clients)
    return replace(case, reaction=SampledReaction(case.reaction.sample))


def memory(seeds: int = 10, quick: bool = False) -> Bench:
    """Peak memory of a process of its own: against rounds, and for a million clients."""
    rounds, clients = (QUICK_ROUNDS, QUICK_MILLION) if quick else (ROUNDS, MILLION)
    return Bench(timed={"rounds": partial(flat_in_rounds, *rounds), "many clients": partial(many, clients)})


def flat_in_rounds(few: int, more: int) -> Part:
    """100 clients; the start is a record, too."""
    peaks = {rounds: peak(100, rounds, R, rounds // RECORDS) for rounds in (few, more)}
    rows = [
        {"part": "memory against rounds", "rounds": rounds, "records": RECORDS + 1, "peak MB": megabytes}
        for rounds, megabytes in peaks.items()
    ]
    name = f"100 clients: peak memory with {more} rounds over that with {few}"
    return Part(rows, [at_most(name, peaks[more] / peaks[few], FLAT)])


def many(clients: int) -> Part:
    """One step of very many clients."""
    used = peak(clients, 1, 1, 1)
    row = {"part": "many clients", "clients": clients, "n": N, "rounds": 1, "peak MB": used}
    return Part([row], [at_most(f"{clients:,} clients, n = {N}: peak memory", used / 1024, GIBIBYTES, " GiB")])


ROOT = Path(__file__).parent.parent  # where the fresh process finds this package
PEAK = """
import resource, sys, profl
from benchmarks.growth import unsolved
clients, rounds, steps, every = map(int, sys.argv[1:])
profl.simulate(
    unsolved(clients), profl.pofl(), rounds=rounds, local_steps=steps, seeds=[0], record_every=every, progress=False
)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak(clients: int, rounds: int, local_steps: int, record_every: int) -> float:
    """Peak resident megabytes of a fresh process that makes one run."""
    numbers = map(str, (clients, rounds, local_steps, record_every))
    done = subprocess.run([sys.executable, "-c", PEAK, *numbers], capture_output=True, text=True, check=True, cwd=ROOT)
    return float(done.stdout.splitlines()[-1])
