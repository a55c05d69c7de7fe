"""Charts of a campaign's page: each is a plain SVG, whole without a script, with its figures beside it as JSON.

A small script of the page's own reads the JSON for hover and for lines that can be hidden. (Plotly, bundled, would
make every page 4 MB larger, and these charts need none of what it has more.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 40
"""Of a chart, in its own units; a page scales it to the width that there is."""


Place = Callable[[float, float], tuple[float, float]]
"""Where a point of the axes stands in the picture."""


class Line(NamedTuple):
    """A line, or with ``high`` a band: ``y`` is then its lower edge."""

    name: str
    kind: str  # its class in the style: main, other, client or band
    x: Sequence[float]
    y: Sequence[float]
    high: Sequence[float] | None = None


class Chart(NamedTuple):
    title: str
    x: str  # what the axes say
    y: str
    lines: list[Line]
    log: bool = False  # whether the axis of y is logarithmic; what is not above zero then lies on its edge


def figure(chart: Chart) -> str:
    """The chart as HTML: a title, the SVG, buttons for what is in it, a line that says what is pointed at."""
    values = [v for line in chart.lines for v in (*line.y, *(line.high or ()))]
    low, high, ticks = decades(values) if chart.log else limits(values)
    left, right, xs = limits([v for line in chart.lines for v in line.x], whole=True)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        share = math.log(max(y, low) / low) / math.log(high / low) if chart.log else (y - low) / (high - low)
        return across, HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    drawn = [*_axes(chart, ticks, xs, at), *(_drawn(line, at) for line in sorted(chart.lines, key=_order))]
    kinds = list(dict.fromkeys((line.kind, label(line)) for line in chart.lines))
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-kind="{kind}"><i class="{kind}"></i>{escape(name)}</button>'
        for kind, name in kinds
    )
    figures = {
        "box": [left, right, low, high],
        "lines": [
            [line.name, line.kind, *map(_rounded, (line.x, line.y)), None if line.high is None else _rounded(line.high)]
            for line in chart.lines
        ],
    }
    return (
        f'<figure class="chart" data-x="{escape(chart.x)}"><figcaption>{escape(chart.title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(chart.title)}: '
        f'{escape(chart.y)} against {escape(chart.x)}">{"".join(drawn)}</svg>'
        f'<div class="tools">{buttons}</div><p class="readout" aria-live="polite"></p>'
        f'<script type="application/json">{embedded(figures)}</script></figure>'
    )


def label(line: Line) -> str:
    """What a button says: all clients are one."""
    return "clients" if line.kind == "client" else line.name


def embedded(content: object) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def limits(values: Iterable[float], whole: bool = False) -> tuple[float, float, list[float]]:
    """(the ends of an axis, round numbers between them) for values of which at least one is finite.

    >>> limits([0.0, 9.0])
    (-0.36, 9.36, [0.0, 5.0])
    """
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high == low:
        low, high = (low, low + 1) if whole else (low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    step = max(step, 1.0) if whole else step
    digits = max(0, 2 - math.floor(math.log10(step)))
    edge = 0.0 if whole else 0.04 * (high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = [round(k * step, digits) for k in range(first, last + 1)]
    return round(low - edge, 12), round(high + edge, 12), ticks


def decades(values: Iterable[float]) -> tuple[float, float, list[float]]:
    """(the ends of a logarithmic axis, powers of ten between them), six at most.

    >>> decades([0.0, 0.02, 3.0])
    (0.01, 10.0, [0.01, 0.1, 1.0, 10.0])
    """
    known = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    last = max(last, first + 1)
    every = -(-(last - first) // 6)
    return 10.0**first, 10.0**last, [10.0**power for power in range(first, last + 1, every)]


def _order(line: Line) -> int:
    return ("band", "client", "other", "main").index(line.kind)


def _axes(chart: Chart, ticks: Sequence[float], xs: Sequence[float], at: Place) -> list[str]:
    base = HEIGHT - BOTTOM
    parts = []
    for value in ticks:
        y = at(xs[0], value)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in xs:
        parts.append(f'<text x="{at(value, ticks[0])[0]:.1f}" y="{base + 15}" text-anchor="middle">{value:g}</text>')
    middle = (TOP + base) / 2
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{base}H{WIDTH - RIGHT}"/>')
    across = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{across}" y="{base + 33}" text-anchor="middle">{escape(chart.x)}</text>')
    turned = f'transform="rotate(-90 12 {middle})"'
    parts.append(f'<text x="12" y="{middle}" text-anchor="middle" {turned}>{escape(chart.y)}</text>')
    return parts


def _drawn(line: Line, at: Place) -> str:
    if line.high is not None:
        there = [at(x, y) for x, y in zip(line.x, line.high, strict=True) if math.isfinite(y)]
        back = [at(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        return f'<path class="{line.kind}" d="{_path([*there, *reversed(back)])}Z"/>' if there else ""
    points = [at(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    name = f' data-client="{escape(line.name)}"' if line.kind == "client" else ""
    dot = f'<circle class="{line.kind}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>' if points else ""
    if len(points) < 2:
        return dot
    return f'<path class="{line.kind}"{name} d="{_path(points)}"/>'


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
