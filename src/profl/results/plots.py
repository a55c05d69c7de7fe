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
        _suffix(path)  # refused before anything is drawn
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
        _save(figure, path)
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


def _suffix(path: str | os.PathLike[str]) -> str:
    return checks.one_of("plot suffix", os.path.splitext(os.fspath(path))[1].lower(), SUFFIXES)


def _save(figure: Any, path: str | os.PathLike[str], **options: Any) -> None:
    with atomic(path) as temporary:
        figure.savefig(temporary, dpi=150, format=_suffix(path)[1:], **options)


def _style(axis: Any) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def plot_excess(rows: Mapping[str, Mapping[str, Sequence[Run]]], path: str | os.PathLike[str]) -> None:
    """Excess over the optimum against deployments: one row per state of the world, one column per case.

    ``rows`` is {what the row shows: {case: runs}}; a column has one scale, so that rows can be compared.
    """
    _suffix(path)  # refused before anything is drawn
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
    _save(figure, path)


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
    _style(panel)


def _panel(panel: Any, runs: Sequence[Run], name: str) -> None:
    for number, run in enumerate(runs):
        label, colour = STYLES.get(run.algorithm, (run.algorithm, f"C{number}"))
        per_client = run.deployments.mean(axis=0) / run.settings["clients"]
        values, low, high = _series(run, name)
        panel.plot(per_client, mean_over_seeds(run, values), color=colour, label=label, lw=1.8)
        good = ~run.diverged
        if good.any():
            panel.fill_between(per_client, low[good].min(0), high[good].max(0), color=colour, alpha=0.18, lw=0)
    _style(panel)


def _series(run: Run, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A figure with its band, seeds x records: over seeds, or over clients where each told its own."""
    if name == "own" and run.live is not None:
        return run.live.risk, run.live.low, run.live.high
    own = run.estimated_risk if run.estimated_risk is not None else run.risk
    values = {"excess": np.maximum(run.excess, 1e-9), "risk": run.risk, "own": own}[name]
    return values, values, values


PALETTE = ("#208a6c", "#2f6db5", "#c44e52", "#8172b3", "#dd8452", "#937860", "#4c9fb0", "#b0578d")


def colours(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """One colour per line: the method's own where each line is another method, else one after the other.

    >>> colours([{"label": "PFL", "method": "pfl"}, {"label": "ProFL", "method": "profl"}])
    ['#c44e52', '#208a6c']
    """
    methods = [line.get("method", "") for line in lines]
    if len(set(methods)) == len(methods) and set(methods) <= STYLES.keys():
        return [STYLES[method][1] for method in methods]
    return [PALETTE[i % len(PALETTE)] for i in range(len(lines))]


def plot_panels(
    panels: Sequence[Mapping[str, Any]], paths: Sequence[str | os.PathLike[str]], columns: int | None = None
) -> None:
    """The panels of a result or a landscape, written to each of ``paths`` (PNG, SVG or PDF by suffix).

    All side by side, unless ``columns`` says how many.
    """
    suffixes = [*map(_suffix, paths)]
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    figure = new_figure(4.6 * columns, 3.9 * rows)
    import matplotlib

    # Fixed names inside SVG and no date in any file: the same result gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "profl"}):
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, spec in zip(axes, panels, strict=False):
            axis.set_title(spec["title"], loc="left", fontweight="bold", fontsize=10)
            axis.set_xlabel(spec["x"])
            axis.set_ylabel(spec["y"])
            (_draw_landscape if spec.get("kind") == "landscape" else _draw_lines)(axis, spec)
        for path, suffix in zip(paths, suffixes, strict=True):
            date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
            _save(figure, path, metadata=date)


def _draw_lines(axis: Any, spec: Mapping[str, Any]) -> None:
    for line, colour in zip(spec["lines"], colours(spec["lines"]), strict=True):
        x, middle, low, high = (np.array(line[key], dtype=float) for key in ("x", "mean", "low", "high"))
        if spec["scale"] == "log":
            middle, low, high = (np.where(values > 0, values, np.nan) for values in (middle, low, high))
            low = np.where(np.isnan(low), np.nanmin(middle, initial=np.inf), low)
        axis.plot(x, middle, color=colour, lw=1.8, label=line["label"])
        axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    for level in spec["levels"]:
        dash = "--" if "PO" in level["label"] else ":"
        axis.axhline(level["value"], color="0.15", lw=1, ls=dash, label=level["label"])
    axis.set_yscale(spec["scale"])
    axis.legend(frameon=False, fontsize=8)
    _style(axis)


def _draw_landscape(axis: Any, spec: Mapping[str, Any]) -> None:
    at, risk = np.array(spec["at"]), np.array(spec["risk"])
    shades = np.searchsorted(np.sort(risk.ravel()), risk) / risk.size  # by rank: a steep wall does not hide the valley
    axis.contourf(at, at, shades, levels=14, cmap="RdYlBu_r", alpha=0.9)
    axis.plot(at[[0, -1]], at[[0, -1]], color="black", lw=1, ls="--")
    for line, colour in zip(spec["lines"], colours(spec["lines"]), strict=True):
        axis.plot(line["data"], line["model"], color="white", lw=3.5)
        axis.plot(line["data"], line["model"], color=colour, lw=1.8, label=line["label"])
    for point in spec["points"]:
        axis.plot(point["value"], point["value"], "o", mfc="white", mec="black", mew=1.5, ms=7)
        style = {"textcoords": "offset points", "xytext": (8, -12), "fontweight": "bold"}
        axis.annotate(point["label"], (point["value"], point["value"]), **style)
    axis.set_xlim(at[0], at[-1])
    axis.set_ylim(at[0], at[-1])
    axis.legend(fontsize=8, loc="upper left")
