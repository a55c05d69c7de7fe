"""``python -m benchmarks campaign``: a year of weekly calls for 83 stores with 11 prices and 7 days of sales each.

The campaign and its world are those of ``examples/weekly``. A year goes by in one process; then a few weeks with a
process for every command, as cron runs them, with compiled programs kept on disk. Times are CPU seconds of all
threads: they depend less on what else a machine does, and on an idle one no call takes longer. Whether calls become
slower over the year is counted in calls of Python functions, which is exact; what is compiled has fixed shapes.
"""

from __future__ import annotations

import cProfile
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from profl.campaign import Campaign
from profl.methods import prm
from profl.objects import import_object
from profl_papers.claims import Part, at_most

ROOT = Path(__file__).parent.parent
WORLD = ROOT / "examples" / "weekly"
WEEKS, QUICK_WEEKS, QUICK_STORES = 52, 6, 3
PROCESS_WEEKS = 4
EARLY = 3
"""The week, the first one being 0, that the last one is compared with; the first two compile."""
CALL_BAR, PROCESS_BAR, SIZE_BAR, GROWTH_BAR = 1.0, 4.0, 200.0, 1.1
"""Seconds of a call, of a process; MB of the database; the last week's function calls over those of week ``EARLY``."""


def bench(seeds: int = 10, quick: bool = False) -> Bench:
    """``seeds`` play no part."""
    stores = WORLD.joinpath("stores.csv").read_text(encoding="utf-8").split("\n")[1:-1]
    chosen, weeks = (stores[:QUICK_STORES], QUICK_WEEKS) if quick else (stores, WEEKS)
    few = 3 if quick else PROCESS_WEEKS  # the second week compiles
    return Bench(timed={"a year": partial(year, chosen, weeks), "processes": partial(processes, chosen, few)})


def year(stores: list[str], weeks: int) -> Part:
    """All weeks in one process."""
    problem, sell = import_object(f"{WORLD}/problem.py:problem"), import_object(f"{WORLD}/sales.py:sell")
    times: dict[str, list[Any]] = {"ask": [], "tell": []}
    calls: dict[str, list[Any]] = {"ask": [], "tell": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prices.db"
        with Campaign(f"sqlite:///{file}", problem, prm(), stores, samples=7, deadline=10) as campaign:
            for week in range(weeks):
                count = week in (EARLY, weeks - 1)
                measure: Callable[[Callable[[], Any]], tuple[Any, float]] = counted if count else timed
                found = calls if count else times
                deployments, figure = measure(campaign.ask)
                found["ask"].append(figure)
                _, figure = measure(partial(campaign.tell_frame, sell(deployments.frame())))
                found["tell"].append(figure)
        size = sum(part.stat().st_size for part in Path(folder).iterdir()) / 2**20
    rows, claims = [], []
    for name, seconds in times.items():
        later = seconds[2:]
        usual = statistics.median(later)
        rows.append({"part": f"{name}, in one process", "unit": "CPU s", "first": seconds[0], "usual": usual})
        rows[-1] |= {"slowest": max(later), "last": later[-1]}
        early, last = calls[name]
        rows.append({"part": f"{name}, function calls", "unit": "calls", "first": early, "last": last})
        claims.append(at_most(f"{name}, once compiled: CPU seconds", usual, CALL_BAR))
        claims.append(
            at_most(f"{name}, function calls in the last week over week {EARLY + 1}", last / early, GROWTH_BAR)
        )
    rows.append({"part": f"database after {weeks} weeks", "unit": "MB", "last": size})
    claims.append(at_most("size of the database, MB", size, SIZE_BAR))
    return Part(rows, claims)


def processes(stores: list[str], weeks: int) -> Part:
    """A process for every command; the first weeks fill the cache of compiled programs."""
    times: dict[str, list[float]] = {"ask": [], "tell": [], "status": [], "page": []}
    with tempfile.TemporaryDirectory() as folder:
        own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
        own |= {"XDG_CACHE_HOME": f"{folder}/cache", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

        def call(*words: str) -> None:
            command = [sys.executable, "-m", "profl", "campaign", *words, "--db", "prices.db", "--quiet"]
            subprocess.run(command, check=True, env=own, cwd=folder)

        (Path(folder) / "stores.csv").write_text("client\n" + "\n".join(stores) + "\n", encoding="utf-8")
        spec = f"{WORLD}/problem.py:problem"
        call("new", spec, "--clients", "stores.csv", "--samples", "7")
        for _ in range(weeks):
            times["ask"].append(of_children(partial(call, "ask", "--csv", "next_week.csv")))
            outside = [sys.executable, str(WORLD / "sales.py"), "next_week.csv", "sales.csv"]
            subprocess.run(outside, check=True, env=own, cwd=folder)
            times["tell"].append(of_children(partial(call, "tell", "--csv", "sales.csv")))
        call("ask")
        for name, words in (("status", ()), ("page", ("--out", "page.html"))):
            times[name] = [of_children(partial(call, name, *words)) for _ in range(2)]
    rows, claims = [], []
    for name, found in times.items():
        rows.append({"part": f"{name}, a process", "unit": "CPU s", "first": found[0], "last": found[-1]})
        claims.append(at_most(f"{name}, a fresh process: CPU seconds", found[-1], PROCESS_BAR))
    return Part(rows, claims)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """(what the call gives, its CPU seconds)."""
    began = time.process_time()
    return call(), time.process_time() - began


def counted(call: Callable[[], Any]) -> tuple[Any, int]:
    """(what the call gives, how many functions it calls)."""
    profile = cProfile.Profile()
    given = profile.runcall(call)
    return given, sum(entry.callcount for entry in profile.getstats())


def of_children(call: Callable[[], Any]) -> float:
    """CPU seconds of the processes that the call starts and waits for."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    began = spent()
    call()
    return spent() - began
