"""Checkpoints: after each round, one file, written whole or not at all; the newest few are kept.

A file is a numpy archive of every array that the next round needs and of the history, and one JSON text: the format,
what the run is (its fingerprint), and the sha256 of the arrays. Random keys are not in it: they
come from (seed, client, step). It is refused when it is cut short, of another format or of another run, with what
differs.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.checks import InputError
from profl.storage.atomic import atomic
from profl.storage.fingerprint import sha256

FORMAT = 5
KEEP = 3
_NAME = re.compile(r"round-(\d{8})\.npz")


class Saved(NamedTuple):
    round: int
    state: Any
    history: Any


class Checkpoints:
    """The checkpoints of one run in one folder.

    Args:
      folder: made where it does not exist.
      fingerprint: what the run is, in words; a checkpoint with other words is refused.
      resume: go on from the newest checkpoint; False refuses a folder that has one.
      private: for the owner's eyes alone, as where there are states of clients in it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], fingerprint: dict[str, str], resume: bool = True, private: bool = False
    ) -> None:
        self.folder, self.fingerprint, self.private = Path(folder), fingerprint, private
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"checkpoint must be a folder, got the file {self.folder}")
        if not resume and self.numbers():
            raise InputError(
                f"{self.folder} holds checkpoints up to round {self.numbers()[-1]}: "
                "pass resume=True to go on from there, or choose another folder"
            )
        for left_over in self.folder.glob(".round-*.npz"):  # of a process that was killed while it wrote
            left_over.unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """The rounds of which there is a checkpoint, oldest first."""
        found = self.folder.iterdir() if self.folder.is_dir() else []
        return sorted(int(match[1]) for file in found if (match := _NAME.fullmatch(file.name)))

    def path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.npz"

    def save(self, number: int, state: Any, history: Any) -> None:
        """Write the checkpoint of a round, then remove the oldest beyond ``KEEP``."""
        arrays = {**_arrays("state", state), **_arrays("history", history)}
        meta = {"format": FORMAT, "round": number, "fingerprint": self.fingerprint}
        meta["sha256"] = sha256(sorted(arrays.items()))
        with atomic(self.path(number), self.private) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays, meta=np.array(json.dumps(meta)))
        self.remove(self.numbers()[:-KEEP])

    def remove(self, numbers: list[int]) -> None:
        """Remove the checkpoints of these rounds."""
        for number in numbers:
            self.path(number).unlink(missing_ok=True)

    def newest(self, state: Any, history: Any) -> Saved | None:
        """The newest checkpoint, in the structure of ``state`` and ``history``; None where there is none.

        Arrays of ``state`` must have the shapes of the given ones; those of ``history`` may be of any length.
        """
        numbers = self.numbers()
        return self.load(numbers[-1], state, history) if numbers else None

    def load(self, number: int, state: Any, history: Any) -> Saved:
        """The checkpoint of one round; raises ``InputError`` where it cannot be used."""
        path = self.path(number)
        arrays, meta = _read(path)
        if meta.get("format") != FORMAT:
            raise InputError(f"cannot resume from {path}: it has format {meta.get('format')!r}, not {FORMAT}")
        if (found := sha256(sorted(arrays.items()))) != meta["sha256"]:
            raise InputError(f"cannot resume from {path}: its sha256 is {found}, the file says {meta['sha256']}")
        if differing := difference(meta["fingerprint"], self.fingerprint):
            raise InputError(f"cannot resume from {path}, it is of another run: {'; '.join(differing)}")
        return Saved(
            meta["round"],
            _tree(path, "state", arrays, state, same_shape=True),
            _tree(path, "history", arrays, history, same_shape=False),
        )


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return arrays, json.loads(str(arrays.pop("meta")))
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise InputError(
            f"cannot resume from {path}: it is cut short or no checkpoint ({error}); "
            "remove the file to go on from the one before it"
        ) from error


def difference(saved: dict[str, str], own: dict[str, str]) -> list[str]:
    names = sorted(set(saved) | set(own))
    return [
        f"{name} was {saved.get(name, 'nothing')}, is {own.get(name, 'nothing')}"
        for name in names
        if saved.get(name) != own.get(name)
    ]


def _arrays(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _tree(path: Path, prefix: str, arrays: dict[str, np.ndarray], like: Any, same_shape: bool) -> Any:
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [prefix + jax.tree_util.keystr(place) for place, _ in wanted]
    if set(names) != {name for name in arrays if name.startswith(prefix)}:
        raise InputError(f"cannot resume from {path}: the {prefix} in it has other entries than this run's")
    for name, (_, leaf) in zip(names, wanted, strict=True):
        if same_shape and arrays[name].shape != np.shape(leaf):
            raise InputError(
                f"cannot resume from {path}: {name} has shape {arrays[name].shape}, this run's {np.shape(leaf)}"
            )
    return jax.tree.unflatten(structure, [arrays[name] for name in names])
