"""Plots: risk, and excess over the optimum, against deployments; one column per case."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profl import checks
from profl.results.record import Run, mean_over_seeds
from profl.storage.atomic import atomic

STYLES = {
    "pfl": ("PFL", "#c44e52"),
    "pofl": ("PoFL", "#2f6db5"),
    "pg": ("PG", "#8172b3"),
    "rgd": ("RGD", "#dd8452"),
    "rrm": ("RRM", "#937860"),
    "profl": ("ProFL", "#208a6c"),
    "prm": ("PRM", "#e0a100"),
}
"""algorithm -> (what the legend says, colour)"""

SUFFIXES = (".png", ".svg", ".pdf")


def plot_runs(
    cases: Mapping[str, Sequence[Run]], path: str | os.PathLike[str] | None = None, jacobian: bool = False
) -> Any:
    """Each run's mean over seeds with a band from the lowest to the highest seed, and lines at PO and PS.

    Where the exact risk is not known, there is one panel with the clients' own. ``jacobian`` adds a panel with the
    error of the Jacobians, as the clients state it and as it is. Returns the figure, written where there is a path.
    """
    if path is not None:
        suffix_of(path)  # refused before anything is drawn
    exact = all(run.exact for runs in cases.values() for run in runs)
    rows = (2 if exact else 1) + jacobian
    figure = new_figure(5.2 * len(cases), 3.1 * rows)
    panels = figure.subplots(rows, len(cases), squeeze=False, sharex="col")
    for column, (name, runs) in zip(panels.T, cases.items(), strict=True):
        upper, *more = column
        upper.set_title(name, loc="left", fontweight="bold")
        _panel(upper, runs, "risk" if exact else "own")
        upper.set_ylabel("performative risk" if exact else "the clients' own risk")
        if exact:
            upper.axhline(runs[0].optimum_risk, color="0.15", lw=1, ls="--", label="optimum (PO)")
            upper.axhline(runs[0].stable_risk, color="0.15", lw=1, ls=":", label="stable point (PS)")
            lower = more.pop(0)
            _panel(lower, runs, "excess")
            lower.set_yscale("log")
            lower.set_ylabel("excess over the optimum (log scale)")
        upper.legend(frameon=False, fontsize=8)
        for panel in more:
            _jacobian_panel(panel, runs)
        column[-1].set_xlabel("deployments per client")
    if path is not None:
        save_figure(figure, path)
    return figure


def new_figure(width: float, height: float) -> Any:
    """A figure that a notebook shows, whether or not pyplot is in use; sizes are in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'profl[report]'") from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def suffix_of(path: str | os.PathLike[str]) -> str:
    return checks.one_of("plot suffix", os.path.splitext(checks.path("path", path))[1].lower(), SUFFIXES)


def save_figure(figure: Any, path: str | os.PathLike[str], **options: Any) -> None:
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix_of(path)[1:], **options)


def style_axis(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def plot_excess(rows: Mapping[str, Mapping[str, Sequence[Run]]], path: str | os.PathLike[str]) -> None:
    """Excess over the optimum against deployments: one row per state of the world, one column per case.

    ``rows`` is {what the row shows: {case: runs}}; a column has one scale, so that rows can be compared.
    """
    suffix_of(path)  # refused before anything is drawn
    columns = max(map(len, rows.values()))
    figure = new_figure(5.2 * columns, 3.1 * len(rows))
    panels = figure.subplots(len(rows), columns, squeeze=False, sharex="col", sharey="col")
    for line, (what, cases) in zip(panels, rows.items(), strict=True):
        for panel, (name, runs) in zip(line, cases.items(), strict=True):
            panel.set_title(f"{name}, {what}", loc="left", fontweight="bold", fontsize=10)
            panel.set_yscale("log")
            _panel(panel, runs, "excess")
            gap = runs[0].stable_risk - runs[0].optimum_risk
            panel.axhline(gap, color="0.15", lw=1, ls=":", label="stable point (PS)")
        line[0].set_ylabel("excess over the optimum")
        line[0].legend(frameon=False, fontsize=8)
        line[-1].legend(frameon=False, fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("deployments per client")
    save_figure(figure, path)


def _jacobian_panel(panel: Any, runs: Sequence[Run]) -> None:
    """Root mean square error of an entry of J against deployments."""
    measured = [(number, run) for number, run in enumerate(runs) if run.jacobian_error is not None]
    if not measured:
        raise checks.InputError("no run here estimates a Jacobian whose error was measured: leave jacobian out")
    for number, run in measured:
        label, colour = STYLES.get(run.algorithm, (run.algorithm, f"C{number}"))
        per_client = run.deployments.mean(axis=0) / run.settings["clients"]
        for values, what, dash in ((run.jacobian_off, "true", "-"), (run.jacobian_error, "stated", "--")):
            if values is not None:
                panel.plot(per_client, mean_over_seeds(run, values), dash, color=colour, label=f"{label}, {what}")
    panel.set_yscale("log")
    panel.set_ylabel("error of the Jacobian (log scale)")
    panel.legend(frameon=False, fontsize=8)
    style_axis(panel)


def _panel(panel: Any, runs: Sequence[Run], name: str) -> None:
    for number, run in enumerate(runs):
        label, colour = STYLES.get(run.algorithm, (run.algorithm, f"C{number}"))
        per_client = run.deployments.mean(axis=0) / run.settings["clients"]
        values, low, high = _series(run, name)
        panel.plot(per_client, mean_over_seeds(run, values), color=colour, label=label, lw=1.8)
        good = ~run.diverged
        if good.any():
            panel.fill_between(per_client, low[good].min(0), high[good].max(0), color=colour, alpha=0.18, lw=0)
    style_axis(panel)


def _series(run: Run, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A figure with its band, seeds x records: over seeds, or over clients where each told its own."""
    if name == "own" and run.live is not None:
        return run.live.risk, run.live.low, run.live.high
    own = run.estimated_risk if run.estimated_risk is not None else run.risk
    values = {"excess": np.maximum(run.excess, 1e-9), "risk": run.risk, "own": own}[name]
    return values, values, values
