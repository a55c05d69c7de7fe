"""A campaign as a picture: its models' numbers round by round, the estimated risk, and what is left to gain."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from profl.campaign.report import Report
from profl.results.plots import new_figure, save_figure, style_axis, suffix_of

MODEL, TRIED = "#00796b", "0.72"
MOST_NUMBERS = 12
"""Numbers of a model that are drawn, one panel each; the page has more."""


def plot_report(report: Report, path: str | os.PathLike[str] | None = None) -> Any:
    """The figure, written where there is a path: a panel for each of the model's numbers, then risk and excess."""
    if path is not None:
        suffix_of(path)  # refused before anything is drawn
    names = report.names[:MOST_NUMBERS]
    forecasts = any(one.forecast for one in report.rounds)
    panels = len(names) + (1 + forecasts if report.rounds else 0)
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = new_figure(4.6 * columns, 2.9 * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[panels:]:
        axis.set_visible(False)
    for k, (axis, name) in enumerate(zip(axes, names, strict=False)):
        for i, tried in enumerate(report.deployed.values()):
            if len(tried):
                label = "deployed by a client" if i == 0 else None
                axis.plot(tried[:, 0], tried[:, k + 1], color=TRIED, lw=0.6, label=label, zorder=1)
        axis.plot(np.arange(len(report.models)), report.models[:, k], color=MODEL, lw=2, label="global model")
        axis.set(xlabel="rounds closed", ylabel=name)
        axis.set_title(name, loc="left", fontweight="bold", fontsize=10)
    if report.rounds:
        _risk(axes[len(names)], report)
        if forecasts:
            _left_to_gain(axes[len(names) + 1], report)
    for axis in axes[:panels]:
        style_axis(axis)
    for axis in [axes[0], *axes[len(names) : panels]]:
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{report.status.name}, {len(report.rounds)} rounds, {report.status.rows:,} rows of data")
    if path is not None:
        save_figure(figure, path)
    return figure


def _risk(axis: Any, report: Report) -> None:
    at = [one.number for one in report.rounds]
    known = [(one.number, one.low, one.high) for one in report.rounds if one.low is not None]
    if known:
        axis.fill_between(*zip(*known, strict=True), color=MODEL, alpha=0.18, lw=0, label="lowest to highest client")
    axis.plot(
        at, [_number(one.risk) for one in report.rounds], color=MODEL, lw=2, marker=".", label="mean of the clients"
    )
    axis.set(xlabel="round", ylabel="estimated risk: mean loss of a sample")
    axis.set_title("risk", loc="left", fontweight="bold", fontsize=10)


def _left_to_gain(axis: Any, report: Report) -> None:
    rows = [(one.number, *map(_number, one.forecast[:2])) for one in report.rounds if one.forecast]
    at, excess, error = np.array(rows).T
    low = np.maximum(excess - error, np.min(excess, where=excess > 0, initial=np.inf))
    axis.fill_between(at, low, excess + error, color=MODEL, alpha=0.18, lw=0, label="± standard error")
    axis.plot(at, excess, color=MODEL, lw=2, marker=".", label="expected")
    axis.set(xlabel="round", ylabel="excess over the optimum, per sample", yscale="log")
    axis.set_title("left to gain", loc="left", fontweight="bold", fontsize=10)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
