"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


class atomic:
    """``with atomic(path) as temporary``: what is written to ``temporary`` becomes ``path`` only if nothing failed.

    A ``private`` file can be read by its owner alone, and so can a folder that is made for it.
    """

    def __init__(self, path: str | os.PathLike[str], private: bool = False) -> None:
        self.path, self.private = Path(path), private

    def __enter__(self) -> Path:
        self.path.parent.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(mode=0o700 if self.private else 0o777, exist_ok=True)
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
        os.chmod(self.temporary, 0o600 if self.private else 0o666 & ~_umask())
        os.replace(self.temporary, self.path)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """``content`` as JSON for people to read, and a line end; arrays and their numbers become lists and numbers."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, default=_plain) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """What JSON does not know: a float32 is no float to it, and a benchmark of minutes is not lost for that."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
