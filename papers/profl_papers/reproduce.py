"""Run items of the paper and of earlier ones; each result is one JSON file, and what is there is not run again.

A result is

    {"item", "title", "quick", "seeds", "seed_list", "seconds", "settings", "paper_row", "why", "versions",
     "rows": [...], "claims": [{"claim", "expected", "measured", "threshold", "holds", "paper", "far"}],
     "panels": [...], "work", "citation", "finding", "changed"}

``work`` is the paper that an item is from; its name stands for all of its items. What is said of a result (``words``)
is always the item's of today, what was measured is the file's.

It is found again when it was made by this version of profl with the same settings, seeds and length. Files are
written whole or not at all, so a run that was cut off goes on with the item it was at.
"""

from __future__ import annotations

import json
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from profl import checks
from profl.storage.atomic import atomic
from profl_papers.item import Item
from profl_papers.items import ITEMS
from profl_papers.plain import plain

PACKAGES = ("jax", "numpy", "optax")


def works() -> list[str]:
    """The papers that items are from, in the items' order."""
    return list(dict.fromkeys(item.work for item in ITEMS.values()))


def choose(names: Sequence[str]) -> list[Item]:
    """The items called ``names`` or from papers called so, in the papers' order; none or "all" is every one.

    >>> [item.name for item in choose(["fig3a", "table1"])], len(choose(["profl2024"]))
    (['table1', 'fig3a'], 15)
    """
    wanted = {checks.one_of("item", name, dict.fromkeys([*ITEMS, *works(), "all"])) for name in names}
    return [item for item in ITEMS.values() if not wanted or wanted & {"all", item.name, item.work}]


def reproduce(
    items: Sequence[Item],
    seeds: Iterable[int] = range(10),
    *,
    quick: bool = False,
    out: Path | None = None,
    force: bool = False,
    workers: int = 1,
    finished: Callable[[dict[str, Any], bool], None] = lambda result, kept: None,
) -> list[dict[str, Any]]:
    """The results of ``items``; ``finished(result, kept)`` is called after each, ``kept`` if it was there already.

    Data sets that are missing are refused before anything runs.
    """
    seeds = tuple(seeds)
    if not seeds:
        raise checks.InputError("seeds must name at least one seed")
    checks.positive_int("workers", workers)
    found = {}
    for item in items:
        if out is not None and not force and (result := find(out, item, seeds, quick)):
            found[item.name] = result
    missing = [item for item in items if item.name not in found]
    for item in missing:
        item.check_data()
        if quick and out is not None and not force:
            refuse_to_replace(out / f"{item.name}.json")
    for result in found.values():
        finished(result, True)
    for result in run_all(missing, seeds, quick, workers):
        if out is not None:
            write(out / f"{result['item']}.json", result)
        found[result["item"]] = result
        finished(result, False)
    return [found[item.name] for item in items]


def refuse_to_replace(path: Path) -> None:
    """Quick runs prove nothing: they do not take the place of full ones unasked."""
    there = read(path)
    if there is not None and not there["quick"]:
        raise checks.InputError(f"{path} holds a full run: give --quick another directory, or --force to replace it")


def run_all(items: Sequence[Item], seeds: Sequence[int], quick: bool, workers: int) -> Iterator[dict[str, Any]]:
    """Results as they come: one item after the other, or one process per worker, in the papers' order.

    Compiling and small runs keep one core busy, so two items at a time take about half as long on two cores.
    """
    if min(workers, len(items)) <= 1:
        yield from (run(item, seeds, quick) for item in items)
        return
    with ProcessPoolExecutor(min(workers, len(items)), get_context("spawn"), initializer=deaf) as pool:
        waiting = [pool.submit(run_named, item.name, seeds, quick) for item in items]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:  # nobody waits for the items under way
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise


def deaf() -> None:
    """Ctrl-C is answered by the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_named(name: str, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """``run`` by name, for another process."""
    return run(ITEMS[name], seeds, quick)


def run(item: Item, seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """One item from scratch, as plain data; refused where its settings are not those it used."""
    started = time.perf_counter()
    trial = item.trial(seeds, quick)
    found = item.run(trial)
    trial.check()
    return plain(
        identity(item, seeds, quick)
        | {
            "seeds": len(seeds),
            "seconds": time.perf_counter() - started,
            "versions": versions(),
            "rows": found.rows,
            "claims": [claim._asdict() for claim in found.claims],
            "panels": found.panels,
        }
        | words(item)
    )


def words(item: Item) -> dict[str, Any]:
    """What is said of an item's results."""
    said = ("title", "work", "citation", "why", "finding", "changed")
    return plain({name: getattr(item, name) for name in said} | {"paper_row": item.paper})


def identity(item: Item, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """What must be equal for a result to be found again."""
    settings = item.trial(seeds, quick).settings
    return plain({"item": item.name, "quick": quick, "seed_list": list(seeds), "settings": settings})


def find(out: Path, item: Item, seeds: Sequence[int], quick: bool) -> dict[str, Any] | None:
    """The result that ``out`` holds for exactly this, or None; a file that cannot be read counts as none."""
    found = read(out / f"{item.name}.json")
    if found is None or found["versions"]["profl"] != versions()["profl"]:
        return None
    wanted = identity(item, seeds, quick)
    return found | words(item) if {key: found[key] for key in wanted} == wanted else None


def read(path: Path) -> dict[str, Any] | None:
    """A result from its file; None where there is none or it is no result."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = {"item", "work", "quick", "seed_list", "settings", "versions", "rows", "claims", "panels"}
    whole = isinstance(found, dict) and complete <= found.keys() and "profl" in found["versions"]
    return found if whole else None


def read_all(out: Path) -> list[dict[str, Any]]:
    """Every result in a directory, in the paper's order."""
    if not out.is_dir():
        raise checks.InputError(f"no results in {out}: no such directory; make them with: profl reproduce --out {out}")
    found = [result | words(item) for name, item in ITEMS.items() if (result := read(out / f"{name}.json"))]
    if not found:
        raise checks.InputError(f"no results in {out}; make them with: profl reproduce --out {out}")
    return found


def write(path: Path, result: Any) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    import profl

    own = {"python": platform.python_version(), "profl": profl.__version__}  # which need not be installed
    return own | {name: metadata.version(name) for name in PACKAGES}
