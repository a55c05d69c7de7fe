"""A pytest plugin: the programs that every test file has XLA compile, and the seconds that this takes, at a run's end.

A program is counted where it is compiled. Loading one that is stored, in the process or in the cache on disk, takes a
hundredth of the time, and is counted apart. Tracing is counted as seconds alone. Processes that a test starts count
for themselves and are not seen here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import pytest

COMPILED, LOADED, TRACED = "compiled", "loaded", "traced"
EVENTS = {
    "/jax/core/compile/backend_compile_duration": COMPILED,  # from XLA, or from the cache on disk
    "/jax/core/compile/jaxpr_to_mlir_module_duration": TRACED,
}
HIT = "/jax/compilation_cache/cache_hits"

Counts = dict[str, list[float]]  # file -> [compiled, loaded from disk, seconds of both, seconds of lowering]


class CompileCounter:
    """Counts for the file whose test runs, or is being collected."""

    def __init__(self) -> None:
        self.counts: Counts = defaultdict(lambda: [0, 0, 0.0, 0.0])
        self.file = "while collecting"
        self.elsewhere: list[Counts] = []  # from workers

    def listen(self) -> None:
        """Count from now on, for as long as the process lives."""
        jax.monitoring.register_event_duration_secs_listener(self.on_duration)
        jax.monitoring.register_event_listener(self.on_event)

    def on_duration(self, event: str, seconds: float, **_: Any) -> None:
        """A program was lowered, or compiled or loaded."""
        row = self.counts[self.file]
        if EVENTS.get(event) == COMPILED:
            row[0] += 1
            row[2] += seconds
        elif EVENTS.get(event) == TRACED:
            row[3] += seconds

    def on_event(self, event: str, **_: Any) -> None:
        """A program came from the cache on disk: ``on_duration`` will count it as compiled."""
        if event == HIT:
            row = self.counts[self.file]
            row[0] -= 1
            row[1] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.file = item.location[0]
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["compiled"] = dict(self.counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.elsewhere.append(getattr(node, "workeroutput", {}).get("compiled", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = added(self.counts, *self.elsewhere)
        if sum(row[0] + row[1] for row in total.values()):
            for line in summary(total, terminalreporter.config.getoption("--dearest")):
                terminalreporter.write_line(line)


def added(*parts: Counts) -> Counts:
    """The counts of several processes as one."""
    total: Counts = {}
    for part in parts:
        for file, row in part.items():
            total[file] = [a + b for a, b in zip(total.get(file, [0, 0, 0.0, 0.0]), row, strict=True)]
    return total


def summary(total: Counts, dearest: int = 15) -> list[str]:
    """The lines of the summary: the sum, and the files that took longest.

    >>> print(*summary({"a.py": [2, 1, 1.5, 0.25], "b.py": [1, 0, 3.0, 0.5]}), sep=chr(10))
    3 programs compiled and 1 loaded in 4.5 s, lowered in 0.8 s; the dearest files:
          1 compiled     0 loaded    3.0 s  lowered    0.5 s  b.py
          2 compiled     1 loaded    1.5 s  lowered    0.2 s  a.py
    """
    compiled, loaded, seconds, lowered = (sum(column) for column in zip(*total.values(), strict=True))
    first = f"{compiled} programs compiled and {loaded} loaded in {seconds:.1f} s, lowered in {lowered:.1f} s"
    rows = sorted(total.items(), key=lambda item: -item[1][2] - item[1][3])[:dearest]
    return [
        f"{first}; the dearest files:",
        *(
            f"{compiled:7} compiled {loaded:5} loaded {seconds:6.1f} s  lowered {lowered:6.1f} s  {file}"
            for file, (compiled, loaded, seconds, lowered) in rows
        ),
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dearest", type=int, default=15, help="files in the summary of compiled programs")


def pytest_configure(config: pytest.Config) -> None:
    counter = CompileCounter()
    counter.listen()
    config.pluginmanager.register(counter, "compile counter")
