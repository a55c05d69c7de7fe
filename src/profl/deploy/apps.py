"""The folder that Flower runs: a pyproject that points to profl's own apps, and a run's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tomli_w

COMPONENTS = {
    "serverapp": "profl.run.flower.server_app:app",
    "clientapp": "profl.run.flower.client_app:app",
}


def write_app(folder: str | os.PathLike[str], settings: Mapping[str, str | int | float | bool]) -> Path:
    """The folder of a new Flower app with these settings, which ``from_config`` and ``make_server_app`` read."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    project = {
        "name": "profl-federation",
        "version": "0.1.0",
        "description": "A profl federation",
        "dependencies": [],
    }
    app = {"publisher": "profl", "components": COMPONENTS, "config": dict(settings)}
    content = {"project": project, "tool": {"flwr": {"app": app}}}
    (place / "pyproject.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    return place
