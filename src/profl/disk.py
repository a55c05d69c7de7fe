"""Files that are written whole or not at all, and the sum that tells whether they still are."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


class atomic:
    """``with atomic(path) as temporary``: what is written to ``temporary`` becomes ``path`` only if nothing failed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=self.path.suffix, dir=self.path.parent)
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self.temporary.unlink(missing_ok=True)
            return
        with open(self.temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(self.temporary, 0o666 & ~_umask())
        os.replace(self.temporary, self.path)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def digest(arrays: dict[str, np.ndarray]) -> str:
    """sha256 over the names, types, shapes and numbers of named arrays."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()
