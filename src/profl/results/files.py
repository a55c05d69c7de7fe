"""Runs on disk: one file, written whole or not at all, refused when cut short.

The file is a numpy ``.npz`` archive: every array of the run, and one JSON text with the rest and the sha256 of the
arrays. A zip archive keeps its directory at the end, so a file that was cut off does not open.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from profl import checks
from profl.methods.intervals import Posterior
from profl.parts.privacy import PrivacyAccount
from profl.parts.sharing import Jacobians
from profl.results.record import SERIES, Distrusted, Live, Run
from profl.storage import archive
from profl.storage.atomic import atomic
from profl.storage.hashes import sha256
from profl.storage.paths import check_file

FORMAT = 5
OLD_FORMAT = 4  # its sha256 is over the arrays alone
_ARRAYS = ("rounds", "dropped", *SERIES)
_TREES = ("theta", "optimum", "stable", "final", "live", "info", "privacy", "posterior")
_SEQUENCES: dict[str, Any] = {"jacobians": Jacobians, "list": list, "tuple": tuple}  # the first that fits
_PLAIN = ("case", "algorithm", "settings", "seeds", "first_refused", "optimum_risk", "stable_risk", "seconds")
_OPTIONAL = ("incidents", "settled", "stop_reason", "notes", "distrusted")  # plain as well; not in every file


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write ``run`` to ``path``: first to a temporary file beside it, which then takes its name."""
    check_file("path", checks.path("path", path))
    arrays = {name: np.asarray(getattr(run, name)) for name in _ARRAYS if getattr(run, name) is not None}
    shapes: dict[str, Any] = {}
    for name in _TREES:
        shapes[name] = _pack(getattr(run, name), name, arrays)
    meta = {"format": FORMAT, "trees": shapes}
    meta |= {name: getattr(run, name) for name in (*_PLAIN, *_OPTIONAL)}
    with atomic(path) as temporary:
        archive.write(temporary, arrays, meta, compressed=True)


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run back; a file that is cut short, altered or of another format is refused.

    >>> load("missing.npz")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: cannot read a run from missing.npz: no such file
    """
    message = f"cannot read a run from {checks.path('path', path)}: "
    if not Path(path).is_file():
        raise checks.InputError(message + "no such file")
    try:
        arrays, meta = archive.read_unchecked(path)
        if meta.get("format") not in (FORMAT, OLD_FORMAT):
            raise archive.DamagedFile(f"it has format {meta.get('format')!r:.40}, this version reads {FORMAT}")
        if meta["format"] == FORMAT:
            archive.verify(arrays, meta)
        elif (actual := sha256(sorted(arrays.items()))) != meta["sha256"]:
            raise archive.DamagedFile(f"its sha256 is {actual}, the file says {checks.words(meta['sha256'])}")
        return _run(arrays, meta)
    except archive.DamagedFile as error:
        raise checks.InputError(message + str(error)) from error
    except Exception as error:  # a text that says what no run says
        raise checks.InputError(message + f"it is no run ({type(error).__name__}: {checks.words(error)})") from error


def _run(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Run:
    plain: dict[str, Any] = {name: meta[name] for name in _PLAIN}
    plain["seeds"] = tuple(plain["seeds"])
    plain["first_refused"] = tuple(tuple(pair) if pair else None for pair in plain["first_refused"])
    models: dict[str, Any] = {name: _unpack(meta["trees"].get(name), arrays) for name in _TREES}
    models["info"] = models["info"] or {}
    models["live"] = None if models["live"] is None else Live(*models["live"])
    models["privacy"] = _spent(models["privacy"])
    models["posterior"] = None if models["posterior"] is None else Posterior(*models["posterior"])
    plain["incidents"] = tuple((r, c, str(what)) for r, c, what in meta.get("incidents", []))
    plain["notes"] = tuple(meta.get("notes", []))
    plain["distrusted"] = tuple(Distrusted(*one) for one in meta.get("distrusted", []))
    for name in ("settled", "stop_reason"):
        plain[name] = tuple(meta.get(name, [None] * len(plain["seeds"])))
    series: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
    return Run(**plain, **models, **series)


def _spent(parts: Any) -> PrivacyAccount | None:
    """The account from its unpacked parts, with arrays of one number as numbers."""
    return None if parts is None else PrivacyAccount(*(part.item() if part.ndim == 0 else part for part in parts))


def _pack(tree: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The tree's structure as JSON; its leaves go into ``arrays``."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": [[key, _pack(value, f"{name}.{key}", arrays)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        kind = next(name for name, type_ in _SEQUENCES.items() if isinstance(tree, type_))
        return {kind: [_pack(value, f"{name}.{i}", arrays) for i, value in enumerate(tree)]}
    if not isinstance(tree, (np.ndarray, np.generic, jax.Array, float, int)):
        raise checks.InputError(
            f"models made of dicts, lists, tuples and arrays can be saved, got a {type(tree).__name__}"
        )
    arrays[name] = np.asarray(tree)
    return {"array": name}


def _unpack(shape: Any, arrays: dict[str, np.ndarray]) -> Any:
    if shape is None:
        return None
    (kind, content), *_ = shape.items()
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: _unpack(value, arrays) for key, value in content}
    parts = [_unpack(value, arrays) for value in content]
    return Jacobians(*parts) if kind == "jacobians" else _SEQUENCES[kind](parts)
