"""Plots in one house style: risk against deployments, one panel per case, lines at the optimum and the stable point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profl import checks
from profl.results.files import atomic
from profl.results.record import Run, mean_over_seeds

COLOURS = {
    "pfl": "#c44e52",
    "pofl": "#2f6db5",
    "pg": "#8172b3",
    "rgd": "#dd8452",
    "rrm": "#937860",
    "profl": "#208a6c",
}
_SUFFIXES = (".png", ".svg", ".pdf")


def plot_runs(cases: Mapping[str, Sequence[Run]], path: str | os.PathLike[str]) -> None:
    """One panel per case: each run's mean risk, a band from its lowest to its highest seed, and lines at PO and PS."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    checks.one_of("plot suffix", suffix, _SUFFIXES)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'profl[report]'") from error

    figure = Figure(figsize=(5.2 * len(cases), 3.9), layout="constrained")
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    for panel, (name, runs) in zip(panels, cases.items(), strict=True):
        _panel(panel, name, runs)
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix[1:])


def _panel(panel: Any, name: str, runs: Sequence[Run]) -> None:
    panel.set_title(name, loc="left", fontweight="bold")
    for number, run in enumerate(runs):
        colour = COLOURS.get(run.algorithm, f"C{number}")
        per_client = run.deployments.mean(axis=0) / run.settings["clients"]
        values = run.risk if np.isfinite(run.optimum_risk) else np.full_like(run.risk, np.nan)
        good = values[~run.diverged] if not run.diverged.all() else values[:0]
        panel.plot(per_client, mean_over_seeds(run, values), color=colour, label=run.algorithm.upper(), lw=1.8)
        if len(good):
            panel.fill_between(per_client, good.min(0), good.max(0), color=colour, alpha=0.18, lw=0)
    first = runs[0]
    panel.axhline(first.optimum_risk, color="0.15", lw=1, ls="--", label="optimum (PO)")
    panel.axhline(first.stable_risk, color="0.15", lw=1, ls=":", label="stable point (PS)")
    panel.set_xlabel("deployments per client")
    panel.set_ylabel("performative risk")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    panel.legend(frameon=False, fontsize=8)
