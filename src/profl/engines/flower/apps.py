"""The folder that Flower runs: a pyproject that points to profl's own apps, and a run's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HEAD = """[project]
name = "profl-federation"
version = "0.1.0"
description = "A profl federation"
dependencies = []

[tool.flwr.app]
publisher = "profl"

[tool.flwr.app.components]
serverapp = "profl.engines.flower.server_app:app"
clientapp = "profl.engines.flower.client_app:app"

[tool.flwr.app.config]
"""


def write_app(folder: str | os.PathLike[str], settings: Mapping[str, str | int | float | bool]) -> Path:
    """A Flower app whose run has these settings; ``federation.from_config`` and ``make_server_app`` read them."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
    (place / "pyproject.toml").write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return place


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
