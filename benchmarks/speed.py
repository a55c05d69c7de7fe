"""Client-steps per second of profl and of careful NumPy, on the same work in one run (machines are noisy: read the
ratio).

    make bench                            pricing, PoFL, d = 5, n = 500, H = 20, R = 5; NumPy held to one thread
    python benchmarks/speed.py --memory   memory against rounds: what is kept is what is recorded, and nothing else

One client-step is one client drawing 2,500 normals and doing one PoFL step with them.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import time

import jax
import numpy as np

import numpy_pofl
import profl
from profl.results.tables import align

SHAPES = ((10, 1, 200), (10, 10, 100), (100, 10, 10), (1000, 1, 10))


def seconds(function, repeats: int) -> float:
    """Median wall time after one call that compiles."""
    function()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def speed(repeats: int) -> None:
    rows = [["clients x seeds", "NumPy, one thread", "profl", "ratio"]]
    for clients, seeds, rounds in SHAPES:
        case = profl.cases.pricing(clients=clients)
        steps = clients * seeds * rounds * 5
        plain = steps / seconds(lambda c=clients, s=seeds, r=rounds: numpy_pofl.run(c, s, r), repeats)
        settings = {"rounds": rounds, "seeds": range(seeds), "record_every": rounds, "progress": False}
        ours = steps / seconds(lambda c=case, kw=settings: profl.simulate(c, profl.pofl(), **kw), repeats)
        rows.append([f"{clients} x {seeds}", f"{plain:,.0f}", f"{ours:,.0f}", f"{ours / plain:.2f}"])
    print(f"client-steps per second, median of {repeats}; {platform.processor() or platform.machine()}, ", end="")
    print(f"{os.cpu_count()} cores, jax {jax.__version__}, numpy {np.__version__}\n")
    print(align(rows))


def memory() -> None:
    rows = [["rounds", "records", "peak MB"]]
    case = profl.cases.pricing(clients=100)
    for rounds in (50, 500, 5000):
        profl.simulate(case, profl.pofl(), rounds=rounds, seeds=[0], record_every=rounds // 10, progress=False)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append([f"{rounds:,}", "11", f"{peak:,.0f}"])
    print(align(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    memory() if options.memory else speed(options.repeats)
