"""What a directory of results becomes: ``report.html``, and ``figures/`` as PNG, SVG and PDF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profl_papers.landscape import standard
from profl_papers.panels import plot_panels
from profl_papers.report import write_report
from profl_papers.reproduce import versions
from profl_papers.reproduce import write as write_json

FORMATS = (".png", ".svg", ".pdf")


def write(directory: Path, results: Sequence[dict[str, Any]]) -> Path:
    """The page over ``results``, with the landscapes; returns where it is."""
    page = directory / "report.html"
    write_report(results, page, landscapes(directory))
    return page


def write_pictures(directory: Path, results: Sequence[dict[str, Any]]) -> None:
    """The pictures of every result, and of the landscapes; those that are newer than their result are kept."""
    figures = {result["item"]: result["panels"] for result in results} | {"landscape": landscapes(directory)}
    for name, panels in figures.items():
        made = (directory / f"{name}.json").stat().st_mtime
        paths = [directory / "figures" / f"{name}{suffix}" for suffix in FORMATS]
        if not all(path.is_file() and path.stat().st_mtime >= made for path in paths):
            plot_panels(panels, paths)


def landscapes(directory: Path) -> list[dict[str, Any]]:
    """The landscapes that the directory holds; made where there are none of this version."""
    path = directory / "landscape.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["versions"]["profl"] == versions()["profl"]:
            return list(found["panels"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    panels = standard()
    write_json(path, {"versions": versions(), "panels": panels})
    return panels
