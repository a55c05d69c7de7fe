"""Panels of reproduced results, as plain data, drawn with matplotlib: lines with bands, and landscapes of a risk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profl.results.plots import STYLES, new_figure, save_figure, style_axis, suffix_of

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
    suffixes = [*map(suffix_of, paths)]
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
            save_figure(figure, path, metadata=date)


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
    style_axis(axis)


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
