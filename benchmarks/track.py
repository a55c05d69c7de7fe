"""The history of a benchmark: ``python -m benchmarks speed --history`` (or scale, memory) measures, appends a line to
``benchmarks/history.jsonl`` with machine and versions, and draws all lines so far to ``benchmarks/history.png``.

Ratios can be compared from line to line; times cannot, unless the machine was the same and did nothing else.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

import profl

HERE = Path(__file__).parent
HISTORY = HERE / "history.jsonl"
TRACKED = ("speed", "scale", "memory")
"""Benchmarks whose figures are compared from one version of profl to the next."""


def line(result: dict[str, Any], quick: bool) -> dict[str, Any]:
    """What is kept of a benchmark: when, where, with what, and every claim's figure."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "benchmark": result["item"],
        "quick": quick,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {jax.default_backend()}",
        "load": round(os.getloadavg()[0], 1),
        "versions": {"profl": profl.__version__, "jax": jax.__version__, "numpy": np.__version__},
        "claims": {claim["claim"]: claim["measured"] for claim in result["claims"]},
        "rows": result["rows"],
    }


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Every claim's figure over the lines of the history."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for entry in lines for name in entry["claims"]))
    figure, axes = plt.subplots(figsize=(10, 0.3 * len(names) + 2))
    for entry in lines:
        known = [name for name in names if name in entry["claims"]]
        label = f"{entry['date']}, load {entry['load']}"
        axes.plot([entry["claims"][name] for name in known], [names.index(name) for name in known], "o", label=label)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xscale("symlog", linthresh=0.1)  # numbers of programs are zero, too
    axes.set_xlabel("measured")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def append(result: dict[str, Any], quick: bool) -> None:
    """Add a benchmark's result to the history and draw all of it again."""
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line(result, quick)) + "\n")
    draw([json.loads(entry) for entry in HISTORY.read_text(encoding="utf-8").splitlines()], HERE / "history.png")
