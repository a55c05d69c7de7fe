"""What a benchmark is, and how it is run: part after part, each written to the file when it is done.

A benchmark is a function ``bench(seeds, quick) -> Bench``. Its parts run side by side in processes, those that read a
clock one after the other when nothing else runs, and what is said of all of them is made of their rows. The file is

    {"items": [{"item", "seeds", "quick", "source", "seconds", "missing", "parts", "rows", "claims"}]}

``parts`` says how many rows and claims each finished part has, in their order, and how long it took; ``missing`` names
those that are not finished. A second call with the same file, settings and source runs these and no others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from profl import checks
from profl.data.dataset import MissingDataError
from profl.storage.atomic import is_stream, write_json
from profl_papers import pieces
from profl_papers.claims import Part
from profl_papers.plain import plain

Row = dict[str, Any]
LEFT_OUT = "left out"


class Bench(NamedTuple):
    """Named parts, in the order in which they are shown.

    ``parts`` can be sent to another process and share nothing; ``timed`` run alone, in this one; ``of_all`` gets the
    rows of all of them as the file has them.
    """

    parts: Mapping[str, Callable[[], Part]] = {}
    timed: Mapping[str, Callable[[], Part]] = {}
    of_all: Callable[[Sequence[Row]], Part] | None = None


class Done(NamedTuple):
    """A finished part, as plain data."""

    seconds: float
    rows: list[Row]
    claims: list[dict[str, Any]]

    @property
    def left_out(self) -> bool:
        """Whether its data were missing: such a part runs again."""
        return any(row.get("part") == LEFT_OUT for row in self.rows)


Stated = dict[str, Any]
"""The name of a benchmark, its settings and its source: what must be equal for a file to be gone on with."""
Finished = Callable[[str, Done, int, int], None]
"""Told of every part that is finished: its name, what it found, how many are, of how many."""


def run(
    stated: Stated,
    bench: Bench,
    path: Path | None = None,
    fresh: bool = False,
    workers: int = 1,
    finished: Finished = lambda name, done, count, total: None,
) -> dict[str, Any]:
    """The whole result; the parts that ``path`` holds are taken from it, unless ``fresh``, and the others added."""
    names = [*bench.parts, *bench.timed]
    kept = {} if fresh or path is None else stored(path, stated)
    done = {name: kept[name] for name in names if name in kept and not kept[name].left_out}
    for count, name in enumerate(done, 1):
        finished(name, done[name], count, len(names))
    for group, most in ((bench.parts, workers), (bench.timed, 1)):
        calls = {name: partial(finish, part) for name, part in group.items() if name not in done}
        for name, found in pieces.results(calls, most):
            done[name] = found
            if path is not None and not is_stream(path):
                write_json(path, {"items": [result(stated, names, done)]})
            finished(name, found, len(done), len(names))
    whole = result(stated, names, done, bench.of_all)
    if path is not None:
        write_json(path, {"items": [whole]})
    return whole


def finish(part: Callable[[], Part]) -> Done:
    """Run a part. Compiled code is forgotten after it, lest memory run out: parts share none."""
    started = time.perf_counter()
    try:
        found = part()
    except MissingDataError as error:
        found = Part([{"part": LEFT_OUT, "why": str(error)}], [])
    finally:
        jax.clear_caches()
    claims = [claim._asdict() for claim in found.claims]
    return Done(time.perf_counter() - started, plain(found.rows), plain(claims))


def result(
    stated: Stated,
    names: Sequence[str],
    done: Mapping[str, Done],
    of_all: Callable[[Sequence[Row]], Part] | None = None,
) -> dict[str, Any]:
    """The finished parts in the form of the file, and where none is missing what is said of all of them."""
    parts = {name: done[name] for name in names if name in done}
    rows = [row for part in parts.values() for row in part.rows]
    claims = [claim for part in parts.values() for claim in part.claims]
    missing = [name for name in names if name not in done]
    if of_all is not None and not missing:
        found = of_all(rows)
        rows, claims = rows + plain(found.rows), claims + plain([claim._asdict() for claim in found.claims])
    sizes = [
        {"part": name, "seconds": part.seconds, "rows": len(part.rows), "claims": len(part.claims)}
        for name, part in parts.items()
    ]
    seconds = sum(part.seconds for part in parts.values())
    return stated | {"seconds": seconds, "missing": missing, "parts": sizes, "rows": rows, "claims": claims}


def stored(path: Path, stated: Stated) -> dict[str, Done]:
    """The finished parts that a file holds; a file of anything else is refused."""
    if is_stream(path) or not path.exists() or not path.stat().st_size:
        return {}
    try:
        (found,) = json.loads(path.read_text(encoding="utf-8"))["items"]
        other = [f"{key} {found[key]!r}, not {value!r}" for key, value in stated.items() if found[key] != value]
        rows, claims, parts = iter(found["rows"]), iter(found["claims"]), {}
        for part in found["parts"]:
            own = [next(rows) for _ in range(part["rows"])], [next(claims) for _ in range(part["claims"])]
            parts[part["part"]] = Done(part["seconds"], *own)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        other = ["no parts of a benchmark"]
    if other:
        raise checks.InputError(f"{path} has {'; '.join(other)}: name another file, or start over with --fresh")
    return parts
