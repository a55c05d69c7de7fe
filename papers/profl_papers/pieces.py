"""Work in named pieces: one after the other, or side by side in processes; and which code they were made with.

Compiling and small runs keep one core busy, so two pieces at a time take about half as long on two cores.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar

import jax

Result = TypeVar("Result")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def results(pieces: Mapping[str, Callable[[], Result]], workers: int) -> Iterator[tuple[str, Result]]:
    """The name and the result of every piece, as they come; with several workers each runs in another process.

    Pieces begin in their order. The first error ends all of them, those under way too.

    >>> list(results({"one": lambda: 1, "two": lambda: 2}, workers=1))
    [('one', 1), ('two', 2)]
    """
    if min(workers, len(pieces)) <= 1:
        yield from ((name, piece()) for name, piece in pieces.items())
        return
    for name in ONE_THREAD:  # of NumPy's linear algebra, in every process: there are as many of these as cores
        os.environ.setdefault(name, "1")
    begin = _begin, (jax.config.values["jax_compilation_cache_dir"],)
    with ProcessPoolExecutor(min(workers, len(pieces)), get_context("spawn"), *begin) as pool:
        waiting = {pool.submit(piece): name for name, piece in pieces.items()}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:  # nobody waits for the pieces under way
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def _begin(directory: str | None) -> None:
    """Ctrl-C is answered by the process that waits for this one, and compiled programs lie where its own do."""
    from profl.storage.compile_cache import cache

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if directory is not None:
        cache(directory)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def source(*packages: str) -> str:
    """Twelve digits that stand for all Python files of some packages.

    >>> source("profl") == source("profl"), source("profl") == source("profl_papers")
    (True, False)
    """
    total = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            for file in sorted(Path(folder).rglob("*.py")):
                total.update(f"{package}/{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()[:12]
