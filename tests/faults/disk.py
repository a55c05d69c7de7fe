"""Faults of a checkpoint folder: damaged and lost files, files that somebody else put there, links, pipes, copies.

A run whose states tell every round from every other saves its rounds with ``Checkpoints``; between two starts its
folder suffers. Where a start is refused, the operator does what the sentence says. This must hold:

    named     a start is refused in one sentence, and the file that it says to remove is the one that was damaged
    resumed   a run goes on from its newest round; one round earlier for every round file that the operator removed
    kept      what it ends with is what a run without faults ends with; figures are unknown only where a file is gone
    locked    while a run works, nobody else gets in, whatever the process does with the folder's files
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import profl
from profl.storage import append_log
from profl.storage.checkpoints import Checkpoints
from tests.faults.common import Broken

ROUNDS = 30
DAMAGE = ("flipped history", "cut history", "flipped round", "emptied round")
STRANGERS = ("renamed", "of another run", "empty", "garbage", "of a copy")
SPECIAL = ("lock is a pipe", "history is a pipe", "lock is a folder", "history is a folder")
HARMLESS = ("torn", "copied", "restored")
LATER = 99  # the round in a stranger's name
HELD = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except OSError:
    print("held")
"""


class Fault(NamedTuple):
    kind: str
    round: int  # it happens after this round
    number: int  # which file, which byte


def schedule(seed: int) -> list[Fault]:
    """The faults of a seed; in every third nothing is lost."""
    rng = np.random.default_rng([seed, 33])
    kinds = [*STRANGERS, *SPECIAL, *HARMLESS] if seed % 3 == 0 else [*2 * DAMAGE, *STRANGERS, *SPECIAL, *HARMLESS]
    rounds = sorted(rng.choice(np.arange(2, ROUNDS), int(rng.integers(2, 7)), replace=False).tolist())
    return [Fault(kinds[rng.integers(len(kinds))], round_, int(rng.integers(2**20))) for round_ in rounds]


def work(folder: Path, first: int, last: int, look: Any = None) -> tuple[Any, list[float], int]:
    """(the state, the figure of each round, the round that it went on from) of a run up to round ``last``."""
    with Checkpoints(folder, {"run": "toy"}) as saved:
        state, lists, done = {"x": np.zeros(8)}, {"rounds": [], "said": []}, 0
        found = saved.newest(state, {"rounds": {"y": 0.0}, "said": (0, "")})
        if found is not None:
            done, state, lists = found.round, found.state, found.lists
            for name, unknown in (("rounds", {"y": np.nan}), ("said", (-1, ""))):
                lists[name] = [unknown if one is None else one for one in lists[name]]
        for number in range(done + 1, last + 1):
            state = {"x": state["x"] * 1.01 + number}
            lists["rounds"].append({"y": state["x"].sum()})
            lists["said"] += [(number, f"so it is {number}")] * (number % 3)
            saved.save(number, state, lists)
        if look is not None:
            look()
    return state["x"], [float(one["y"]) for one in lists["rounds"]], done


def hit(folder: Path, fault: Fault, last: int) -> Path | None:
    """Let it happen; the file that was damaged, which must be gone or whole before the run goes on."""
    kind, number = fault.kind, fault.number
    segments = [path for path in sorted(folder.glob("history*")) if path.suffix == ""]
    rounds = sorted(path for path in folder.glob("round-*.npz") if path.name != f"round-{LATER:08d}.npz")
    stray = folder / f"round-{LATER:08d}.npz"
    segment = segments[number % len(segments)]
    if kind in ("flipped history", "flipped round"):
        path = segment if "history" in kind else rounds[-1]
        content = bytearray(path.read_bytes())
        content[number % len(content)] ^= 1 << number % 8
        path.write_bytes(content)
        return path
    if kind == "cut history":
        os.truncate(segment, segment.stat().st_size * (number % 90) // 100)
        return segment
    if kind == "emptied round":
        rounds[-1].write_bytes(b"")
        return rounds[-1]
    if kind == "renamed":
        shutil.copy(rounds[0], stray)
    elif kind in ("of another run", "of a copy"):
        other = folder.parent / "other"
        shutil.rmtree(other, ignore_errors=True)
        if kind == "of a copy":
            shutil.copytree(folder, other)
        work(other, 0, LATER)
        shutil.copy(other / stray.name, stray)
        return stray if kind == "of a copy" else None  # it says that more of the history is lost than is
    elif kind == "empty":
        stray.write_bytes(b"")
    elif kind == "garbage":
        stray.write_bytes(np.random.default_rng(number).bytes(500))
    elif " is a " in kind:
        name, what = kind.split(" is a ")
        path = folder / "lock" if name == "lock" else segments[-1].with_name(f"{segments[-1].name}.bak")
        if name == "history":
            segments[-1].rename(path)
            path = segments[-1]
        else:
            path.unlink()
        (os.mkfifo if what == "pipe" else os.mkdir)(path)
        return path
    elif kind == "torn":
        with open(segments[-1], "ab") as file:
            file.write(np.random.default_rng(number).bytes(number % 100))
    return None


def undo(path: Path) -> None:
    """What the operator does with the file that a refusal names: put a copy back if there is one, else give it up."""
    copy = path.with_name(f"{path.name}.bak")
    if path.name.startswith("history") and path.is_file():
        path.rename(f"{path}.damaged")
    elif path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    if copy.exists():
        copy.rename(path)


def look(folder: Path, fault: Fault) -> None:
    """While the run works: this process reads all of its files, and nobody else gets in."""
    if fault.kind == "copied":
        shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
        told = subprocess.run([sys.executable, "-c", HELD, str(folder / "lock")], capture_output=True, text=True)
        if told.stdout != "held\n":
            raise Broken(f"locked: after a copy of the folder the lock is {told.stdout} {told.stderr}")


def run(seed: int, folder: Path) -> str:
    """One schedule, checked; in a line what came of it."""
    faults, folder = schedule(seed), folder / "kept"
    with mock.patch.object(append_log, "SEGMENT", 600, create=True):  # some rounds each
        whole, figures, _ = work(folder.parent / "whole", 0, ROUNDS)
        refused = removed = 0
        expected = lost_allowed = 0
        damaged: Path | None = None
        for fault in [*faults, None]:
            end = ROUNDS if fault is None else fault.round
            for _ in range(6):
                try:
                    state, told, done = work(folder, 0, end, None if fault is None else lambda f=fault: look(folder, f))
                    break
                except profl.InputError as error:
                    refused += 1
                    path = _named(str(error), folder, damaged)
                    undo(path)
                    if path.name.startswith("round") and f"{LATER}" not in path.name:
                        removed += 1
                        expected -= 1
                    lost_allowed += path.name.startswith("history") and not path.exists()
            else:
                raise Broken("end: it is refused again and again")
            if done != expected:
                raise Broken(f"resumed: from round {done}, not {expected}")
            unknown = int(np.isnan(told).sum())
            if unknown and not lost_allowed:
                raise Broken(f"kept: {unknown} figures are unknown, and no file is gone")
            good = ~np.isnan(told)
            if not np.array_equal(np.array(told)[good], np.array(figures[:end])[good]):
                raise Broken("kept: other figures")
            expected = end
            damaged = None if fault is None else hit(folder, fault, end)
    if state.tobytes() != whole.tobytes():
        raise Broken("kept: another state")
    if unknown:
        return f"ended after {refused} refusals, {unknown} of {ROUNDS} figures are unknown"
    return f"ended with equal bits after {refused} refusals, {removed} rounds made again"


def _named(error: str, folder: Path, damaged: Path | None) -> Path:
    """The file that a refusal names: the damaged one, or one that no one can read."""
    if "\n" in error:
        raise Broken(f"named: not one sentence: {error}")
    names = [folder / name for name in re.findall(r"(?:history-\d{8}|history|round-\d{8}\.npz|lock)\b", error)]
    if damaged in names:
        return damaged
    stray = folder / f"round-{LATER:08d}.npz"
    if stray in names and not zipfile.is_zipfile(stray):
        return stray
    raise Broken(f"named: {damaged and damaged.name} was damaged: {error}")
