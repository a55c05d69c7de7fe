"""Run items of the paper and of earlier ones; each result is one JSON file, and what is there is not run again.

A result is

    {"item", "title", "quick", "seeds", "seed_list", "seconds", "settings", "paper_row", "why", "versions",
     "rows": [...], "claims": [{"claim", "expected", "measured", "threshold", "holds", "paper", "far"}],
     "panels": [...], "work", "citation", "finding", "changed"}

``work`` is the paper that an item is from; its name stands for all of its items. What is said of a result (``words``)
is always the item's of today, what was measured is the file's.

It is found again when it was made by the same code with the same settings, seeds and length. Files are
written whole or not at all, so a run that was cut off goes on with the item it was at.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from profl import checks
from profl.storage.atomic import atomic, is_stream
from profl_papers import pieces
from profl_papers.item import Item
from profl_papers.items import ITEMS
from profl_papers.plain import plain
from profl_papers.profl2024.printed import SUFFIX

PACKAGES = ("jax", "numpy", "optax")


def works() -> list[str]:
    """The papers that items are from, in the items' order."""
    return list(dict.fromkeys(item.work for item in ITEMS.values()))


def choose(names: Sequence[str], literal: bool = False) -> list[Item]:
    """The items called ``names`` or from papers called so, in the papers' order; none or "all" is every one.

    Those as printed come where they are named, and with ``literal`` behind each item that has such a form.

    >>> [item.name for item in choose(["fig3a", "table1"])], len(choose(["profl2024"]))
    (['table1', 'fig3a'], 15)
    >>> [item.name for item in choose(["table1"], literal=True)]
    ['table1', 'table1-printed']
    """
    wanted = {checks.one_of("item", name, dict.fromkeys([*ITEMS, *works(), "all"])) for name in names} or {"all"}
    chosen = {
        name for name, item in ITEMS.items() if wanted & {name, item.work} or ("all" in wanted and not item.on_request)
    }
    twins = {name + SUFFIX for name in chosen if literal}
    return [item for name, item in ITEMS.items() if name in chosen | twins]


def reproduce(
    items: Sequence[Item],
    seeds: Iterable[int] = range(10),
    *,
    quick: bool = False,
    out: Path | None = None,
    file: Path | None = None,
    force: bool = False,
    workers: int = 1,
    finished: Callable[[dict[str, Any], bool], None] = lambda result, kept: None,
) -> list[dict[str, Any]]:
    """The results of ``items``; ``finished(result, kept)`` is called after each, ``kept`` if it was there already.

    ``out`` has a file for each, ``file`` all of them in one, written after every item. Data sets that are missing are
    refused before anything runs.
    """
    seeds = tuple(seeds)
    if not seeds:
        raise checks.InputError("seeds must name at least one seed")
    checks.positive_int("workers", workers)
    there = {} if force else stored(out, file, [item.name for item in items])
    found = {
        item.name: there[item.name] | words(item)
        for item in items
        if item.name in there and fits(there[item.name], item, seeds, quick)
    }
    missing = [item for item in items if item.name not in found]
    for item in missing:
        item.check_data()
        if quick and not there.get(item.name, {"quick": True})["quick"]:
            raise checks.InputError(
                f"{file if out is None else out / f'{item.name}.json'} holds a full run: "
                f"give --quick another place, or --force to replace it"
            )
    calls = {  # another process knows an item by its name
        item.name: partial(run_named, item.name, seeds, quick) if workers > 1 else partial(run, item, seeds, quick)
        for item in missing
    }
    for result in found.values():
        finished(result, True)
    for name, result in pieces.results(calls, workers):
        found[name] = result
        if out is not None:
            write(out / f"{name}.json", result)
        if file is not None and not is_stream(file):
            write(file, {"items": [found[item.name] for item in items if item.name in found]})
        finished(result, False)
    return [found[item.name] for item in items]


def stored(out: Path | None, file: Path | None, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The whole results of some items that a folder or a file holds, by name."""
    candidates = [] if out is None else [load(out / f"{name}.json") for name in names]
    if file is not None and not is_stream(file) and isinstance(together := load(file), dict):
        candidates += together.get("items", [])
    return {result["item"]: result for result in candidates if is_whole(result)}


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


def run_named(name: str, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """``run`` by name, for another process."""
    return run(ITEMS[name], seeds, quick)


def words(item: Item) -> dict[str, Any]:
    """What is said of an item's results."""
    said = ("title", "work", "citation", "why", "finding", "changed")
    return plain({name: getattr(item, name) for name in said} | {"paper_row": item.paper})


def identity(item: Item, seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """What must be equal for a result to be found again."""
    settings = item.trial(seeds, quick).settings
    return plain({"item": item.name, "quick": quick, "seed_list": list(seeds), "settings": settings})


def fits(found: dict[str, Any], item: Item, seeds: Sequence[int], quick: bool) -> bool:
    """Whether a result is exactly this one, made by this code."""
    wanted, made = identity(item, seeds, quick), ("profl", "source")
    return {key: found[key] for key in wanted} == wanted and all(
        found["versions"].get(name) == versions()[name] for name in made
    )


def load(path: Path) -> Any:
    """What a JSON file holds; None where there is none or it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_whole(found: Any) -> bool:
    """Whether it is the result of an item."""
    complete = {"item", "work", "quick", "seed_list", "settings", "versions", "rows", "claims", "panels"}
    return isinstance(found, dict) and complete <= found.keys() and "profl" in found["versions"]


def read(path: Path) -> dict[str, Any] | None:
    """A result from its file; None where there is none or it is no result."""
    found = load(path)
    return found if is_whole(found) else None


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
    own |= {"source": pieces.source("profl", "profl_papers")}
    return own | {name: metadata.version(name) for name in PACKAGES}
