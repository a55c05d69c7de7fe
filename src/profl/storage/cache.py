"""Where this user's caches lie: fetched data sets, compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/profl on every platform, or the platform's own place for caches."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "profl"
    import platformdirs

    return platformdirs.user_cache_path("profl", appauthor=False)
