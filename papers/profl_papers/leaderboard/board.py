"""Run the leaderboard: draw, play, write after every problem, go on where a run was cut off.

The result is one JSON file beside the page:

    {"seed", "drawn": "now" or "given", "quick", "settings", "versions", "complete",
     "methods": [{"name", "identity", "text", "local_steps", "own", "late"}],
     "problems": [{"facts", "cells": {method: {condition: cell}}, "made": {method: identity}}], "standings": [...]}

A cell is found again when the same code made it for the same seed and length (and, of a user's own method, from the
same file), so a method that is added later runs alone. It is marked ``late``: the problems were known when it came.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from profl import checks
from profl_papers import pieces
from profl_papers.leaderboard import play, sealed
from profl_papers.leaderboard.entries import ENTRIES, Entry
from profl_papers.leaderboard.standings import standings
from profl_papers.reproduce import load, versions, write

Board = dict[str, Any]
MADE_BY = ("profl", "source", "jax")


def new_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(sealed.SEED_BITS)


def open_board(file: Path, seed: int | None, quick: bool, force: bool) -> Board:
    """The board that ``file`` holds, if it is this one; else an empty one, with ``seed`` or a new one.

    A board of another seed or length is refused, lest it be lost. One that other code made is begun anew: for that code
    its problems would be no secret.
    """
    there = None if force else load(file)
    if there is None or not is_board(there):
        return empty(new_seed() if seed is None else seed, seed is not None, quick)
    if there["quick"] != quick or seed not in (None, there["seed"]):
        kind = "quick" if there["quick"] else "full"
        raise checks.InputError(
            f"{file} holds a {kind} run of seed {there['seed']}: give --out another place, or --force to replace it"
        )
    if any(there["versions"].get(name) != versions()[name] for name in MADE_BY):
        return empty(new_seed() if seed is None else seed, seed is not None, quick)
    return there


def is_board(found: Any) -> bool:
    return isinstance(found, dict) and {"seed", "drawn", "quick", "versions", "methods", "problems"} <= found.keys()


def empty(seed: int, given: bool, quick: bool) -> Board:
    """A board before its first problem."""
    checks.positive_int("seed", seed, least=0, most=2**sealed.SEED_BITS - 1)
    length = play.QUICK if quick else play.FULL
    settings = {
        "problems": len(sealed.slots(quick)),
        "rounds": length.rounds,
        "seeds": length.seeds,
        "junk": sealed.JUNK,
        "hostile": sealed.HOSTILE,
        "reached": play.REACHED,
    }
    about = {"seed": seed, "drawn": "given" if given else "now", "quick": quick, "settings": settings}
    return {**about, "versions": versions(), "methods": [], "problems": [], "standings": [], "complete": False}


def run(
    board: Board,
    entries: Sequence[Entry],
    file: Path,
    *,
    workers: int = 1,
    finished: Callable[[Board, int], None] = lambda board, done: None,
) -> Board:
    """``board`` with the cells of ``entries``, written to ``file`` after every problem.

    ``finished(board, done)`` is called after each problem that ran, with the number of those that are done.
    """
    checks.positive_int("workers", workers)
    total = board["settings"]["problems"]
    problems = {problem["facts"]["number"] - 1: problem for problem in board["problems"]}
    board = board | {"methods": _methods(board, entries)}
    missing = {number: _missing(problems.get(number), entries) for number in range(total)}
    calls = {
        str(number): partial(play.play_problem, board["seed"], number, board["quick"], names)
        for number, names in missing.items()
        if names
    }
    done = total - len(calls)
    for number, result in pieces.results(calls, workers):
        old = problems.get(int(number), {"cells": {}, "made": {}})
        kept = {name: {**old[name], **result[name]} for name in ("cells", "made")}
        problems[int(number)] = {"facts": result["facts"], **kept}
        done += 1
        board = ordered(board, problems, done == total)
        write(file, board)
        finished(board, done)
    board = ordered(board, problems, done == total)
    write(file, board)
    return board


def ordered(board: Board, problems: dict[int, Any], complete: bool) -> Board:
    """The board with its problems in order and the standings over them."""
    rows = [problems[number] for number in sorted(problems)]
    names = [each["name"] for each in board["methods"]]
    return board | {"problems": rows, "standings": standings(rows, names), "complete": complete}


def _methods(board: Board, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Those of the board and those that come to it now; ``late``: when the problems were known already."""
    known = {each["name"]: each for each in board["methods"]}
    for each in entries:
        old = known.get(each.name)
        changed = old is not None and old["identity"] != each.identity
        late = (board["complete"] and (old is None or changed)) or (old is not None and old["late"])
        known[each.name] = {
            "name": each.name,
            "identity": each.identity,
            "text": each.text,
            "local_steps": each.local_steps,
            "own": each.name not in ENTRIES,
            "late": late,
        }
    return list(known.values())


def _missing(problem: Any, entries: Sequence[Entry]) -> list[list[str]]:
    """The identities of entries that have no cells on a problem, or only those of another file."""
    made = {} if problem is None else problem["made"]
    return [each.identity for each in entries if made.get(each.name) != each.identity]
