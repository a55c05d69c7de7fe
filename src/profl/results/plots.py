"""Plots in one house style: risk, and excess over the optimum, against deployments; one column per case."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profl import checks
from profl.results.files import atomic
from profl.results.record import Run, mean_over_seeds

STYLES = {
    "pfl": ("PFL", "#c44e52"),
    "pofl": ("PoFL", "#2f6db5"),
    "pg": ("PG", "#8172b3"),
    "rgd": ("RGD", "#dd8452"),
    "rrm": ("RRM", "#937860"),
    "profl": ("ProFL", "#208a6c"),
}
"""algorithm -> (what the legend says, colour)"""

_SUFFIXES = (".png", ".svg", ".pdf")


def plot_runs(cases: Mapping[str, Sequence[Run]], path: str | os.PathLike[str]) -> None:
    """Each run's mean over seeds with a band from the lowest to the highest seed, and lines at PO and PS."""
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    checks.one_of("plot suffix", suffix, _SUFFIXES)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'profl[report]'") from error

    figure = Figure(figsize=(5.2 * len(cases), 6.2), layout="constrained")
    panels = figure.subplots(2, len(cases), squeeze=False, sharex="col")
    for (upper, lower), (name, runs) in zip(panels.T, cases.items(), strict=True):
        upper.set_title(name, loc="left", fontweight="bold")
        _panel(upper, runs, "risk")
        upper.axhline(runs[0].optimum_risk, color="0.15", lw=1, ls="--", label="optimum (PO)")
        upper.axhline(runs[0].stable_risk, color="0.15", lw=1, ls=":", label="stable point (PS)")
        upper.set_ylabel("performative risk")
        upper.legend(frameon=False, fontsize=8)
        _panel(lower, runs, "excess")
        lower.set_yscale("log")
        lower.set_ylabel("excess over the optimum (log scale)")
        lower.set_xlabel("deployments per client")
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix[1:])


def _panel(panel: Any, runs: Sequence[Run], name: str) -> None:
    for number, run in enumerate(runs):
        label, colour = STYLES.get(run.algorithm, (run.algorithm, f"C{number}"))
        per_client = run.deployments.mean(axis=0) / run.settings["clients"]
        values = np.maximum(run.excess, 1e-9) if name == "excess" else run.risk
        panel.plot(per_client, mean_over_seeds(run, values), color=colour, label=label, lw=1.8)
        good = values[~run.diverged]
        if len(good):
            panel.fill_between(per_client, good.min(0), good.max(0), color=colour, alpha=0.18, lw=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
