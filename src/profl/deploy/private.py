"""Files and folders that are for their owner alone."""

from __future__ import annotations

import os
from pathlib import Path


def private_folder(folder: Path) -> Path:
    """The folder with mode 0700, created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def private_file(path: Path, content: str | None = None) -> Path:
    """The file with mode 0600 from its creation on; ``content`` replaces what it holds, if given."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        if content is not None:
            file.truncate()
            file.write(content)
    return path
